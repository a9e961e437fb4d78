"""The log's own form, JSON Lines, streamed in chunks: a sound chunk at once, any other line by line."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pyanalysis.traces import metadata as run_json
from pyanalysis.traces import top1
from pyanalysis.traces.errors import Problem, TraceError
from pyanalysis.traces.event import RECORDS
from pyanalysis.traces.lines import LineError, TruncatedLineError, parse_line
from pyanalysis.traces.log import Chunk
from pyanalysis.traces.staging import Staged
from pyanalysis.traces.table import FIELD_SCHEMA, SCHEMA, is_valid, json_lines, table_of, with_no_cache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from pyanalysis.traces.log import OnProblem
    from pyanalysis.traces.metadata import Metadata

_CHUNK_BYTES = 8 << 20
_LONGEST_LINE_BYTES = 64 << 20  # a log's lines are some hundred bytes; this is for files that are no logs
_READ = pj.ReadOptions(block_size=_CHUNK_BYTES // 8)
# Arrow does not tell an absent field from null, so the names are counted in the text.
_NULLABLE_NAMES = [f'"{f.name}":'.encode() for f in RECORDS["event"] if f.nullable and f.required]
_OPTIONAL_NAMES = [f.name for known in RECORDS.values() for f in known if not f.required]
# How the plugin's events end while there is no cache: half of their text, always the same. Cut out before the parsing,
# which makes reading half as fast again.
_ROUTING_NAMES = ("type", *(f.name for f in RECORDS["event"][:10]))
_ROUTING_SCHEMA = pa.schema([FIELD_SCHEMA.field(name) for name in _ROUTING_NAMES])
_NO_CACHE = (
    b',"resident_experts":null,"cache_hit":[],"admitted":[],"evicted":[],"copy_enqueued_ns":null,"copy_ready_ns":null,'
    b'"ready_before_next_token":null,"copy_bytes":0,"copy_duration_ns":null,"cpu_duration_ns":null,'
    b'"cuda_duration_ns":null}\n'
)


class JsonlReader:
    """See log.Reader. Memory: one chunk of 8 MiB of text and its columns, and the top1 tokens beside the log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self._ended = False  # the end record has been read
        self.metadata = run_json.read(run_json.path_for(path))
        if self.metadata is None:
            self.notes.append(f"no {run_json.path_for(path).name} beside it: model and settings are not known")
        if changes := run_json.session_changes(self.metadata, path):
            self.notes.append(
                f"the session of its cache was imported, reset or frozen ({changes} times): a replay decides otherwise"
            )
        self._top1 = top1.open_beside(path)
        try:
            self._size = path.stat().st_size
            with path.open("rb"):
                pass
        except OSError as error:
            raise TraceError(path, None, f"cannot be read: {error.strerror}") from None

    def chunks(self, on_problem: OnProblem) -> Iterator[Chunk]:
        n_lines = n_bytes = 0
        with self.path.open("rb") as file:
            for block in self._blocks(file):
                n_bytes += len(block)
                chunk = self._chunk(block, n_lines + 1, on_problem)
                if self._top1 is not None:
                    chunk.table = self._top1.fill(chunk.table)
                n_lines += block.count(b"\n")
                chunk.done = n_bytes / max(self._size, n_bytes)
                yield chunk
        if self._top1 is not None:
            self._top1.close(on_problem, complete=self._ended)
            self.notes += self._top1.notes

    def _blocks(self, file: BinaryIO) -> Iterator[bytes]:
        """Whole lines; the last block may lack its line end."""
        left = b""
        while block := file.read(_CHUNK_BYTES):
            text = left + block
            end = text.rfind(b"\n") + 1
            left = text[end:]
            if len(left) > _LONGEST_LINE_BYTES:
                raise TraceError(self.path, None, "is no JSON Lines: it has a line of more than 64 MiB")
            if end:
                yield text[:end]
        if left:
            yield left

    def _chunk(self, block: bytes, first_line: int, on_problem: OnProblem) -> Chunk:
        table = _parse_block(block)
        if table is not None:
            self._ended |= bool(pc.any(pc.equal(table["type"], "end")).as_py())
            return Chunk(table, np.arange(first_line, first_line + table.num_rows), 0)
        records, numbers = [], []
        lines = block.split(b"\n")
        is_cut = lines[-1] != b""
        for number, line in enumerate(lines if is_cut else lines[:-1], first_line):
            try:
                records.append(parse_line(line))
                numbers.append(number)
                self._ended |= records[-1]["type"] == "end"
            except TruncatedLineError as error:  # noqa: PERF203 - the slow way on purpose
                if is_cut and number == first_line + len(lines) - 1 and not self._ended:
                    self.notes.append(f"line {number} is cut off and left out")
                else:
                    on_problem(Problem(self.path, number, str(error)))
            except LineError as error:
                on_problem(Problem(self.path, number, str(error)))
        return Chunk(table_of(records), np.array(numbers, dtype=np.int64), 0)


