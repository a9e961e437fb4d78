"""Copying, cutting and shuffling a log. The tools work on tables, so fields that they do not know survive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyanalysis.traces import metadata as run_json
from pyanalysis.traces.check import check_trace
from pyanalysis.traces.errors import TraceError
from pyanalysis.traces.formats import checked_chunks, load_trace, open_reader
from pyanalysis.traces.log import Structure, raise_problem
from pyanalysis.traces.table import SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

    from pyanalysis.traces.log import Writer
    from pyanalysis.traces.metadata import Metadata
    from pyanalysis.traces.trace import Array, Trace


@dataclass(frozen=True)
class Selection:
    """Which events to keep; None: any. `requests` and `tokens` are (first, end), the end excluded, None: open."""

    requests: tuple[int | None, int | None] | None = None
    tokens: tuple[int | None, int | None] | None = None
    layers: frozenset[int] | None = None
    phase: str | None = None

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
        return {name: value for name, value in values.items() if value is not None}


def copy(source: Path, writer: Writer) -> list[str]:
    """Write the trace `source` as it is, streamed. Returns the reader's notes. Raises TraceError."""
    return cut(source, writer, None)


def cut(source: Path, writer: Writer, selection: Selection | None) -> list[str]:
    """Write the selected events of `source`, streamed. Returns the reader's notes.

    Overflow, residency and unknown lines stay; the end record counts what is left. Raises TraceError, also if nothing
    is left.
    """
    reader = open_reader(source)
    structure = Structure(reader.path)
    n_kept = 0
    for chunk in checked_chunks(reader, structure):
        table = chunk.table if selection is None else chunk.table.filter(selection.of(chunk.table))
        n_kept += pc.sum(pc.equal(table["type"], "event")).as_py() or 0
        writer.write(table)
    metadata = reader.metadata or run_json.blank(structure.run_id or reader.path.stem)
    if selection is not None:
        if n_kept == 0:
            raise TraceError(reader.path, None, f"nothing is left: none of {structure.n_events:,} events is selected")
        if structure.complete:
            writer.write(_end_record(structure, n_kept))
        metadata = run_json.edited(metadata, "cut", **selection.as_json())
        if selection.layers is not None:
            metadata = _with_layers(metadata, structure.context_id, selection.layers)
    writer.finish(metadata)
    return [*reader.notes, *structure.notes()]


def _end_record(structure: Structure, n_events: int) -> pa.Table:
    row = {"type": "end", "run_id": structure.run_id, "context_id": structure.context_id}
    return pa.Table.from_pylist([{**row, "events": n_events, "lost_events": structure.n_lost}], schema=SCHEMA)


def _with_layers(metadata: Metadata, context_id: int | None, layers: frozenset[int]) -> Metadata:
    """`metadata` whose model has `layers` only in its moe_layers."""
    model = run_json.model_of(metadata, context_id or 0)
    if model["moe_layers"] is None:
        return metadata
    kept = {**model, "moe_layers": [layer for layer in model["moe_layers"] if layer in layers]}
    contexts = [
        {**c, "model": kept} if c["context_id"] == context_id and c.get("model") else c
        for c in metadata.get("contexts") or []
    ]
    own = any(c["context_id"] == context_id and c.get("model") for c in contexts)
    return {**metadata, "contexts": contexts} if own else {**metadata, "model": kept}


@dataclass(frozen=True)
class Loaded:
    """A whole log: every line (table.SCHEMA), and the trace of its events."""

    table: pa.Table
    trace: Trace


def load(source: Path) -> Loaded:
    """Every line of `source`, checked. Memory: the table, some 200 bytes per event. Raises TraceError."""
    tables: list[pa.Table] = []
    trace = load_trace(open_reader(source), each=lambda chunk: tables.append(chunk.table))
    check_trace(trace, raise_problem)
    return Loaded(pa.concat_tables(tables), trace)


# --- shuffle --------------------------------------------------------------------------------------------------------


def shuffle(source: Path, writer: Writer, seed: int) -> list[str]:
    """Write `source` with the tokens of each request in random order, the same order in each layer.

    What was routed (ids, weights, top1_token) moves; where it stands (ubatch, position, phase) stays. The cache fields,
    which belong to the old order, become those of a log without a cache, and residency lines are left out. Returns the
    reader's notes. Raises TraceError.
    """
    log = load(source)
    table = log.table.filter(pc.not_equal(log.table["type"], "residency"))
    event_rows = np.flatnonzero(pc.equal(table["type"], "event").to_numpy())
    source_of = np.arange(table.num_rows)
    source_of[event_rows] = event_rows[_permutation(log.trace, seed)]
    take = pa.array(source_of)
    moved = {"expert_ids", "router_weights", "top1_token"}
    columns = [table[f.name].take(take) if f.name in moved else table[f.name] for f in SCHEMA]
    for index, name in enumerate(SCHEMA.names):
        if name in ("cache_hit", "admitted", "evicted", "copy_bytes"):
            columns[index] = _for_events(table, name, [] if name != "copy_bytes" else 0)
        elif name in ("resident_experts", "ready_before_next_token") or name.endswith("_ns"):
            columns[index] = pa.nulls(table.num_rows, SCHEMA.field(name).type)
    shuffled = pa.table(columns, schema=SCHEMA)
    for batch in shuffled.to_batches(max_chunksize=1 << 16):
        writer.write(pa.Table.from_batches([batch]))
    writer.finish(run_json.edited(log.trace.metadata, "shuffle", seed=seed))
    return list(log.trace.notes)


def _for_events(table: pa.Table, name: str, value: object) -> pa.ChunkedArray:
    kind = SCHEMA.field(name).type
    return pc.if_else(pc.equal(table["type"], "event"), pa.scalar(value, kind), pa.scalar(None, kind))


def _permutation(trace: Trace, seed: int) -> Array:
    """For each event the event whose decision it gets: request and layer are sorted by one random rank of tokens."""
    rank = np.random.Generator(np.random.PCG64(seed)).permutation(len(trace.tokens))
    column, _ = trace.columns
    to = np.lexsort((trace.tokens.of_event, column, trace.request))
    taken = np.lexsort((rank[trace.tokens.of_event], column, trace.request))
    result = np.empty(trace.n_events, dtype=np.int64)
    result[to] = taken
    return result
