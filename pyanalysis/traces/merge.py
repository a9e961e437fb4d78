"""Making one log of several: the layers of the devices of one run, or several runs one after another."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyanalysis.traces import metadata as run_json
from pyanalysis.traces.edit import Loaded, load
from pyanalysis.traces.errors import TraceError
from pyanalysis.traces.table import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyanalysis.traces.log import Writer
    from pyanalysis.traces.metadata import Metadata
    from pyanalysis.traces.trace import Array, Trace

_ROWS_AT_ONCE = 1 << 16


def merge(sources: Sequence[Path], writer: Writer) -> list[str]:
    """Write one log of the `sources`, at least two. Returns notes.

    Logs of one run whose layers are disjoint are taken for devices of one context: they must have seen the same tokens,
    and their lines are put together ubatch by ubatch. Other logs must be of the same model and the same layers; they
    follow one another, with requests and ubatches counted on and a run_id of their own. Raises TraceError, naming the
    log that does not fit.
    """
    logs = [load(source) for source in sources]
    first = logs[0]
    one_run = all(log.trace.run_id == first.trace.run_id for log in logs)
    columns = [_columns(log.trace) for log in logs]
    disjoint = sum(map(len, columns)) == len(set().union(*columns))
    for log in logs:
        if log.trace.n_events == 0:
            raise TraceError(log.trace.path, None, "has no event: nothing to merge")
    if one_run and disjoint:
        _merge_devices(logs, writer)
    else:
        _merge_runs(logs, writer)
    return [f"{log.trace.path}: {note}" for log in logs for note in log.trace.notes]


def _columns(trace: Trace) -> set[tuple[int, str]]:
    return {(layer, trace.families[family]) for layer, family in trace.columns[1].tolist()}


def _finish(table: pa.Table, logs: list[Loaded], writer: Writer, metadata: Metadata) -> None:
    """Write `table`, which has no end records, and the end record of the whole if each log had one."""
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        writer.write(pa.Table.from_batches([batch]))
    if all(log.trace.complete for log in logs):
        end = {
            "type": "end",
            "run_id": metadata["run_id"],
            "context_id": logs[0].trace.context_id,
            "events": sum(log.trace.n_events for log in logs),
            "lost_events": sum(log.trace.n_lost for log in logs),
        }
        writer.write(pa.Table.from_pylist([end], schema=SCHEMA))
    writer.finish(metadata)


def _without_end(table: pa.Table) -> pa.Table:
    return table.filter(pc.not_equal(table["type"], "end"))


def _replaced(table: pa.Table, name: str, values: Any) -> pa.Table:  # noqa: ANN401 - an Arrow array
    index = SCHEMA.get_field_index(name)
    return table.set_column(index, SCHEMA.field(index), values)


# --- devices of one run ---------------------------------------------------------------------------------------------


def _merge_devices(logs: list[Loaded], writer: Writer) -> None:
    first = logs[0].trace
    for log in logs[1:]:
        _same_tokens(first, log.trace)
    logs = sorted(logs, key=lambda log: int(log.trace.layer.min()))
    tables, places = [], []
    for log in logs:
        table = _without_end(log.table)
        places.append(_batch_of_line(table))
        known = pc.is_valid(table["context_id"])
        values = pc.if_else(known, pa.scalar(first.context_id, pa.int64()), pa.scalar(None, pa.int64()))
        tables.append(_replaced(table, "context_id", values))
    order = np.argsort(np.concatenate(places), kind="stable")
    table = pa.concat_tables(tables).take(pa.array(order))
    contexts = [log.trace.context_id for log in logs]
    metadata = run_json.edited(first.metadata, "merge", contexts=contexts)
    _finish(table, logs, writer, metadata)


def _batch_of_line(table: pa.Table) -> Array:
    """int64[rows]: where each line stands: the ubatch of the event, for other lines that of the next event."""
    batch: Array = pc.fill_null(table["batch_id"], -1).to_numpy().copy()
    events = np.flatnonzero(pc.equal(table["type"], "event").to_numpy())
    following = np.searchsorted(events, np.arange(table.num_rows))
    last = np.iinfo(np.int64).max
    return np.append(batch[events], last)[following]


def _same_tokens(one: Trace, other: Trace) -> None:
    """Refuse logs that are not devices of one context: their tokens differ in a ubatch in which nothing was lost."""
    ends = [int(trace.batch[-1]) for trace in (one, other) if not trace.complete]
    seen = []
    for trace in (one, other):
        tokens = np.stack([trace.tokens.batch, trace.tokens.request, trace.tokens.token], axis=1)
        batch = tokens[:, 0]
        unsure = one.may_lack_events(batch) | other.may_lack_events(batch)
        seen.append(tokens[~unsure & (batch < min(ends, default=np.iinfo(np.int64).max))])
    if seen[0].shape == seen[1].shape and (seen[0] == seen[1]).all():
        return
    n = min(len(seen[0]), len(seen[1]))
    differs = np.flatnonzero((seen[0][:n] != seen[1][:n]).any(axis=1))
    place = int(differs[0]) if differs.size else n
    ubatch = min(int(tokens[place, 0]) for tokens in seen if place < len(tokens))
    reason = f"has other tokens in ubatch {ubatch} than {one.path.name}: these are not devices of one context"
    raise TraceError(other.path, None, reason)


# --- runs -----------------------------------------------------------------------------------------------------------


def _merge_runs(logs: list[Loaded], writer: Writer) -> None:
    traces = [log.trace for log in logs]
    for trace in traces[1:]:
        _same_model(traces[0], trace)
    metadata = _common(traces)
    n_requests = n_batches = 0
    tables = []
    for log in logs:
        table = _without_end(log.table)
        known = pc.is_valid(table["context_id"])
        for name, value in (("run_id", metadata["run_id"]), ("context_id", traces[0].context_id)):
            kind = SCHEMA.field(name).type
            table = _replaced(table, name, pc.if_else(known, pa.scalar(value, kind), pa.scalar(None, kind)))
        table = _replaced(table, "request_id", pc.add(table["request_id"], n_requests))
        if log.trace.batch.min() >= 0:
            table = _replaced(table, "batch_id", pc.add(table["batch_id"], n_batches))
            n_batches += int(log.trace.batch.max()) + 1
        n_requests += int(log.trace.request.max()) + 1
        tables.append(table)
    _finish(pa.concat_tables(tables), logs, writer, metadata)


def _same_model(one: Trace, other: Trace) -> None:
    for name in ("fingerprint", "architecture", "n_experts", "top_k", "sha256"):
        mine, others = one.model[name], other.model[name]
        if mine is not None and others is not None and mine != others:
            reason = f"two models: {name} is {others}, that of {one.path} is {mine}"
            raise TraceError(other.path, None, reason)
    if _columns(one) != _columns(other):
        differ = sorted({layer for layer, _ in _columns(one) ^ _columns(other)})
        reason = f"has other layers than {one.path} (layer {', '.join(map(str, differ))}): cut both to the same layers"
        raise TraceError(other.path, None, reason)
    if one.ids.shape[1] != other.ids.shape[1]:
        reason = f"two models: its events have {other.ids.shape[1]} ids, those of {one.path} have {one.ids.shape[1]}"
        raise TraceError(other.path, None, reason)
    if (one.batch.min() < 0) != (other.batch.min() < 0):
        raise TraceError(other.path, None, f"ubatches are recorded in only one of it and {one.path}")


def _common(traces: list[Trace]) -> Metadata:
    """What the runs have in common, null where they differ, under a run_id that follows from theirs."""
    first = traces[0].metadata
    metadata = {
        name: value for name, value in first.items() if all(trace.metadata.get(name) == value for trace in traces[1:])
    }
    metadata = {**run_json.blank(""), **metadata}
    metadata["model"] = {
        name: value if all(t.model.get(name) == value for t in traces[1:]) else None
        for name, value in traces[0].model.items()
    }
    metadata.pop("contexts", None)
    metadata.pop("edits", None)
    runs = [{"run_id": t.run_id, "context_id": t.context_id, "edits": t.metadata.get("edits") or []} for t in traces]
    digest = hashlib.sha256(repr(runs).encode()).hexdigest()[:12]
    return run_json.edited({**metadata, "run_id": f"merged-{digest}"}, "merge", runs=runs)
