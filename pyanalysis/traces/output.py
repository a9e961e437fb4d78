"""The writer that tools get: an error of the file system names the file, and nothing is left of a trace that failed."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NoReturn

from pyanalysis.traces.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from pyanalysis.traces.jsonl import JsonlWriter
    from pyanalysis.traces.log import Writer
    from pyanalysis.traces.metadata import Metadata
    from pyanalysis.traces.npz import NpzWriter
    from pyanalysis.traces.parquet import ParquetWriter


class Output:
    """See log.Writer. `folder`: make this directory for the file, and remove it again if the trace is discarded.

    Its parent must exist. Raises TraceError where the file system refuses (a full disk, no permission).
    """

    def __init__(
        self,
        path: Path,
        writer: type[JsonlWriter | ParquetWriter | NpzWriter],
        *,
        force: bool,
        folder: Path | None = None,
    ) -> None:
        self._path = path
        self._folder: Path | None = None
        if folder is not None:
            self._make(folder)
        try:
            with self._told():
                self._writer: Writer = writer(path, force=force)
        except BaseException:
            self._remove_folder()
            raise
        self.notes = self._writer.notes

    def write(self, table: pa.Table) -> None:
        with self._told():
            self._writer.write(table)

    def finish(self, metadata: Metadata) -> None:
        with self._told():
            self._writer.finish(metadata)

    def discard(self) -> None:
        self._writer.discard()
        self._remove_folder()

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir()
        except FileNotFoundError:
            reason = f"cannot be written: the folder {folder.parent} does not exist; make it first"
            raise TraceError(folder, None, reason) from None
        except OSError as error:
            self._refuse(folder, error)
        self._folder = folder

    def _remove_folder(self) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):  # somebody has put a file there
                self._folder.rmdir()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._refuse(self._path, error)

    @staticmethod
    def _refuse(path: Path, error: OSError) -> NoReturn:
        why = os.strerror(error.errno) if error.errno else str(error)  # Arrow's text repeats file and number
        raise TraceError(path, None, f"cannot be written: {why}") from None
