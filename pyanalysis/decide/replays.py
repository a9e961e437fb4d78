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
    """A replay over one part, by its u units. Times in ns, by the formula of pyanalysis.cost.

    hits, accesses   int64[u]
    time_ns          float64[u]
    layer_hits, layer_accesses   int64[columns]   over the whole part
    copies, late     started by an event from the first of the part to the last
    """

    hits: Array
    accesses: Array
    time_ns: Array
    layer_hits: Array
    layer_accesses: Array
    copies: int
    late: int


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

    def sums(self, replayed: Replayed, part: Part, cost: CostModel) -> Sums:
        hits_of_event = np.add.reduceat(replayed.hit, self._offsets[:-1], dtype=np.int64)
        hits, n = hits_of_event[part.events], self._n_of_event[part.events]
        column = self._column[part.events]
        first, last = part.events[0], part.events[-1]
        copied = (replayed.copied_event >= first) & (replayed.copied_event <= last)
        u, columns = part.n_units, len(self.stream.columns)
        return Sums(
            hits=_total(part.unit, hits, u),
            accesses=_total(part.unit, n, u),
            time_ns=np.bincount(part.unit, _event_ns(cost, n, hits), u) + cost.other_token_ns * part.tokens,
            layer_hits=_total(column, hits, columns),
            layer_accesses=_total(column, n, columns),
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


def _total(place: Array, values: Array, n: int) -> Array:
    return np.bincount(place, values, n).astype(np.int64)


def _event_ns(cost: CostModel, n: Array, hits: Array) -> Array:
    """CostModel.event_ns of each event."""
    top = int(n.max()) + 1
    table = np.array([[cost.event_ns(k, min(h, k)) for h in range(top)] for k in range(top)])
    times: Array = table[n, hits]
    return times