def _parse_block(block: bytes) -> pa.Table | None:
    """The table of a block in which every line is a valid one of a known type without unknown fields, else None."""
    n_lines = block.count(b"\n")
    short = block.replace(_NO_CACHE, b"}\n")
    all_short = len(block) - len(short) == n_lines * (len(_NO_CACHE) - 2)
    n_ends = n_lines if all_short else block.count(b"}\n")
    if n_ends != n_lines or block.count(b"\n{") != n_lines - 1 or not block.startswith(b"{") or block[-1:] != b"\n":
        return None  # a line that is not one whole object, or the last line is cut
    try:
        if not block.isascii():
            block.decode("utf-8")
        table = _parse(short, _ROUTING_SCHEMA) if all_short else _parse(block, FIELD_SCHEMA)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    n_events = pc.sum(pc.equal(table["type"], "event")).as_py() or 0
    names = _NULLABLE_NAMES[:1] if all_short else _NULLABLE_NAMES
    if table.num_rows != n_lines or any(block.count(name) != n_events for name in names):
        return None
    if all_short:
        if n_events != n_lines:
            return None
        table = with_no_cache(table)
    else:
        if block.count(b'":') != _n_fields(table):
            return None  # some line has a field that its type does not have, or has null where it may be absent only
        table = table.append_column(SCHEMA.field("rest"), pa.nulls(n_lines, pa.string()))
    return table if is_valid(table) else None


def _n_fields(table: pa.Table) -> int:
    """Fields that the lines of a table must have: those their types require, and the others that are not null."""
    n_fields: int = table.num_rows
    for count in pc.value_counts(table["type"]).to_pylist():
        n_fields += count["counts"] * sum(f.required for f in RECORDS.get(count["values"], ()))
    n_fields += sum(table.num_rows - table[name].null_count for name in _OPTIONAL_NAMES)
    return n_fields


def _parse(text: bytes, schema: pa.Schema) -> pa.Table:
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    return pj.read_json(pa.BufferReader(text), read_options=_READ, parse_options=options)


class JsonlWriter:
    """See log.Writer. Writes the log and, at the end, its run.json. An existing run.json of the same run is kept.

    The top1 tokens beside a log that is replaced go with it: what is written here has them on its events.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        self._path = path
        self._force = force
        self.notes: list[str] = []
        self._log = Staged(path, force=force)
        self._file = self._log.path.open("wb")
        self._run: Staged | None = None

    def write(self, table: pa.Table) -> None:
        self._file.write(json_lines(table))

    def finish(self, metadata: Metadata) -> None:
        self._file.close()
        target = run_json.path_for(self._path)
        if not (target.exists() and run_json.read(target) == metadata):
            self._run = Staged(target, force=self._force)
            self._run.path.write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
            self._run.commit()
        self._log.commit()
        top1.path_for(self._path).unlink(missing_ok=True)

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # of a full disk: what it cannot flush is not wanted
            self._file.close()
        self._log.discard()
        if self._run is not None:
            self._run.discard()
