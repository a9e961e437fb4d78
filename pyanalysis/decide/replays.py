"""One policy at one capacity over a trace, and its sums over the units of a part."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis.simulation import Replay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyanalysis.cost import CostModel
    from pyanalysis.decide.parts import Part
    from pyanalysis.simulation import EventStream

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Replayed:
    """What a replay has found. e events, c copies in the order in which they were started.

    hit            uint8[accesses]   1: was visible on the GPU
    copied_event   int64[c]   event that started it, -1: before the first
    late           bool[c]    not complete at the next event of its layer
    """

    hit: Array
    copied_event: Array
    late: Array


@dataclass(frozen=True, eq=False)
class Sums:
    """A replay over one part, by its u units.

    n_experts        int64[m]   experts of an event: the m numbers that occur
    events           int64[u, m, most + 1]   events of so many experts by their hits; times follow from it
    tokens           int64[u]   those of the part
    layer_hits, layer_accesses   int64[columns]   over the whole part
    unit_copies      int64[u]   started by the unit's events
    copies, late     all of them, and those that were not complete at the next event of their layer
    """

    n_experts: Array
    events: Array
    tokens: Array
    layer_hits: Array
    layer_accesses: Array
    unit_copies: Array
    copies: int
    late: int

    @property
    def hits(self) -> Array:
        """int64[u]."""
        total: Array = self.events.sum(axis=1) @ np.arange(self.events.shape[2])
        return total

    @property
    def accesses(self) -> Array:
        """int64[u]: experts asked for."""
        total: Array = self.events.sum(axis=2) @ self.n_experts
        return total

    def time_ns(self, cost: CostModel) -> Array:
        """float64[u]: of the unit's tokens, by the formula of pyanalysis.cost."""
        by_hits = range(self.events.shape[2])
        table = [[cost.event_ns(n, min(h, n)) for h in by_hits] for n in self.n_experts.tolist()]
        events: Array = np.tensordot(self.events, np.array(table), axes=2)
        return events + cost.other_token_ns * self.tokens + cost.copy_event_ns * self.unit_copies


class Replayer:
    """Replays one trace. The arrays of its events are made once; any number of threads may use it."""

    def __init__(self, stream: EventStream, *, per_layer: bool) -> None:
        self.stream = stream
        self.per_layer = per_layer
        self._offsets = stream.native.offsets().astype(np.int64)
        self._n_of_event = np.diff(self._offsets)
        self._column = stream.native.column().astype(np.int64)

    def replay(self, policy: str, slots: Sequence[int], cost: CostModel | None) -> Replayed:
        """`cost` None: copies are complete at the next token (what is placed beforehand never waits for one)."""
        replay = Replay(cost, self.per_layer, "clocked" if cost else "ideal", events=True)
        try:
            native = self.stream.native
            counts = _native.simulate(native, self.per_layer, policy, 0, [list(slots)], replay.options(self.stream))[0]
        except ValueError as error:
            raise ConfigError(str(error)) from None
        log = counts.log()
        return Replayed(log["hit"], log["admitted_event"], log["copy_ready"] == 0)

    def sums(self, replayed: Replayed, part: Part) -> Sums:
        hits_of_event = np.add.reduceat(replayed.hit, self._offsets[:-1], dtype=np.int64)
        hits, n = hits_of_event[part.events], self._n_of_event[part.events]
        column = self._column[part.events]
        n_experts, kind = np.unique(n, return_inverse=True)
        shape = (part.n_units, len(n_experts), int(n_experts[-1]) + 1)
        place = np.ravel_multi_index((part.unit, kind, hits), shape)
        columns = len(self.stream.columns)
        unit_of_event = np.full(len(self._n_of_event), part.n_units)
        unit_of_event[part.events] = part.unit
        started = replayed.copied_event >= 0
        copied_units = np.full(len(started), part.n_units)
        copied_units[started] = unit_of_event[replayed.copied_event[started]]
        copied = copied_units < part.n_units
        return Sums(
            n_experts=n_experts,
            events=np.bincount(place, minlength=int(np.prod(shape))).reshape(shape),
            tokens=part.tokens,
            layer_hits=np.bincount(column, hits, columns).astype(np.int64),
            layer_accesses=np.bincount(column, n, columns).astype(np.int64),
            unit_copies=np.bincount(copied_units, minlength=part.n_units + 1)[: part.n_units],
            copies=int(copied.sum()),
            late=int((copied & replayed.late).sum()),
        )

    def uses(self, part: Part) -> Array:
        """How often each item (expert of a column, columns in order) is asked for in a part, int64[items]."""
        chosen = np.zeros(len(self._n_of_event), dtype=bool)
        chosen[part.events] = True
        items = self.stream.native.items()[np.repeat(chosen, self._n_of_event)]
        return np.bincount(items, minlength=int(self.stream.first_item[-1]))

    def write_ranking(self, path: Path, uses: Array) -> None:
        """The experts by falling use, of equal use the lower (layer, family, expert): a file for `static:file=`."""
        ranked = np.argsort(-uses, kind="stable")
        column = np.searchsorted(self.stream.first_item, ranked, side="right") - 1
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["layer", "family", "expert"])
            for item, place in zip(ranked.tolist(), column.tolist(), strict=True):
                layer, family, *_ = self.stream.columns[place]
                writer.writerow([layer, family, item - int(self.stream.first_item[place])])
