"""Making one log of several: the layers of the devices of one run, or several runs one after another.

Each log is read twice: once to see that they fit, and once more, streamed, to write them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyanalysis.traces import metadata as run_json
from pyanalysis.traces.edit import end_record, lines_again
from pyanalysis.traces.errors import TraceError
from pyanalysis.traces.formats import read_trace
from pyanalysis.traces.table import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyanalysis.traces.log import Writer
    from pyanalysis.traces.metadata import Metadata
    from pyanalysis.traces.trace import Array, Trace

_END = np.iinfo(np.int64).max
_REQUESTS_IN_ORDER = 2**31  # request and token in one number, where ubatches are not recorded


def merge(sources: Sequence[Path], writer: Writer) -> list[str]:
    """Write one log of the `sources`, at least two. Returns notes.

    Logs of one run whose layers are disjoint are taken for devices of one context, or for parts of one log: they must
    have seen the same tokens, and their lines are put together ubatch by ubatch. Other logs must be of the same model
    and the same layers; they follow one another, with requests, ubatches and the generations of their caches counted on
    and a run_id of their own. Residency lines are kept in the latter case only.
    Memory: the columns of all traces. Raises TraceError, naming the log that does not fit.
    """
    for index, source in enumerate(sources):
        if source.resolve() in [before.resolve() for before in sources[:index]]:
            raise TraceError(source, None, "is named twice: merge needs different logs")
    traces = [read_trace(source) for source in sources]
    for trace in traces:
        if trace.n_events == 0:
            raise TraceError(trace.path, None, "has no event: nothing to merge")
    columns = [_columns(trace) for trace in traces]
    disjoint = sum(map(len, columns)) == len(set().union(*columns))
    together = disjoint and all(trace.run_id == traces[0].run_id for trace in traces)
    if together:
        tables, metadata = _devices(traces)
        n_lost = sum({trace.context_id: trace.n_lost for trace in traces}.values())
    else:
        tables, metadata = _runs(traces)
        n_lost = sum(trace.n_lost for trace in traces)
    n_residency = 0
    for table in tables:
        n_residency += pc.sum(pc.equal(table["type"], "residency")).as_py() or 0
        writer.write(table.filter(pc.not_equal(table["type"], "residency")) if together else table)
    if all(trace.complete for trace in traces):
        whole = replace(traces[0], run_id=metadata["run_id"])
        writer.write(end_record(whole, sum(trace.n_events for trace in traces), n_lost))
    writer.finish(metadata)
    notes = [f"{trace.path}: {note}" for trace in traces for note in trace.notes]
    if together and n_residency:
        notes.append(
            f"{n_residency:,} residency lines are left out: each device has a cache of its own, and events of other "
            "layers would stand between such a line and its event"
        )
    return notes


def _columns(trace: Trace) -> set[tuple[int, str]]:
    return {(layer, trace.families[family]) for layer, family in trace.columns[1].tolist()}


def _replaced(table: pa.Table, name: str, values: Any) -> pa.Table:  # noqa: ANN401 - an Arrow array
    index = SCHEMA.get_field_index(name)
    return table.set_column(index, SCHEMA.field(index), values)


def _under(table: pa.Table, **values: str | int) -> pa.Table:
    """`table` with run_id or context_id replaced on the lines that have them as columns."""
    for name, value in values.items():
        kind = SCHEMA.field(name).type
        known = pc.is_valid(table[name])
        table = _replaced(table, name, pc.if_else(known, pa.scalar(value, kind), pa.scalar(None, kind)))
    return table


# --- devices of one run ---------------------------------------------------------------------------------------------


def _devices(traces: list[Trace]) -> tuple[Iterator[pa.Table], Metadata]:
    first = traces[0]
    for trace in traces[1:]:
        _same_tokens(first, trace)
    for trace in traces:
        _check_order(trace)
    in_order = sorted(traces, key=lambda trace: int(trace.layer.min()))
    contexts = [trace.context_id for trace in in_order]
    metadata = run_json.edited(first.metadata, "merge", contexts=contexts)
    metadata["model"] = run_json.united([trace.model for trace in traces])
    if metadata.get("contexts"):  # the log is one of the run's model now
        metadata["contexts"] = [
            {**c, "model": None} if c["context_id"] in contexts else c for c in metadata["contexts"]
        ]
    return (_under(table, context_id=first.context_id) for table in _interleaved(in_order)), metadata


def _check_order(trace: Trace) -> None:
    """Refuse a log whose lines have no order that another log shares."""
    if trace.batch.min() >= 0:
        return
    if trace.request.max() >= _REQUESTS_IN_ORDER:
        raise TraceError(trace.path, None, "its ubatches are not recorded and its request ids do not fit 31 bits")
    if (np.diff((trace.request << 32) | trace.token) < 0).any():
        raise TraceError(trace.path, None, "its ubatches are not recorded and its tokens are not in order")


def _lines(trace: Trace, before: list[Trace]) -> Iterator[pa.Table]:
    """The lines of `trace`. Parts of one log all have its lines that are no events: those of the first are taken."""
    same = next((other for other in before if other.context_id == trace.context_id), None)
    if same is not None and same.n_lost != trace.n_lost:
        reason = f"lost {trace.n_lost} events, {same.path} {same.n_lost}: they are not parts of one log"
        raise TraceError(trace.path, None, reason)
    for table in lines_again(trace):
        yield table if same is None else table.filter(pc.equal(table["type"], "event"))


def _interleaved(traces: list[Trace]) -> Iterator[pa.Table]:
    """The lines of all logs, ubatch by ubatch, within one in the order of `traces`.

    Lines are held back only while a log may still bring a line of their ubatch. A line that is no event stands before
    the next event of its log.
    """
    unread = [_lines(trace, traces[:i]) for i, trace in enumerate(traces)]
    held = [SCHEMA.empty_table() for _ in traces]
    recorded = bool(traces[0].batch.min() >= 0)
    ends = [-1] * len(traces)  # place of each log's last event so far; its ubatch may go on
    while min(ends) < _END:
        log = ends.index(min(ends))
        table = next(unread[log], None)
        held[log] = held[log] if table is None else pa.concat_tables([held[log], table])
        places = [_places(table, recorded=recorded) for table in held]
        ends[log] = _END if table is None else max(places[log][places[log] < _END], default=-1)
        # The last lines of a log that are no events wait for the event that follows them.
        ready = [place < min(ends) if min(ends) < _END else place <= _END for place in places]
        order = np.argsort(np.concatenate([p[r] for p, r in zip(places, ready, strict=True)]), kind="stable")
        parts = [table.filter(pa.array(r)) for table, r in zip(held, ready, strict=True)]
        held = [table.filter(pa.array(~r)) for table, r in zip(held, ready, strict=True)]
        if len(order):
            yield pa.concat_tables(parts).take(pa.array(order))


def _places(table: pa.Table, *, recorded: bool) -> Array:
    """int64[rows]: where each line stands: the ubatch of the event, for other lines that of the next event.

    Where ubatches are not recorded, request and token take their place.
    """
    events = np.flatnonzero(pc.equal(table["type"], "event").to_numpy())
    if recorded:
        place = table["batch_id"].take(pa.array(events)).to_numpy()
    else:
        request, token = (table[name].take(pa.array(events)).to_numpy() for name in ("request_id", "token_index"))
        place = (request << 32) | token
    following = np.searchsorted(events, np.arange(table.num_rows))
    return np.append(place, _END)[following]


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
    reason = (
        f"has other tokens in ubatch {ubatch} than {one.path.name}: these are not devices of one context. The context "
        "of a draft model or an MTP layer has ubatches, and a cache, of its own: use its log by itself"
    )
    raise TraceError(other.path, None, reason)


# --- runs -----------------------------------------------------------------------------------------------------------


def _runs(traces: list[Trace]) -> tuple[Iterator[pa.Table], Metadata]:
    for trace in traces[1:]:
        _same_model(traces[0], trace)
    for name in ("request", "batch"):
        n_before = 0
        for trace in traces:
            n_before += int(getattr(trace, name).max()) + 1
            if n_before - 1 > _END:
                reason = f"its {name} ids, counted on from those of the logs before, do not fit 63 bits"
                raise TraceError(trace.path, None, reason)
    metadata = _common(traces)
    return _one_after_another(traces, metadata["run_id"]), metadata


def _one_after_another(traces: list[Trace], run_id: str) -> Iterator[pa.Table]:
    n_requests = n_batches = n_generations = 0
    for trace in traces:
        last = 0  # generation
        recorded = bool(trace.batch.min() >= 0)
        for lines in lines_again(trace):
            table = _under(lines, run_id=run_id, context_id=traces[0].context_id)
            table = _replaced(table, "request_id", pc.add(table["request_id"], n_requests))
            if recorded:
                table = _replaced(table, "batch_id", pc.add(table["batch_id"], n_batches))
            for name in ("resident_experts", "generation"):
                last = max(last, pc.max(table[name]).as_py() or 0)
                if last + n_generations > _END:
                    reason = "its generations, counted on from those of the logs before, do not fit 63 bits"
                    raise TraceError(trace.path, None, reason)
                table = _replaced(table, name, pc.add(table[name], n_generations))
            yield table
        n_generations += last + 1
        n_requests += int(trace.request.max()) + 1
        n_batches += int(trace.batch.max()) + 1


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
    metadata["model"] = run_json.in_common([trace.model for trace in traces])
    metadata.pop("contexts", None)
    metadata.pop("edits", None)
    if not all(run_json.has_timings(trace.metadata) for trace in traces):
        metadata["timings"] = False
    runs = [{"run_id": t.run_id, "context_id": t.context_id, "edits": t.metadata.get("edits") or []} for t in traces]
    digest = hashlib.sha256(repr(runs).encode()).hexdigest()[:12]
    return run_json.edited({**metadata, "run_id": f"merged-{digest}"}, "merge", runs=runs)
