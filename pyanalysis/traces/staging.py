"""Files that appear whole or not at all: written under a temporary name beside the target and renamed at the end."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyanalysis.traces.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator


def require_writable(path: Path) -> None:
    """Raises TraceError if nothing can be written where `path` is to be: known before long work instead of after it."""
    there = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise TraceError(path, None, f"cannot be written: {os.strerror(error.errno or 0)}") from None


class Staged:
    """A file in the making. `path` is where to write; `commit` puts it in place, `discard` removes it.

    Raises TraceError if the target exists (unless `force`), or its folder does not exist or cannot be written to.
    """

    def __init__(self, target: Path, *, force: bool = False) -> None:
        self._target = target
        self._force = force
        self._refuse_existing()
        try:
            handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        except FileNotFoundError:
            reason = f"cannot be written: the folder {target.parent} does not exist; make it first"
            raise TraceError(target, None, reason) from None
        except OSError as error:
            raise TraceError(target, None, f"cannot be written: {error.strerror}") from None
        os.close(handle)
        self.path = Path(name)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Path]:
        """`path`, to be written to. A full disk, or whatever else the file system says, becomes a TraceError."""
        try:
            yield self.path
        except OSError as error:
            raise TraceError(self._target, None, f"cannot be written: {os.strerror(error.errno or 0)}") from None

    def write(self, data: bytes) -> None:
        """All of the file at once. Raises TraceError."""
        with self.writing() as path:
            path.write_bytes(data)

    def commit(self) -> None:
        self._refuse_existing()
        umask = os.umask(0)
        os.umask(umask)
        self.path.chmod(0o666 & ~umask)  # mkstemp made it readable for its owner only
        self.path.replace(self._target)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)

    def _refuse_existing(self) -> None:
        if self._target.is_dir():
            raise TraceError(self._target, None, "is a folder, not a file to write")
        if self._target.exists() and not self._force:
            raise TraceError(self._target, None, "exists already; name another file, or say --force to replace it")
