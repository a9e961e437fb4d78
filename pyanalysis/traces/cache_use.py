"""What a log says of the cache of its run: hit rate as a whole, over time and by layer, copies."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyanalysis.traces.trace import Array

N_PARTS = 10


@dataclass(frozen=True)
class Part:
    """Ubatches from `first_batch` to `last_batch`: rows (an expert of a token) that the cache was asked for, hits."""

    first_batch: int
    last_batch: int
    rows: int
    hits: int

    @property
    def hit_rate(self) -> float:
        return self.hits / self.rows


@dataclass(frozen=True)
class CacheUse:
    """Of a whole log. `events_passed_by`: of ubatches too large for the cache, not among `rows`.

    over_time    up to ten parts with as many ubatches each, in order
    by_layer     (layer, family): (rows, hits)
    in_time      share of the events with copies that had all of them ready when the layer's next token came, over those
                 that tell; None: none does
    """

    rows: int
    hits: int
    admitted: int
    evicted: int
    copy_bytes: int
    events_passed_by: int
    in_time: float | None
    over_time: list[Part]
    by_layer: dict[tuple[int, str], tuple[int, int]]

    @property
    def hit_rate(self) -> float:
        return self.hits / self.rows

    def as_json(self) -> dict[str, Any]:
        values = {**asdict(self), "hit_rate": self.hit_rate}
        values["over_time"] = [{**asdict(part), "hit_rate": part.hit_rate} for part in self.over_time]
        values["by_layer"] = [
            {"layer": layer, "family": family, "rows": rows, "hits": hits}
            for (layer, family), (rows, hits) in self.by_layer.items()
        ]
        return values


@dataclass
class CacheUseBuilder:
    """Collects it from the tables of a log (table.SCHEMA) in order; memory grows with the number of ubatches only."""

    _batches: list[Array] = field(default_factory=list)  # int64[3, ubatches of a chunk]: id, rows, hits
    _layers: dict[tuple[int, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    _totals: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, table: pa.Table) -> None:
        events = table.filter(pc.equal(table["type"], "event"))
        cached = pc.greater(pc.list_value_length(events["cache_hit"]), 0)
        self._totals["events"] += events.num_rows
        events = events.filter(cached)
        if events.num_rows == 0:
            return
        rows = pc.list_value_length(events["cache_hit"]).to_numpy().astype(np.int64)
        flags = events["cache_hit"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        hits = np.add.reduceat(flags, np.concatenate([[0], np.cumsum(rows)[:-1]]), dtype=np.int64)
        self._totals["cached"] += events.num_rows
        for name in ("admitted", "evicted"):
            self._totals[name] += pc.sum(pc.list_value_length(events[name])).as_py()
        self._totals["copy_bytes"] += pc.sum(events["copy_bytes"]).as_py()
        ready = events["ready_before_next_token"]
        self._totals["told"] += len(ready) - ready.null_count
        self._totals["in_time"] += pc.sum(ready).as_py() or 0
        batches, place = np.unique(events["batch_id"].to_numpy(), return_inverse=True)
        self._batches.append(np.stack([batches, _sums(place, rows), _sums(place, hits)]))
        self._add_layers(events, rows, hits)

    def _add_layers(self, events: pa.Table, rows: Array, hits: Array) -> None:
        coded = events["family"].combine_chunks().dictionary_encode()
        families = coded.dictionary.to_pylist()
        key = events["layer_id"].to_numpy().astype(np.int64) * len(families) + coded.indices.to_numpy()
        keys, place = np.unique(key, return_inverse=True)
        for one, n_rows, n_hits in zip(keys.tolist(), _sums(place, rows), _sums(place, hits), strict=True):
            counts = self._layers[one // len(families), families[one % len(families)]]
            counts[0] += int(n_rows)
            counts[1] += int(n_hits)

    def finish(self) -> CacheUse | None:
        """None: the log has no event that a cache was asked for."""
        if not self._batches:
            return None
        batch, rows, hits = np.concatenate(self._batches, axis=1)
        batches, place = np.unique(batch, return_inverse=True)  # a ubatch may lie in two chunks
        rows, hits = _sums(place, rows), _sums(place, hits)
        parts = [
            Part(int(batches[part[0]]), int(batches[part[-1]]), int(rows[part].sum()), int(hits[part].sum()))
            for part in np.array_split(np.arange(len(batches)), min(N_PARTS, len(batches)))
        ]
        totals = self._totals
        return CacheUse(
            rows=int(rows.sum()),
            hits=int(hits.sum()),
            admitted=totals["admitted"],
            evicted=totals["evicted"],
            copy_bytes=totals["copy_bytes"],
            events_passed_by=totals["events"] - totals["cached"],
            in_time=totals["in_time"] / totals["told"] if totals["told"] else None,
            over_time=parts,
            by_layer={key: (counts[0], counts[1]) for key, counts in sorted(self._layers.items())},
        )


def _sums(place: Array, values: Array) -> Array:
    """Sums of `values` by `place`, int64[largest place + 1]."""
    total = np.zeros(int(place.max()) + 1, dtype=np.int64)
    np.add.at(total, place, values)
    return total


def as_lines(use: CacheUse) -> list[str]:
    """For a terminal, below the head of the summary."""
    by = f"; {use.events_passed_by:,} events in larger ubatches passed it by" if use.events_passed_by else ""
    in_time = "" if use.in_time is None else f"; ready at the next token for {use.in_time:.1%} of the events that tell"
    rates = "  ".join(f"{part.hit_rate:.1%}" for part in use.over_time)
    first, last = use.over_time[0].first_batch, use.over_time[-1].last_batch
    return [
        f"cache     hit rate {use.hit_rate:.1%} ({use.hits:,} of {use.rows:,} rows){by}",
        f"copies    {use.admitted:,} experts, {use.copy_bytes / 2**20:,.1f} MiB; {use.evicted:,} evicted{in_time}",
        f"over time {rates} (ubatches {first:,} to {last:,} in {len(use.over_time)} parts)",
    ]
