"""Copying, cutting and shuffling a log. The tools work on tables, so fields that they do not know survive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyanalysis.traces import metadata as run_json
from pyanalysis.traces.check import check_trace
from pyanalysis.traces.errors import TraceError
from pyanalysis.traces.formats import checked_chunks, open_reader, read_trace
from pyanalysis.traces.log import Structure, raise_problem
from pyanalysis.traces.table import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyanalysis.traces.log import Writer
    from pyanalysis.traces.metadata import Metadata
    from pyanalysis.traces.trace import Array, Trace


@dataclass(frozen=True)
class Selection:
    """Which events to keep; None: any. `requests` and `tokens` are (first, end), the end excluded, None: open.

    `weights` False: without the router's weights, which are most of a compressed log and decide nothing in a cache.
    """

    requests: tuple[int | None, int | None] | None = None
    tokens: tuple[int | None, int | None] | None = None
    layers: frozenset[int] | None = None
    phase: str | None = None
    weights: bool = True

    def of(self, table: pa.Table) -> pa.ChunkedArray:
        """Mask of the rows to keep: the events selected, and all lines that are neither events nor the end record."""
        keep = pa.chunked_array([pa.repeat(True, table.num_rows)])
        for name, bounds in (("request_id", self.requests), ("token_index", self.tokens)):
            first, end = bounds or (None, None)
            if first is not None:
                keep = pc.and_(keep, pc.greater_equal(table[name], first))
            if end is not None:
                keep = pc.and_(keep, pc.less(table[name], end))
        if self.layers is not None:
            keep = pc.and_(keep, pc.is_in(table["layer_id"], pa.array(sorted(self.layers), pa.int32())))
        if self.phase is not None:
            keep = pc.and_(keep, pc.equal(table["phase"], self.phase))
        is_other = pc.invert(pc.is_in(table["type"], pa.array(["event", "end"])))
        return pc.or_(is_other, pc.and_(pc.equal(table["type"], "event"), pc.fill_null(keep, False)))

    def as_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {"requests": self.requests, "tokens": self.tokens, "phase": self.phase}
        values["layers"] = None if self.layers is None else sorted(self.layers)
        values["weights"] = None if self.weights else False
        return {name: value for name, value in values.items() if value is not None}


def copy(source: Path, writer: Writer, n_experts: int | None = None) -> list[str]:
    """Write the trace `source` as it is. Returns the reader's notes.

    `n_experts` (per layer) goes into the metadata of a trace that does not know it, and its ids are checked against it.
    Raises TraceError.
    """
    return cut(source, writer, None, n_experts)


def cut(source: Path, writer: Writer, selection: Selection | None, n_experts: int | None = None) -> list[str]:
    """Write the selected events of `source`; None: every line as it is. Returns the reader's notes.

    The trace is read and checked as a whole, and then once more, streamed. Overflow, residency and unknown lines stay;
    the end record counts what is left. Memory: the columns of a Trace. Raises TraceError, also if nothing is left.
    """
    trace = read_trace(source)
    if n_experts is not None:
        trace = _knowing_experts(trace, n_experts)
    n_kept = 0
    for lines in lines_again(trace, with_end=selection is None):
        table = lines if selection is None else lines.filter(selection.of(lines))
        if selection is not None and not selection.weights:
            table = _without(table, "router_weights")
        n_kept += pc.sum(pc.equal(table["type"], "event")).as_py() or 0
        writer.write(table)
    metadata = trace.metadata
    if selection is not None:
        if n_kept == 0:
            raise TraceError(trace.path, None, f"nothing is left: none of {trace.n_events:,} events is selected")
        if trace.complete:
            writer.write(end_record(trace, n_kept, trace.n_lost))
        metadata = run_json.edited(metadata, "cut", **selection.as_json())
        if selection.layers is not None:
            metadata = _with_layers(metadata, trace.context_id, selection.layers)
    writer.finish(metadata)
    return list(trace.notes)


def _knowing_experts(trace: Trace, n_experts: int) -> Trace:
    known = trace.model["n_experts"]
    if known not in (None, n_experts):
        raise TraceError(trace.path, None, f"has {known} experts per layer, not {n_experts}")
    trace = replace(trace, metadata=_with_experts(trace.metadata, n_experts))
    check_trace(trace, raise_problem)
    return trace


def _with_experts(metadata: Metadata, n_experts: int) -> Metadata:
    model = run_json.model_of(metadata, 0)
    return {**metadata, "model": {**model, "n_experts": n_experts}}


def _without(table: pa.Table, column: str) -> pa.Table:
    index = SCHEMA.get_field_index(column)
    return table.set_column(index, SCHEMA.field(index), pa.nulls(table.num_rows, SCHEMA.field(index).type))


def end_record(log: Trace, n_events: int, n_lost: int) -> pa.Table:
    row = {"type": "end", "run_id": log.run_id, "context_id": log.context_id}
    return pa.Table.from_pylist([{**row, "events": n_events, "lost_events": n_lost}], schema=SCHEMA)


def _with_layers(metadata: Metadata, context_id: int, layers: frozenset[int]) -> Metadata:
    """`metadata` whose model has `layers` only in its moe_layers."""
    model = run_json.model_of(metadata, context_id)
    if model["moe_layers"] is None:
        return metadata
    kept = {**model, "moe_layers": [layer for layer in model["moe_layers"] if layer in layers]}
    contexts = [
        {**c, "model": kept} if c["context_id"] == context_id and c.get("model") else c
        for c in metadata.get("contexts") or []
    ]
    own = any(c["context_id"] == context_id and c.get("model") for c in contexts)
    return {**metadata, "contexts": contexts} if own else {**metadata, "model": kept}


def lines_again(trace: Trace, *, with_end: bool = False) -> Iterator[pa.Table]:
    """The lines of a trace that has been read and checked, streamed a second time, the end record only if `with_end`.

    Raises TraceError if the file is no longer the same.
    """
    reader = open_reader(trace.path)
    structure = Structure(reader.path)
    for chunk in checked_chunks(reader, structure):
        yield chunk.table if with_end else chunk.table.filter(pc.not_equal(chunk.table["type"], "end"))
    if (structure.n_events, structure.n_lost) != (trace.n_events, trace.n_lost):
        raise TraceError(trace.path, None, "has changed while it was read; wait until its process has ended")


# --- shuffle --------------------------------------------------------------------------------------------------------


def shuffle(source: Path, writer: Writer, seed: int) -> list[str]:
    """Write `source` with the tokens of each request in random order, the same order in each layer.

    What was routed (ids, weights, top1_token) moves; where it stands (ubatch, position, phase) stays. The cache fields,
    which belong to the old order, become those of a log without a cache, and residency lines are left out. Returns the
    reader's notes. Memory: the columns of a Trace, twice. Raises TraceError.
    """
    trace = read_trace(source)
    moved = _moved(trace, _permutation(trace, seed))
    n_done = 0
    for table in lines_again(trace):
        lines = table.filter(pc.not_equal(table["type"], "residency"))
        is_event = pc.equal(lines["type"], "event").to_numpy()
        begin, n_done = n_done, n_done + int(is_event.sum())
        events = moved.event_table(slice(begin, n_done))
        index = SCHEMA.get_field_index("rest")
        events = events.set_column(index, SCHEMA.field(index), lines["rest"].filter(pa.array(is_event)))
        others = lines.filter(pa.array(~is_event))
        place = np.where(is_event, np.cumsum(is_event) - 1, len(events) + np.cumsum(~is_event) - 1)
        writer.write(pa.concat_tables([events, others]).take(pa.array(place)) if len(others) else events)
    if trace.complete:
        writer.write(end_record(trace, trace.n_events, trace.n_lost))
    writer.finish(run_json.edited(trace.metadata, "shuffle", seed=seed))
    return list(trace.notes)


def _moved(trace: Trace, source_of: Array) -> Trace:
    """`trace` with each event's decision replaced by that of another event."""
    return replace(
        trace,
        ids=trace.ids[source_of],
        weights=None if trace.weights is None else trace.weights[source_of],
        top1=None if trace.top1 is None else trace.top1[source_of],
    )


def _permutation(trace: Trace, seed: int) -> Array:
    """For each event the event whose decision it gets: request and layer are sorted by one random rank of tokens."""
    rank = np.random.Generator(np.random.PCG64(seed)).permutation(len(trace.tokens))
    column, _ = trace.columns
    to = np.lexsort((trace.tokens.of_event, column, trace.request))
    taken = np.lexsort((rank[trace.tokens.of_event], column, trace.request))
    result = np.empty(trace.n_events, dtype=np.int64)
    result[to] = taken
    return result
