"""The file beside a routing log that holds its column `top1_token`, and its place among the log's events.

Python's eval callback writes it while the plugin's writer thread writes the log; here both become one table.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyanalysis.traces.errors import Problem, TraceError
from pyanalysis.traces.lines import shown
from pyanalysis.traces.table import SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

    from pyanalysis.traces.log import OnProblem
    from pyanalysis.traces.trace import Array

_COUNTS = ("context_id", "batch_id", "layer_id")
_LIMIT = 2**63


def path_for(log: Path) -> Path:
    """Where the top1 tokens of the log NAME.jsonl are: NAME.top1.jsonl."""
    return log.with_name(f"{log.stem}.top1.jsonl")


def open_beside(log: Path) -> Top1 | None:
    """The top1 tokens of `log`, None if it has none. Raises TraceError if their file is malformed."""
    path = path_for(log)
    return Top1(path) if path.exists() else None


class Top1:
    """The tokens of one file, by ubatch, layer and row. Memory: 32 bytes per token.

    A row is that of the token among those the layer sees in the ubatch, so the row of an event is its place among the
    events of its ubatch, layer and family. Where events were lost, rows are not known, from the gap to the end of the
    ubatch: those events count as not sampled.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self._n_spoiled = 0
        self._run: tuple[str, int] | None = None
        keys, tokens = self._read()
        order = np.lexsort(keys.T[::-1])
        self._keys, self._tokens = keys[order], tokens[order]
        twice = (self._keys[1:] == self._keys[:-1]).all(axis=1)
        if twice.any():
            batch, layer, row = self._keys[1:][twice][0]
            raise TraceError(path, None, f"row {row} of layer {layer} in ubatch {batch} is recorded twice")
        self._seen = np.zeros(len(tokens), dtype=bool)
        self._last: tuple[int, int, str] | None = None  # ubatch, layer and family of the event before
        self._n_before = 0  # events of it so far
        self._gap = False  # an overflow line, and no event since
        self._spoiled = -1  # ubatch in which rows are no longer known

    # --- the file ---------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[Array, Array]:
        """(int64[n, 3] of ubatch, layer and row, int64[n] tokens) of all lines."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise TraceError(self.path, None, f"cannot be read: {error.strerror}") from None
        if lines[-1]:
            self.notes.append(f"{self.path.name}: line {len(lines)} is cut off and left out")
        keys, tokens, ended = [np.empty((0, 3), np.int64)], [np.empty(0, np.int64)], False
        for number, line in enumerate(lines[:-1], 1):
            record = self._record(number, line)
            if ended:
                raise TraceError(self.path, number, "stands after the end record")
            if record["type"] == "end":
                ended = True
                n_tokens = sum(map(len, tokens))
                if record.get("n_tokens") != n_tokens:
                    reason = f"the end record counts {shown(record.get('n_tokens'))} tokens, the file has {n_tokens}"
                    raise TraceError(self.path, number, reason)
                continue
            rows = np.array(record["rows"], dtype=np.int64)
            place = np.full((len(rows), 3), (record["batch_id"], record["layer_id"], 0), dtype=np.int64)
            place[:, 2] = rows
            keys.append(place)
            tokens.append(np.array(record["tokens"], dtype=np.int64))
        if not ended:
            self.notes.append(f"{self.path.name}: no end record: top1_token may be missing on the last tokens")
        return np.concatenate(keys), np.concatenate(tokens)

    def _record(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError:
            raise TraceError(self.path, number, "not JSON") from None
        reason = _reason_against(record)
        if reason is None:
            run = (record["run_id"], record["context_id"])
            self._run = self._run or run
            if run != self._run:
                before, context = self._run
                reason = f"is of run {run[0]!r}, context {run[1]}; the lines before are of {before!r}, {context}"
        if reason is not None:
            raise TraceError(self.path, number, reason)
        checked: dict[str, Any] = record
        return checked

    # --- the log ----------------------------------------------------------------------------------------------------

    def fill(self, table: pa.Table) -> pa.Table:
        """The next chunk of the log with its `top1_token`: -1 on events that were not sampled. Raises TraceError."""
        is_event = pc.equal(table["type"], "event").to_numpy()
        events = table.filter(pa.array(is_event))
        if events["top1_token"].null_count < events.num_rows:
            raise TraceError(self.path, None, "stands beside a log whose events have top1_token already; remove one")
        self._one_run(table)
        batch, layer, rows = self._rows(table, is_event)
        wanted = np.stack([batch, layer, rows], axis=1)
        place, found = self._find(wanted)
        values = np.where(found, self._tokens[place] if len(self._tokens) else -1, -1)
        self._seen[place[found]] = True
        column = np.zeros(table.num_rows, dtype=np.int64)
        column[is_event] = values
        index = SCHEMA.get_field_index("top1_token")
        return table.set_column(index, SCHEMA.field(index), pa.array(column, pa.int64(), mask=~is_event))

    def close(self, on_problem: OnProblem, *, complete: bool) -> None:
        """After the last chunk. Every token must have found its event, unless the log ends early or lost events."""
        if self._n_spoiled:
            lost = f"{self._n_spoiled} events behind lost ones have no top1_token: their rows are not known"
            self.notes.append(f"{self.path.name}: {lost}")
        n_left = int((~self._seen).sum())
        if n_left and complete and not self._n_spoiled:
            batch, layer, row = self._keys[~self._seen][0]
            first = f"row {row} of layer {layer} in ubatch {batch}"
            on_problem(Problem(self.path, None, f"{n_left} tokens have no event in the log; the first is {first}"))

    def _one_run(self, table: pa.Table) -> None:
        if self._run is None:
            return
        for name, mine in zip(("run_id", "context_id"), self._run, strict=True):
            others = [value for value in pc.unique(table[name]).to_pylist() if value not in (None, mine)]
            if others:
                raise TraceError(self.path, None, f"{name} is {mine!r}, that of the log is {others[0]!r}")

    def _rows(self, table: pa.Table, is_event: Array) -> tuple[Array, Array, Array]:
        """Ubatch, layer and row of each event of a chunk: int64[e] each. Row -1: not known."""
        events = table.filter(pa.array(is_event))
        n = events.num_rows
        batch = events["batch_id"].to_numpy()
        layer = events["layer_id"].to_numpy().astype(np.int64)
        family = events["family"].to_numpy()
        rows = np.zeros(n, dtype=np.int64)
        if n:
            starts = np.ones(n, dtype=bool)
            starts[1:] = (batch[1:] != batch[:-1]) | (layer[1:] != layer[:-1]) | (family[1:] != family[:-1])
            starts[0] = (int(batch[0]), int(layer[0]), str(family[0])) != self._last
            first = np.maximum.accumulate(np.where(starts, np.arange(n), 0))
            rows = np.arange(n) - first
            carried = np.cumsum(starts) == 0
            rows[carried] += self._n_before
            self._last = (int(batch[-1]), int(layer[-1]), str(family[-1]))
            self._n_before = int(rows[-1]) + 1
        return batch, layer, np.where(self._known(table, is_event, batch), rows, -1)

    def _known(self, table: pa.Table, is_event: Array, batch: Array) -> Array:
        """bool[e]: which events of a chunk have no lost events before them in their ubatch."""
        known: Array = batch != self._spoiled
        overflows = np.flatnonzero(pc.equal(table["type"], "overflow").to_numpy())
        gaps: list[int] = np.searchsorted(np.flatnonzero(is_event), overflows).tolist()
        gaps = [0, *gaps] if self._gap else gaps
        self._gap = bool(gaps) and gaps[-1] == len(batch)
        for event in gaps:
            if event < len(batch):
                self._spoiled = int(batch[event])
                known[event:] &= batch[event:] != self._spoiled
        self._n_spoiled += int((~known).sum())
        return known

    def _find(self, wanted: Array) -> tuple[Array, Array]:
        """For each (ubatch, layer, row) of `wanted` its place among the tokens, and whether it is there."""
        if not len(self._keys) or not len(wanted):
            return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
        both = np.concatenate([self._keys, wanted])
        order = np.lexsort((np.arange(len(both)), *both.T[::-1]))
        is_key = order < len(self._keys)
        nearest = np.maximum.accumulate(np.where(is_key, order, -1))
        place = np.empty(len(both), dtype=np.int64)
        place[order] = nearest
        place = np.maximum(place[len(self._keys) :], 0)
        return place, (self._keys[place] == wanted).all(axis=1)


def _reason_against(record: object) -> str | None:
    if not isinstance(record, dict) or record.get("type") not in ("top1", "end"):
        return "is no record of top1 tokens: type must be top1 or end"
    if not isinstance(record.get("run_id"), str):
        return f"run_id must be a string, got {shown(record.get('run_id'))}"
    for name in _COUNTS if record["type"] == "top1" else _COUNTS[:1]:
        if not _is_count(record.get(name)):
            return f"{name} must be a whole number of at least 0, got {shown(record.get(name))}"
    return None if record["type"] == "end" else _reason_against_tokens(record)


def _reason_against_tokens(record: dict[str, Any]) -> str | None:
    for name in ("rows", "tokens"):
        values = record.get(name)
        if not isinstance(values, list) or not all(map(_is_count, values)):
            return f"{name} must be a list of whole numbers of at least 0, got {shown(values)}"
    if len(record["rows"]) != len(record["tokens"]):
        return f"rows has {len(record['rows'])} entries, tokens has {len(record['tokens'])}"
    return None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LIMIT
