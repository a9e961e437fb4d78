"""The routing decisions of one log as numpy columns: what analyses work on."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyanalysis.traces import metadata as run_json
from pyanalysis.traces.event import PHASES, Event
from pyanalysis.traces.table import SCHEMA, with_no_cache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyanalysis.traces.metadata import Metadata

    Array = np.ndarray[Any, np.dtype[Any]]

_EVENTS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Trace:
    """The events of one log, one array entry per event, in the order of the log. n events, k = the largest top-k.

    request, batch  int64[n]   ids as in traces/FORMAT.md; batch -1: not recorded
    token, layer    int32[n]   position of the token, layer of the model
    family          uint8[n]   index into `families`
    phase           uint8[n]   index into event.PHASES: 0 prefill, 1 decode
    ids             int32[n, k]    expert ids, -1 behind the last of an event with fewer than k
    weights         float32[n, k]  NaN where not recorded and behind the last; None: no event has weights
    top1            int64[n]   token from this layer's hidden state, -1 = not sampled; None: not recorded
    line            int64[n]   line (row) of the file, from 1; entries of npz have none and count from 1
    overflows       int64[m, 3]    events were lost: index of the event before which, ubatch of the first lost, number
    """

    path: Path
    metadata: Metadata
    run_id: str
    context_id: int
    families: tuple[str, ...]
    request: Array
    token: Array
    layer: Array
    family: Array
    phase: Array
    batch: Array
    ids: Array
    weights: Array | None
    top1: Array | None
    line: Array
    overflows: Array
    n_lost: int
    complete: bool  # the log has its end record
    notes: tuple[str, ...]

    @property
    def n_events(self) -> int:
        return len(self.request)

    @property
    def model(self) -> Metadata:
        """What run.json knows of the model of this context; every field may be null."""
        return run_json.model_of(self.metadata, self.context_id)

    @cached_property
    def tokens(self) -> Tokens:
        return Tokens.of(self)

    @cached_property
    def columns(self) -> tuple[Array, Array]:
        """(column of each event: int64[n], the columns: int64[c, 2] of layer and family), columns in rising order."""
        key = self.layer.astype(np.int64) * len(self.families) + self.family
        keys, column = np.unique(key, return_inverse=True)
        return column, np.stack(np.divmod(keys, max(len(self.families), 1)), axis=1)

    def may_lack_events(self, batches: Array) -> Array:
        """bool[b]: which of these ubatches [b] are those of an overflow, or the last one of a log that was cut off.

        Where ubatches are not recorded (-1) nothing tells the place of an overflow: any of them may be.
        """
        unsure = np.zeros(len(batches), dtype=bool)
        for place, first, _ in self.overflows.tolist():
            last = self.batch[place] if place < self.n_events else np.iinfo(np.int64).max
            unsure |= (batches >= first) & (batches <= last) | (batches < 0)
        if not self.complete and self.n_events:
            unsure |= batches == self.batch[-1]
        return unsure

    def n_experts(self, layer: int, family: str) -> int | None:
        """Experts of a layer and family as run.json has it, None if it does not."""
        return run_json.experts_of(self.model, layer, family)

    def events(self) -> Iterator[Event]:
        """Every event in order, with the fields that are columns here; `read_events` yields those of the cache too."""
        for begin in range(0, self.n_events, _EVENTS_AT_ONCE):
            part = slice(begin, begin + _EVENTS_AT_ONCE)
            weights = [None] * len(self.ids[part]) if self.weights is None else self.weights[part].tolist()
            top1 = [None] * len(self.ids[part]) if self.top1 is None else self.top1[part].tolist()
            scalars = (self.batch, self.request, self.token, self.layer, self.family, self.phase)
            rows = zip(*(a[part].tolist() for a in scalars), self.ids[part].tolist(), weights, top1, strict=True)
            for batch, request, token, layer, family, phase, padded, padded_weights, top1_token in rows:
                ids = [i for i in padded if i >= 0]
                w = None if padded_weights is None else padded_weights[: len(ids)]
                yield Event(
                    *(self.run_id, self.context_id, batch, request, token, layer, self.families[family], PHASES[phase]),
                    expert_ids=ids,
                    router_weights=None if w is None or w[0] != w[0] else w,
                    top1_token=top1_token,
                )

    def tables(self) -> Iterator[pa.Table]:
        """The trace as tables (table.SCHEMA), with overflow and end records: what writers of other formats take."""
        cuts = [0, *self.overflows[:, 0].tolist(), self.n_events]
        for index, (begin, end) in enumerate(itertools.pairwise(cuts)):
            if index:
                _, batch, lost = self.overflows[index - 1].tolist()
                yield self._record(type="overflow", batch_id=batch, lost_events=lost)
            for first in range(begin, end, _EVENTS_AT_ONCE):
                yield self.event_table(slice(first, min(first + _EVENTS_AT_ONCE, end)))
        if self.complete:
            yield self._record(type="end", events=self.n_events, lost_events=self.n_lost)

    def _record(self, **values: str | int) -> pa.Table:
        row = {**values, "run_id": self.run_id, "context_id": self.context_id}
        return pa.Table.from_pylist([row], schema=SCHEMA)

    def event_table(self, part: slice) -> pa.Table:
        """Some events as a table (table.SCHEMA), with the cache fields of a log without a cache."""
        ids = self.ids[part]
        n = len(ids)
        used = ids >= 0
        offsets = np.concatenate([[0], np.cumsum(used.sum(axis=1))]).astype(np.int32)
        values: dict[str, Any] = {
            "type": pa.repeat("event", n),
            "run_id": pa.repeat(self.run_id, n),
            "context_id": pa.repeat(self.context_id, n),
            "batch_id": self.batch[part],
            "request_id": self.request[part],
            "token_index": self.token[part].astype(np.int64),
            "layer_id": self.layer[part],
            "family": pa.array(self.families, pa.string()).take(pa.array(self.family[part])),
            "phase": pa.array(PHASES, pa.string()).take(pa.array(self.phase[part])),
            "expert_ids": pa.ListArray.from_arrays(offsets, pa.array(ids[used], pa.int32())),
            "router_weights": pa.nulls(n, SCHEMA.field("router_weights").type),
        }
        if self.weights is not None:
            missing = np.isnan(self.weights[part][:, 0])
            weights = pa.array(self.weights[part][used], pa.float32())
            values["router_weights"] = pa.ListArray.from_arrays(offsets, weights, mask=pa.array(missing))
        table = with_no_cache(pa.table(values))
        if self.top1 is not None:
            index = SCHEMA.get_field_index("top1_token")
            table = table.set_column(index, SCHEMA.field(index), pa.array(self.top1[part], pa.int64()))
        return table


@dataclass(frozen=True)
class Tokens:
    """The tokens of a trace: each (ubatch, request, position) once, in that order. m tokens.

    A position that was computed twice in a request is two tokens.

    of_event  int64[n]   index of each event's token
    batch, request, token  as in Trace, [m];  phase uint8[m]: 1 if an event of the token says decode
    """

    of_event: Array
    batch: Array
    request: Array
    token: Array
    phase: Array

    @staticmethod
    def of(trace: Trace) -> Tokens:
        order = np.lexsort((trace.token, trace.request, trace.batch))
        keys = [a[order] for a in (trace.batch, trace.request, trace.token)]
        first = np.ones(trace.n_events, dtype=bool)
        if trace.n_events:
            first[1:] = np.logical_or.reduce([k[1:] != k[:-1] for k in keys])
        of_event = np.empty(trace.n_events, dtype=np.int64)
        of_event[order] = np.cumsum(first) - 1
        phase = np.zeros(int(first.sum()), dtype=np.uint8)
        np.maximum.at(phase, of_event, trace.phase)
        return Tokens(of_event, keys[0][first], keys[1][first], keys[2][first], phase)

    def __len__(self) -> int:
        return len(self.batch)


class TraceBuilder:
    """Collects the columns of a Trace from tables; holds some 34 + 8 * top_k bytes per event."""

    def __init__(self) -> None:
        self._parts: list[dict[str, Array]] = []
        self._families: dict[str, int] = {}
        self._overflows: list[tuple[int, int, int]] = []
        self._n_events = 0

    def add(self, table: pa.Table, lines: Array) -> None:
        """Lines of other types than event and overflow are passed over."""
        is_event = pc.equal(table["type"], "event").to_numpy()
        for row in np.flatnonzero(pc.equal(table["type"], "overflow").to_numpy()).tolist():
            place = self._n_events + int(is_event[:row].sum())
            self._overflows.append((place, table["batch_id"][row].as_py(), table["lost_events"][row].as_py()))
        events = table if is_event.all() else table.filter(pa.array(is_event))
        if events.num_rows == 0:
            return
        self._n_events += events.num_rows
        k = pc.list_value_length(events["expert_ids"]).to_numpy()
        part = {
            "request": events["request_id"].to_numpy(),
            "batch": events["batch_id"].to_numpy(),
            "token": events["token_index"].to_numpy().astype(np.int32),
            "layer": events["layer_id"].to_numpy(),
            "family": self._family_indices(events["family"]),
            "phase": pc.equal(events["phase"], PHASES[1]).to_numpy().astype(np.uint8),
            "ids": _padded(events["expert_ids"], k, -1, np.int32),
            "line": lines[is_event],
        }
        if events["router_weights"].null_count < events.num_rows:
            k_weights = pc.fill_null(pc.list_value_length(events["router_weights"]), 0).to_numpy()
            part["weights"] = _padded(events["router_weights"], k_weights, np.nan, np.float32, width=int(k.max()))
        if events["top1_token"].null_count < events.num_rows:
            part["top1"] = pc.fill_null(events["top1_token"], -1).to_numpy()
        self._parts.append(part)

    def _family_indices(self, column: pa.ChunkedArray) -> Array:
        coded = column.combine_chunks().dictionary_encode()
        known = [self._families.setdefault(name, len(self._families)) for name in coded.dictionary.to_pylist()]
        indices: Array = np.array(known, dtype=np.uint8)[coded.indices.to_numpy()]
        return indices

    def columns(self) -> dict[str, Any]:
        """The fields of Trace that are columns, and `families` and `overflows`."""
        parts, self._parts = self._parts, []
        width = max((part["ids"].shape[1] for part in parts), default=0)
        types = {"request": np.int64, "batch": np.int64, "token": np.int32, "layer": np.int32, "line": np.int64}
        types |= {"family": np.uint8, "phase": np.uint8}
        result: dict[str, Any] = {
            name: np.concatenate([np.empty(0, kind), *(part[name] for part in parts)]) for name, kind in types.items()
        }
        result["ids"] = np.concatenate(
            [np.empty((0, width), np.int32), *(_widened(p["ids"], width, -1) for p in parts)]
        )
        result["weights"] = result["top1"] = None
        if any("weights" in part for part in parts):
            missing = [
                np.full(p["ids"].shape, np.nan, np.float32) if "weights" not in p else p["weights"] for p in parts
            ]
            result["weights"] = np.concatenate([_widened(w, width, np.nan) for w in missing])
        if any("top1" in part for part in parts):
            result["top1"] = np.concatenate([p.get("top1", np.full(len(p["ids"]), -1)) for p in parts])
        result["families"] = tuple(self._families)
        result["overflows"] = np.array(self._overflows, dtype=np.int64).reshape(-1, 3)
        return result


def _padded(column: pa.ChunkedArray, k: Array, fill: float, kind: type, width: int | None = None) -> Array:
    """The lists of `column`, `k` their lengths, as rows of one array."""
    values: Array = column.combine_chunks().flatten().to_numpy()
    width = int(k.max()) if width is None else width
    if (k == width).all():
        return values.reshape(len(k), width)
    rows: Array = np.full((len(k), width), fill, dtype=kind)
    rows[np.arange(width) < k[:, None]] = values
    return rows


def _widened(rows: Array, width: int, fill: float) -> Array:
    missing = width - rows.shape[1]
    return rows if missing == 0 else np.pad(rows, ((0, 0), (0, missing)), constant_values=fill)
