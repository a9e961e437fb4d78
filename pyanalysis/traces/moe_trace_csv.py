"""CSV of llama-moe-trace: `pos,layer,id0,id1,...`, one row per layer and token, with or without that header.

The prompt has negative positions, -n to -1 within a batch of n tokens; those of a second batch go on below, and the
ubatches of one batch repeat them. Decoded tokens count from 0. Rows come ubatch by ubatch, in each layer by layer. What
is made of it is in traces/FOREIGN.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyanalysis.traces import metadata as run_json
from pyanalysis.traces.errors import Problem
from pyanalysis.traces.foreign import (
    INT32_END,
    Columns,
    check_decode_layers,
    chunks_of,
    csv_rows,
    no_event,
    padded,
    split_lines,
    stacked,
    text_blocks,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyanalysis.traces.log import Chunk, OnProblem
    from pyanalysis.traces.metadata import Metadata
    from pyanalysis.traces.trace import Array, Trace

_HEADER = re.compile(rb"pos,layer(,[A-Za-z_0-9]+)+\r?\n")
_FIRST_ROW = re.compile(rb"(pos,layer(,[A-Za-z_0-9]+)+|-?[0-9]+,[0-9]+(,-?[0-9]+)+)\r?(\n|$)")
_ALPHABET = re.compile(rb"[-0-9,\r\n]*")
_N_PLACE = 2  # pos and layer


def recognises(head: bytes) -> bool:
    """Whether a file that begins like this is such a CSV."""
    return _FIRST_ROW.match(head) is not None


class MoeTraceReader:
    """See log.Reader. Memory: the columns of the whole trace."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes = ["llama-moe-trace records no number of experts, router weights or model: ids must be below 65,536"]
        self.metadata: Metadata | None = run_json.blank(path.stem)

    def chunks(self, on_problem: OnProblem) -> Iterator[Chunk]:
        return chunks_of(self.trace(on_problem))

    def trace(self, on_problem: OnProblem) -> Trace:
        """See log.WholeReader."""
        pos, layer, ids, line = self._rows(on_problem)
        if len(pos) == 0:
            columns = no_event(self.path, on_problem)
        else:
            self._check_order(pos, layer, line, on_problem)
            columns = self._columns(pos, layer, ids, line, on_problem)
            check_decode_layers(self.path, columns, "the token at position", on_problem)
        assert self.metadata is not None  # noqa: S101 - set by __init__
        return columns.trace(self.path, self.metadata)

    # --- lines ------------------------------------------------------------------------------------------------------

    def _rows(self, on_problem: OnProblem) -> tuple[Array, Array, Array, Array]:
        """(pos int64[n], layer int64[n], ids int64[n, k], line int64[n])."""
        places, ids, lines = [np.empty((0, 2), np.int64)], [], [np.empty(0, np.int64)]
        for first, text in text_blocks(self.path):
            n_header = len(match[0]) if first == 1 and (match := _HEADER.match(text)) else 0
            number, block = first + (n_header > 0), text[n_header:]
            if not block:
                continue
            values, numbers = self._fast(number, block) or self._slow(number, block, on_problem)
            places.append(values[:, :_N_PLACE])
            ids.append(values[:, _N_PLACE:])
            lines.append(numbers)
        place = np.concatenate(places)
        return place[:, 0], place[:, 1], stacked(ids, -1), np.concatenate(lines)

    def _fast(self, first: int, block: bytes) -> tuple[Array, Array] | None:
        n_fields = block[: block.find(b"\n")].count(b",") + 1
        names = [str(i) for i in range(n_fields)]
        try:
            table = csv_rows(block, dict.fromkeys(names, pa.int64()), _ALPHABET)
        except ValueError:  # Arrow's errors are ValueErrors
            return None
        values = np.stack([table[name].to_numpy() for name in names], axis=1)
        in_range = (values[:, 1:] >= 0).all() and (np.abs(values) < INT32_END).all()
        if n_fields <= _N_PLACE or not in_range:
            return None
        return values, np.arange(first, first + len(values))

    def _slow(self, first: int, block: bytes, on_problem: OnProblem) -> tuple[Array, Array]:
        rows, numbers = [], []
        for number, text, is_whole in split_lines(first, block):
            try:
                if not is_whole:
                    raise ValueError("the last line has no line end: the file was cut off; remove the line")  # noqa: TRY301
                rows.append(_row(text))
                numbers.append(number)
            except ValueError as error:  # noqa: PERF203 - the slow way on purpose
                on_problem(Problem(self.path, number, str(error)))
        values = padded(rows, -1, np.int64) if rows else np.empty((0, _N_PLACE + 1), np.int64)
        return values, np.array(numbers, dtype=np.int64)

    # --- order ------------------------------------------------------------------------------------------------------

    def _check_order(self, pos: Array, layer: Array, line: Array, on_problem: OnProblem) -> None:
        """What check_trace could not see once rows have become ubatches."""
        before, after = pos[:-1], pos[1:]
        falls = (after >= 0) & (before >= 0) & (after < before) & (after > 0)
        same_falls = (after >= 0) & (after == before) & (layer[1:] < layer[:-1])
        for index in np.flatnonzero(falls).tolist():
            reason = f"unsorted tokens: pos is {after[index]} after {before[index]}; only 0 begins a new sequence"
            on_problem(Problem(self.path, int(line[index + 1]), reason))
        for index in np.flatnonzero(same_falls).tolist():
            reason = f"unsorted layers: layer {layer[index + 1]} of pos {after[index]} comes after layer {layer[index]}"
            on_problem(Problem(self.path, int(line[index + 1]), reason))

    def _columns(self, pos: Array, layer: Array, ids: Array, line: Array, on_problem: OnProblem) -> Columns:
        prefill = pos < 0
        change = np.concatenate([[True], prefill[1:] != prefill[:-1]])
        falls = np.concatenate([[True], layer[1:] < layer[:-1]])
        moves = np.concatenate([[True], pos[1:] != pos[:-1]])
        # With one layer nothing but the position shows that a ubatch of the prompt ends.
        back = np.concatenate([[True], pos[1:] <= pos[:-1]]) & prefill & (layer.min() == layer.max())
        begins = change | falls | back | (~prefill & moves)
        restarts = np.concatenate([[False], ~prefill[:-1] & (prefill[1:] | ((pos[1:] == 0) & (pos[:-1] > 0)))])
        request = np.cumsum(restarts)
        batch = np.cumsum(begins) - 1
        token = self._tokens(pos, request, batch, line, on_problem)
        first_of_request = np.concatenate([[True], request[1:] != request[:-1]])
        if not prefill[first_of_request].all():
            self.notes.append("a sequence has no prompt, its positions count from its first decoded token")
            batch = np.full(len(pos), -1)
        return Columns(request, token, layer, (~prefill).astype(np.uint8), batch, ids, line)

    def _tokens(self, pos: Array, request: Array, batch: Array, line: Array, on_problem: OnProblem) -> Array:
        """int64[n]: place of each row's token in its request: the prompt's ubatches one after another, then `pos`."""
        token: Array = pos.copy()
        n_batches = int(batch[-1]) + 1
        first = np.searchsorted(batch, np.arange(n_batches))
        lowest = np.minimum.reduceat(pos, first)
        highest = np.maximum.reduceat(pos, first)
        n_prompt = np.zeros(int(request[-1]) + 1, dtype=np.int64)
        for index in np.flatnonzero(lowest < 0).tolist():
            rows = slice(first[index], first[index + 1] if index + 1 < n_batches else len(pos))
            missing = np.setdiff1d(np.arange(lowest[index], highest[index] + 1), pos[rows])
            if missing.size:
                reason = f"missing tokens: no row of the prompt's batch has pos {missing[0]}"
                on_problem(Problem(self.path, int(line[first[index]]), reason))
            token[rows] += n_prompt[request[first[index]]] - lowest[index]
            n_prompt[request[first[index]]] += highest[index] - lowest[index] + 1
        decode = pos >= 0
        token[decode] += n_prompt[request[decode]]
        return token


def _row(text: bytes) -> list[int]:
    """The numbers of a line. Raises ValueError with the reason."""
    if not text.strip():
        raise ValueError("the line is empty")
    fields = text.split(b",")
    if len(fields) <= _N_PLACE:
        raise ValueError(f"a row must be pos,layer,id0,..., got {len(fields)} fields")
    return [
        whole_number("pos", fields[0], 1 - INT32_END),
        whole_number("layer", fields[1], 0),
        *(whole_number("expert id", field, 0) for field in fields[_N_PLACE:]),
    ]
