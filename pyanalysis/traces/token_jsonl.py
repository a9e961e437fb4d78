"""JSON Lines `{"tok": n, "layers": [[ids], ...]}`: one decoded token per line, one list of ids per MoE layer.

What is made of it is in traces/FOREIGN.md.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from pyanalysis.traces import metadata as run_json
from pyanalysis.traces.errors import Problem
from pyanalysis.traces.foreign import INT32_END, Columns, chunks_of, no_event, padded, split_lines, stacked, text_blocks
from pyanalysis.traces.lines import LineError, shown, unique

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyanalysis.traces.log import Chunk, OnProblem
    from pyanalysis.traces.metadata import Metadata
    from pyanalysis.traces.trace import Array, Trace

_SCHEMA = pa.schema([("tok", pa.int64()), ("layers", pa.list_(pa.list_(pa.int64())))])
_KEYS = re.compile(rb'"([^"\\]*)"\s*:')


def recognises(head: bytes) -> bool:
    """Whether a file that begins like this is such a trace: its first line has these names, and no record's type."""
    line = head.split(b"\n", 1)[0]
    names = set(_KEYS.findall(line))
    return line.lstrip().startswith(b"{") and {b"tok", b"layers"} <= names and b"type" not in names


class TokenJsonlReader:
    """See log.Reader. Memory: the columns of the whole trace."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes = [
            "prompt, ubatches, router weights, model and number of experts are not recorded: ids must be below 65,536",
            "layers are counted from 0 over the MoE layers",
        ]
        self.metadata: Metadata | None = run_json.blank(path.stem)
        # A token that is decoded sees every layer, the last one too.
        self.metadata["model"]["layers_with_output_rows_only"] = []
        self._n_layers: int | None = None
        self._more: set[str] = set()

    def chunks(self, on_problem: OnProblem) -> Iterator[Chunk]:
        return chunks_of(self.trace(on_problem))

    def trace(self, on_problem: OnProblem) -> Trace:
        """See log.WholeReader."""
        columns = self._columns(on_problem)
        assert self.metadata is not None  # noqa: S101 - set by __init__
        return columns.trace(self.path, self.metadata)

    def _columns(self, on_problem: OnProblem) -> Columns:
        tokens, ids, lines = [np.empty(0, np.int64)], [], [np.empty(0, np.int64)]
        for first, block in text_blocks(self.path):
            tok, rows, numbers = self._fast(first, block) or self._slow(first, block, on_problem)
            tokens.append(tok)
            ids.append(rows)
            lines.append(numbers)
        if self._more:
            self.notes.append(f"unknown fields are left out: {', '.join(sorted(self._more))}")
        tok, line = np.concatenate(tokens), np.concatenate(lines)
        if self._n_layers is None:
            return no_event(self.path, on_problem)
        request = self._requests(tok, line, on_problem)
        n = len(tok)
        return Columns(
            request=np.repeat(request, self._n_layers),
            token=np.repeat(tok, self._n_layers),
            layer=np.tile(np.arange(self._n_layers), n),
            phase=np.ones(n * self._n_layers),
            batch=np.full(n * self._n_layers, -1),
            ids=stacked(ids, -1),
            line=np.repeat(line, self._n_layers),
        )

    def _requests(self, tok: Array, line: Array, on_problem: OnProblem) -> Array:
        """int64[n]: a sequence begins where `tok` returns to the first of the file."""
        falls = np.concatenate([[False], tok[1:] <= tok[:-1]])
        restarts = falls & (tok == tok[0]) & np.concatenate([[False], tok[1:] != tok[:-1]])
        for index in np.flatnonzero(falls & ~restarts).tolist():
            reason = f"unsorted tokens: tok is {tok[index]} after {tok[index - 1]}; only {tok[0]} begins a new sequence"
            on_problem(Problem(self.path, int(line[index]), reason))
        return np.cumsum(restarts)

    # --- lines: each gives (tok int64[m], ids [m * layers, k], line int64[m]) -----------------------------------------

    def _fast(self, first: int, block: bytes) -> tuple[Array, Array, Array] | None:
        """None unless every line is sound, of the same number of layers and of experts."""
        n_lines = block.count(b"\n")
        if not block.endswith(b"\n") or block.count(b"}\n") != n_lines or block.count(b'":') != 2 * n_lines:
            return None
        options = pa_json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="error")
        try:
            table = pa_json.read_json(
                pa.BufferReader(block), read_options=pa_json.ReadOptions(block_size=len(block)), parse_options=options
            )
        except pa.ArrowInvalid:
            return None
        layers = table["layers"].combine_chunks()
        lists = layers.flatten()
        items = lists.flatten()
        if table.num_rows != n_lines or table["tok"].null_count or any(a.null_count for a in (layers, lists, items)):
            return None
        values, tok = items.to_numpy(), table["tok"].to_numpy()
        n_layers, k = len(lists) // n_lines, len(items) // max(len(lists), 1)
        same = (np.diff(layers.offsets) == n_layers).all() and (np.diff(lists.offsets) == k).all()
        in_range = (values >= 0).all() and (values < INT32_END).all() and (tok >= 0).all() and (tok < INT32_END).all()
        if not (same and in_range) or k == 0 or self._n_layers not in (None, n_layers):
            return None
        self._n_layers = n_layers
        return tok, values.reshape(-1, k), np.arange(first, first + n_lines)

    def _slow(self, first: int, block: bytes, on_problem: OnProblem) -> tuple[Array, Array, Array]:
        tokens: list[int] = []
        rows: list[list[int]] = []
        numbers = []
        for number, text, is_whole in split_lines(first, block):
            try:
                tok, layers = self._line(text, is_whole=is_whole)
            except ValueError as error:
                on_problem(Problem(self.path, number, str(error)))
                continue
            tokens.append(tok)
            rows += layers
            numbers.append(number)
        return np.array(tokens, dtype=np.int64), padded(rows, -1, np.int64), np.array(numbers, dtype=np.int64)

    def _line(self, text: bytes, *, is_whole: bool) -> tuple[int, list[list[int]]]:
        """(tok, ids of each layer). Raises ValueError with the reason."""
        if not text.strip():
            raise ValueError("the line is empty")
        try:
            record = json.loads(text, object_pairs_hook=unique)
        except LineError:
            raise
        except (ValueError, RecursionError) as error:
            why = "not JSON" if is_whole else "the last line is cut off; remove it"
            raise ValueError(f"{why}: {error}") from None
        if not isinstance(record, dict) or not {"tok", "layers"} <= record.keys():
            raise ValueError(f"a line must be an object with tok and layers, got {shown(record)}")
        tok, layers = record["tok"], record["layers"]
        if not _is_id(tok):
            raise ValueError(f"tok must be a whole number from 0 to {INT32_END - 1}, got {shown(tok)}")
        if not isinstance(layers, list) or not layers or not all(isinstance(ids, list) for ids in layers):
            raise ValueError(f"layers must be a list of lists of expert ids, got {shown(layers)}")
        for layer, ids in enumerate(layers):
            if not ids or not all(map(_is_id, ids)):
                raise ValueError(f"layers[{layer}] must be expert ids from 0 to {INT32_END - 1}, got {shown(ids)}")
        if self._n_layers not in (None, len(layers)):
            raise ValueError(
                f"missing layers: it has {len(layers)}, the lines before {self._n_layers}, or two models are mixed"
            )
        self._n_layers = len(layers)
        self._more |= record.keys() - {"tok", "layers"}
        return tok, layers


def _is_id(value: Any) -> bool:  # noqa: ANN401 - any JSON
    return type(value) is int and 0 <= value < INT32_END
