"""A log as Parquet: the rows of table.SCHEMA, with run.json in the file's metadata."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyanalysis.traces import metadata as run_json
from pyanalysis.traces.errors import Problem, TraceError
from pyanalysis.traces.lines import LineError, check_record
from pyanalysis.traces.log import Chunk
from pyanalysis.traces.staging import Staged
from pyanalysis.traces.table import SCHEMA, is_valid, records_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyanalysis.traces.log import OnProblem
    from pyanalysis.traces.metadata import Metadata

_METADATA_KEY = b"ggml_moecache.run"
_CHUNK_ROWS = 1 << 16
_ROW_GROUP_ROWS = 1 << 18


class ParquetReader:
    """See log.Reader. Memory: one chunk of 65,536 rows. Line numbers are row numbers, from 1.

    A column of lists that are all empty may have items of any type: there are none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        try:
            self._file = pq.ParquetFile(path)
        except OSError as error:
            raise TraceError(path, None, f"cannot be read: {error.strerror or error}") from None
        except (pa.ArrowException, ValueError) as error:
            raise TraceError(path, None, f"is no Parquet file, or a truncated one: {error}") from None
        have = self._file.schema_arrow
        self._must_be_empty: list[str] = []
        for field in SCHEMA:
            if field.name not in have.names:
                raise TraceError(path, None, f"is no routing log: it has no column {field.name}")
            if have.field(field.name).type == field.type:
                continue
            if not (pa.types.is_list(field.type) and pa.types.is_list(have.field(field.name).type)):
                raise self._wrong_type(field.name)
            self._must_be_empty.append(field.name)
        text = (self._file.metadata.metadata or {}).get(_METADATA_KEY)
        self.metadata: Metadata | None = None if text is None else run_json.parse(path, text.decode(errors="replace"))
        if self.metadata is None:
            self.notes.append("no run.json in the file's metadata: model and settings are not known")

    def chunks(self, on_problem: OnProblem) -> Iterator[Chunk]:
        done = 0
        total = max(self._file.metadata.num_rows, 1)
        try:
            for batch in self._file.iter_batches(_CHUNK_ROWS, columns=SCHEMA.names):
                table = self._with_empty_lists(pa.Table.from_batches([batch]).select(SCHEMA.names)).cast(SCHEMA)
                lines = np.arange(done + 1, done + 1 + table.num_rows)
                done += table.num_rows
                if not is_valid(table):
                    good = self._valid_rows(table, int(lines[0]), on_problem)
                    table, lines = table.filter(pa.array(good)), lines[good]
                yield Chunk(table, lines, done / total)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise TraceError(self.path, None, f"is damaged after row {done}: {error}") from None

    def _wrong_type(self, name: str) -> TraceError:
        have = self._file.schema_arrow.field(name).type
        return TraceError(self.path, None, f"the column {name} has type {have}, not {SCHEMA.field(name).type}")

    def _with_empty_lists(self, table: pa.Table) -> pa.Table:
        for name in self._must_be_empty:
            column = table[name]
            if pc.sum(pc.list_value_length(column)).as_py():
                raise self._wrong_type(name)
            field = SCHEMA.field(name)
            empty = pc.if_else(pc.is_valid(column), pa.scalar([], field.type), pa.scalar(None, field.type))
            table = table.set_column(table.column_names.index(name), field, empty)
        return table

    def _valid_rows(
        self, table: pa.Table, first: int, on_problem: OnProblem
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        good = np.ones(table.num_rows, dtype=bool)
        for row in range(table.num_rows):
            try:
                check_record(records_of(table.slice(row, 1))[0])
            except LineError as error:  # noqa: PERF203 - the slow way on purpose
                on_problem(Problem(self.path, first + row, str(error)))
                good[row] = False
        return good


class ParquetWriter:
    """See log.Writer."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        self._staged = Staged(path, force=force)
        self._file = self._staged.path.open("wb")
        self._writer = pq.ParquetWriter(self._file, SCHEMA, compression="zstd")
        self.notes: list[str] = []
        self._waiting: list[pa.Table] = []  # of the next row group

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        if sum(waiting.num_rows for waiting in self._waiting) >= _ROW_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
            self._waiting = []

    def finish(self, metadata: Metadata) -> None:
        self._flush()
        self._writer.add_key_value_metadata({_METADATA_KEY: json.dumps(metadata).encode()})
        self._writer.close()
        self._file.close()
        self._staged.commit()

    def discard(self) -> None:
        for part in (self._writer, self._file):
            with contextlib.suppress(OSError):  # of a full disk: what it cannot flush is not wanted
                part.close()
        self._writer.is_open = False  # or it tries again when it is deleted
        self._staged.discard()
