"""CSV `route_trace v1`: a preamble of comments, then one row per routed expert in the router's order.

    # route_trace v1
    # model=<path> arch=<string> n_layer=<int> n_expert=<int> n_expert_used=<int>
    # layer=<int> expert_bytes=<int> dense_bytes=<int>
    turn,phase,step,layer,slot,expert,weight,residency,expert_bytes[,dropped]

The rows of one event (turn, phase, step, layer) follow one another, slot 0 first. What is made of it is in
traces/FOREIGN.md.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyanalysis.traces import metadata as run_json
from pyanalysis.traces.errors import Problem, TraceError
from pyanalysis.traces.foreign import (
    INT32_END,
    Columns,
    check_decode_layers,
    chunks_of,
    csv_rows,
    no_event,
    shown_text,
    split_lines,
    text_blocks,
    whole_number,
)
from pyanalysis.traces.lines import LARGEST_FLOAT32

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyanalysis.traces.log import Chunk, OnProblem
    from pyanalysis.traces.metadata import Metadata
    from pyanalysis.traces.trace import Array, Trace

_NAMES = ("turn", "phase", "step", "layer", "slot", "expert", "weight", "residency", "expert_bytes")
_KINDS = {name: pa.float32() if name == "weight" else pa.int64() for name in (*_NAMES, "dropped")}
_LEAST = {"turn": 0, "phase": 0, "step": 0, "layer": 0, "slot": 0, "expert": 0, "residency": 0, "expert_bytes": 0}
_ENDS = {"phase": 2, "residency": 3, "dropped": 2, "expert_bytes": 2**53}
_KEPT = ("turn", "phase", "step", "layer", "slot", "expert")  # int32 columns; weight is kept beside them
_COLUMNS = ",".join(_NAMES).encode()
_VERSION = re.compile(rb"# *route_trace v([0-9]{1,6})\r?(\n|$)")
_MODEL = re.compile(
    rb"# *model=(.*) arch=([^ ]*) n_layer=([0-9]{1,9}) n_expert=([0-9]{1,9}) n_expert_used=([0-9]{1,9})"
)
_LAYER = re.compile(rb"# *layer=([0-9]{1,9}) expert_bytes=([0-9]{1,15}) dense_bytes=[0-9]+")
_ALPHABET = re.compile(rb"[-+0-9.,eEnaif\r\n]*")


def recognises(head: bytes) -> bool:
    """Whether a file that begins like this is such a CSV, of whichever version."""
    if _VERSION.match(head):
        return True
    line = next((line for line in head.split(b"\n") if not line.startswith(b"#")), b"")
    return line.rstrip(b"\r") in (_COLUMNS, _COLUMNS + b",dropped")


class RouteTraceReader:
    """See log.Reader. Memory: the columns of the whole trace, 28 bytes per routed expert."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes = [
            "ubatches are not recorded in route_trace",
            "residency, expert_bytes and dropped, of the cache that wrote the file, are left out",
        ]
        self._n_preamble = 0
        self._has_dropped = False
        self.metadata: Metadata | None = self._preamble()

    # --- preamble ---------------------------------------------------------------------------------------------------

    def _preamble(self) -> Metadata:
        metadata = run_json.blank(self.path.stem)
        layouts: list[dict[str, int]] = []
        n_experts = None
        for number, text, _ in self._first_lines():
            self._n_preamble = number
            if not text.startswith(b"#"):
                self._check_names(number, text)
                break
            if match := _VERSION.match(text):
                if int(match[1]) != 1:
                    raise TraceError(self.path, number, f"is route_trace version {int(match[1])}, this program reads 1")
            elif match := _MODEL.match(text):
                if n_experts is not None:
                    raise TraceError(self.path, number, "names a second model: two traces are mixed in one file")
                n_experts = int(match[4])
                # The programs write 0 where they do not know.
                metadata["model"].update(
                    file=match[1].decode(errors="replace") or None,
                    architecture=match[2].decode(errors="replace") or None,
                    n_layers=int(match[3]) or None,
                    n_experts=n_experts or None,
                    top_k=int(match[5]) or None,
                )
            elif match := _LAYER.match(text):
                layouts.append({"layer_id": int(match[1]), "bytes": int(match[2])})
        else:
            raise TraceError(self.path, None, f"is truncated: it has no line {_COLUMNS.decode()}")
        if n_experts is None:
            self.notes.append("the preamble names no model: ids must be below 65,536")
        elif sized := [one for one in layouts if one["bytes"]]:  # 0: a layer without experts
            rest = {"family": "exps", "n_experts": n_experts, "types": None}
            metadata["model"]["expert_bytes"] = [{**one, **rest} for one in sized]
        return metadata

    def _first_lines(self) -> Iterator[tuple[int, bytes, bool]]:
        for first, block in text_blocks(self.path):
            yield from split_lines(first, block)

    def _check_names(self, number: int, text: bytes) -> None:
        self._has_dropped = text == _COLUMNS + b",dropped"
        if text != _COLUMNS and not self._has_dropped:
            raise TraceError(
                self.path,
                number,
                f"must be {_COLUMNS.decode()} or a comment that begins with #, got {shown_text(text)}",
            )

    # --- lines ------------------------------------------------------------------------------------------------------

    def chunks(self, on_problem: OnProblem) -> Iterator[Chunk]:
        return chunks_of(self.trace(on_problem))

    def trace(self, on_problem: OnProblem) -> Trace:
        """See log.WholeReader."""
        columns = self._columns(*self._rows(on_problem), on_problem)
        check_decode_layers(self.path, columns, "the token at step", on_problem)
        assert self.metadata is not None  # noqa: S101 - set by __init__
        return columns.trace(self.path, self.metadata)

    def _rows(self, on_problem: OnProblem) -> tuple[dict[str, Array], Array, Array]:
        """(int32[n] of each kept column, weights float32[n], line int64[n])."""
        parts: dict[str, list[Array]] = {name: [np.empty(0, np.int32)] for name in _KEPT}
        weights, lines = [np.empty(0, np.float32)], [np.empty(0, np.int64)]
        for number, text in text_blocks(self.path):
            n_skipped = min(max(self._n_preamble + 1 - number, 0), text.count(b"\n") + 1)
            first, block = number + n_skipped, text.split(b"\n", n_skipped)[-1]
            if not block:
                continue
            values, numbers = self._fast(first, block) or self._slow(first, block, on_problem)
            for name in _KEPT:
                parts[name].append(values[name].astype(np.int32))
            weights.append(values["weight"].astype(np.float32))
            lines.append(numbers)
        rows = {name: np.concatenate(part) for name, part in parts.items()}
        return rows, np.concatenate(weights), np.concatenate(lines)

    @property
    def _names(self) -> tuple[str, ...]:
        return (*_NAMES, "dropped") if self._has_dropped else _NAMES

    def _fast(self, first: int, block: bytes) -> tuple[dict[str, Array], Array] | None:
        names = self._names
        try:
            table = csv_rows(block, {name: _KINDS[name] for name in names}, _ALPHABET)
        except ValueError:  # Arrow's errors are ValueErrors
            return None
        values = {name: table[name].to_numpy() for name in names}
        for name in names:
            if name != "weight" and not ((values[name] >= 0) & (values[name] < _ENDS.get(name, INT32_END))).all():
                return None
        if np.isinf(values["weight"]).any():
            return None
        return values, np.arange(first, first + table.num_rows)

    def _slow(self, first: int, block: bytes, on_problem: OnProblem) -> tuple[dict[str, Array], Array]:
        rows: list[dict[str, float]] = []
        numbers = []
        for number, text, is_whole in split_lines(first, block):
            try:
                if not is_whole:
                    raise ValueError("the last line has no line end: the file was cut off; remove the line")  # noqa: TRY301
                rows.append(self._row(text))
                numbers.append(number)
            except ValueError as error:  # noqa: PERF203 - the slow way on purpose
                on_problem(Problem(self.path, number, str(error)))
        values = {name: np.array([row[name] for row in rows]) for name in self._names}
        return values, np.array(numbers, dtype=np.int64)

    def _row(self, text: bytes) -> dict[str, float]:
        """The values of a line. Raises ValueError with the reason."""
        if not text.strip():
            raise ValueError("the line is empty")
        if text.startswith(b"#"):
            raise ValueError("a comment stands among the rows: two traces are mixed in one file")
        fields = text.split(b",")
        names = self._names
        if len(fields) != len(names):
            raise ValueError(f"a row must have {len(names)} fields, got {len(fields)}")
        row: dict[str, float] = {}
        for name, field in zip(names, fields, strict=True):
            if name == "weight":
                row[name] = _weight(field)
            else:
                row[name] = whole_number(name, field, 0, _ENDS.get(name, INT32_END))
        return row

    # --- events -----------------------------------------------------------------------------------------------------

    def _columns(self, rows: dict[str, Array], weights: Array, line: Array, on_problem: OnProblem) -> Columns:
        """One event per (turn, phase, step, layer), token by token."""
        if len(line) == 0:
            return no_event(self.path, on_problem)
        key = np.stack([rows[name] for name in ("turn", "phase", "step", "layer")], axis=1)
        begins = np.concatenate([[True], (key[1:] != key[:-1]).any(axis=1)])
        event = np.cumsum(begins) - 1
        first = np.flatnonzero(begins)
        place = np.arange(len(line)) - first[event]
        wrong = rows["slot"] != place
        for index in np.flatnonzero(wrong).tolist():
            reason = f"wrong count: slot is {rows['slot'][index]}, this row is number {place[index]} of its event"
            on_problem(Problem(self.path, int(line[index]), reason))
        self._check_order(key[first], line[first], on_problem)
        k = np.bincount(event)
        ids = np.full((len(first), int(k.max())), -1, dtype=np.int32)
        ids[event, place] = rows["expert"]
        event_weights = self._event_weights(ids.shape, (event, place), weights, line[first], on_problem)
        turn, phase, step, layer = key[first].T
        # Tokens one after another, as traces without ubatches come; a prompt is written layer by layer.
        order = np.lexsort((layer, step, phase, turn))
        return Columns(
            *(turn[order], step[order], layer[order], phase[order], np.full(len(order), -1), ids[order]),
            line=line[first][order],
            weights=None if event_weights is None else event_weights[order],
        )

    def _event_weights(
        self, shape: tuple[int, ...], where: tuple[Array, Array], weights: Array, line: Array, on_problem: OnProblem
    ) -> Array | None:
        """float32 of `shape`, NaN where not recorded; None if nothing is."""
        if np.isnan(weights).all():
            return None
        result = np.full(shape, np.nan, dtype=np.float32)
        result[where] = weights
        unknown = np.bincount(where[0], np.isnan(weights), minlength=shape[0])
        known = np.bincount(where[0], ~np.isnan(weights), minlength=shape[0])
        for index in np.flatnonzero((unknown > 0) & (known > 0)).tolist():
            reason = "weight is nan for some experts of the event only; nan means that none is recorded"
            on_problem(Problem(self.path, int(line[index]), reason))
        return result

    def _check_order(self, key: Array, line: Array, on_problem: OnProblem) -> None:
        """Turns rise; within a turn the steps of each layer rise, and decode comes after the prompt."""
        turn, phase, step, layer = key.T
        for index in np.flatnonzero(turn[1:] < turn[:-1]).tolist():
            reason = f"unsorted turns: turn is {turn[index + 1]} after {turn[index]}"
            on_problem(Problem(self.path, int(line[index + 1]), reason))
        order = np.lexsort((np.arange(len(turn)), layer, turn))
        same = (turn[order][1:] == turn[order][:-1]) & (layer[order][1:] == layer[order][:-1])
        for name, values in (("step", step), ("phase", phase)):
            falls = np.zeros(len(turn), dtype=bool)
            falls[order[1:]] = same & (values[order][1:] < values[order][:-1])
            for index in np.flatnonzero(falls).tolist():
                what = "unsorted tokens" if name == "step" else "unsorted phases"
                reason = f"{what}: {name} is {values[index]} in layer {layer[index]} after a higher one of its turn"
                on_problem(Problem(self.path, int(line[index]), reason))


def _weight(field: bytes) -> float:
    try:
        value = float(field)
    except ValueError:
        value = math.inf
    if abs(value) >= LARGEST_FLOAT32:
        raise ValueError(f"weight must be a float32 number, or nan where it is not recorded, got {shown_text(field)}")
    return value
