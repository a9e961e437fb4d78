"""What the readers of other programs' traces share: lines of a text, and the way from columns to a Trace.

These programs write no end record: a file is taken for whole unless its last line is cut off or a token lacks layers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from pyanalysis.traces.errors import Problem, TraceError
from pyanalysis.traces.log import Chunk
from pyanalysis.traces.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyanalysis.traces.log import OnProblem
    from pyanalysis.traces.metadata import Metadata
    from pyanalysis.traces.trace import Array

_BLOCK_BYTES = 8 << 20
_LONGEST_LINE_BYTES = 64 << 20  # a token of 100 layers and top-64 takes 40 KiB; this is for files that are no traces
_WHOLE_NUMBER = re.compile(rb"-?[0-9]{1,18}")
INT32_END = 2**31


@dataclass
class Columns:
    """The events of a file in the order of Trace. n events, k the largest top-k; `line` counts from 1."""

    request: Array  # int64[n]
    token: Array  # int32[n]
    layer: Array  # int32[n]
    phase: Array  # uint8[n], 0 prefill, 1 decode
    batch: Array  # int64[n], -1 where not recorded
    ids: Array  # int32[n, k], -1 behind the last
    line: Array  # int64[n]
    weights: Array | None = None  # float32[n, k], NaN where not recorded

    @staticmethod
    def empty() -> Columns:
        none = np.empty(0)
        return Columns(none, none, none, none, none, ids=np.empty((0, 0)), line=none)

    def trace(self, path: Path, metadata: Metadata) -> Trace:
        n = len(self.request)
        return Trace(
            path=path,
            metadata=metadata,
            run_id=metadata["run_id"],
            context_id=0,
            families=("exps",),
            request=self.request.astype(np.int64),
            token=self.token.astype(np.int32),
            layer=self.layer.astype(np.int32),
            family=np.zeros(n, dtype=np.uint8),
            phase=self.phase.astype(np.uint8),
            batch=self.batch.astype(np.int64),
            ids=self.ids.astype(np.int32),
            weights=self.weights,
            top1=None,
            line=self.line.astype(np.int64),
            overflows=np.empty((0, 3), dtype=np.int64),
            n_lost=0,
            complete=True,
            notes=(),
        )


def chunks_of(trace: Trace) -> Iterator[Chunk]:
    """The events of a trace without overflows as a log's lines, closed by an end record; nothing of an empty trace."""
    if trace.n_events == 0:
        return
    begin = 0
    for table in trace.tables():
        lines = trace.line[begin : begin + table.num_rows]
        begin += table.num_rows
        if begin > trace.n_events:  # the end record has no line of its own
            lines = trace.line[-1:]
        yield Chunk(table, lines, min(begin / trace.n_events, 1))


def no_event(path: Path, on_problem: OnProblem) -> Columns:
    """Report a file without a good line, and go on with no columns."""
    on_problem(Problem(path, None, "is empty: it has no complete line"))
    return Columns.empty()


def text_blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, whole lines), some 8 MiB at once; the last line of a file may lack its line end.

    Raises TraceError if the file cannot be read or is no text of lines.
    """
    first, left = 1, b""
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                text = left + block
                end = text.rfind(b"\n") + 1
                left = text[end:]
                if len(left) > _LONGEST_LINE_BYTES:
                    raise TraceError(path, first + text.count(b"\n"), "is longer than 64 MiB: the file is no trace")
                if end:
                    yield first, text[:end]
                    first += text.count(b"\n", 0, end)
    except OSError as error:
        raise TraceError(path, None, f"cannot be read: {error.strerror}") from None
    if left:
        yield first, left


def csv_rows(block: bytes, kinds: dict[str, pa.DataType], alphabet: re.Pattern[bytes]) -> pa.Table:
    """The rows of a block in which every line is sound.

    Raises ValueError if it is not: another number of fields, other characters than `alphabet`, an empty line, a last
    line without line end. Arrow alone would take hexadecimal numbers and pass over empty lines.
    """
    if not block.endswith(b"\n") or not alphabet.fullmatch(block):
        raise ValueError("not plain rows")
    table = pa_csv.read_csv(
        pa.BufferReader(block),
        read_options=pa_csv.ReadOptions(column_names=list(kinds), block_size=_BLOCK_BYTES * 2),
        parse_options=pa_csv.ParseOptions(quote_char=False),
        convert_options=pa_csv.ConvertOptions(column_types=kinds, null_values=[], strings_can_be_null=False),
    )
    if table.num_rows != block.count(b"\n"):
        raise ValueError("an empty line")
    return table


def split_lines(first: int, block: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """(line number, text without its end, whether it has its line end)."""
    lines = block.split(b"\n")
    for number, line in enumerate(lines[:-1], first):
        yield number, line.removesuffix(b"\r"), True
    if lines[-1]:
        yield first + len(lines) - 1, lines[-1], False


def whole_number(name: str, text: bytes, least: int, end: int = INT32_END) -> int:
    """The number in a CSV field. Raises ValueError with the reason."""
    value = int(text) if _WHOLE_NUMBER.fullmatch(text) else None
    if value is None or not least <= value < end:
        raise ValueError(f"{name} must be a whole number from {least} to {end - 1}, got {shown_text(text)}")
    return value


def shown_text(text: bytes) -> str:
    """`text` as it may stand in a message: quoted, shortened, whatever bytes it has."""
    words = text.decode("utf-8", errors="replace")
    return repr(words if len(words) <= 40 else words[:37] + "...")  # noqa: PLR2004 - as lines.shown


def padded(rows: Sequence[Sequence[float]], fill: float, kind: type) -> Array:
    """Lists of one or several lengths as rows of an array, `fill` behind the last of each."""
    result: Array = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype=kind)
    for index, row in enumerate(rows):
        result[index, : len(row)] = row
    return result


def stacked(parts: Sequence[Array], fill: float) -> Array:
    """Arrays of one or several widths below each other."""
    width = max((part.shape[1] for part in parts), default=0)
    wide = [np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=fill) for p in parts]
    return np.concatenate(wide) if wide else np.empty((0, 0))


def check_decode_layers(path: Path, columns: Columns, name: str, on_problem: OnProblem) -> None:
    """Report decode tokens without an event of the last layer; `name`: what the format calls a token.

    check_trace cannot: of a model that it does not know the last layer may see only the tokens whose logits are wanted,
    which a token that is decoded always is.
    """
    decode = columns.phase == 1
    if not decode.any():
        return
    last = columns.layer.max()
    key = columns.request.astype(np.int64) << 32 | columns.token
    _, first, token = np.unique(key[decode], return_index=True, return_inverse=True)
    seen = np.zeros(len(first), dtype=bool)
    seen[token[columns.layer[decode] == last]] = True
    lines, tokens = columns.line[decode][first], columns.token[decode][first]
    for index in np.flatnonzero(~seen).tolist():
        reason = f"missing layers: {name} {tokens[index]} has no event of layer {last}"
        on_problem(Problem(path, int(lines[index]), reason))
