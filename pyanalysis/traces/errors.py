"""The exception of this package: every message names the file, the line where there is one, and the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ggml_moecache.errors import MoeCacheError

if TYPE_CHECKING:
    from pathlib import Path


class Problem(NamedTuple):
    """What is wrong with a trace. `line` counts from 1 (rows of a Parquet file likewise); None: the file as a whole."""

    path: Path
    line: int | None
    reason: str

    def __str__(self) -> str:
        place = f"{self.path}" if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.reason}"


class TraceError(MoeCacheError, ValueError):
    """A trace cannot be used. `problem` holds file, line and reason apart."""

    def __init__(self, path: Path, line: int | None, reason: str) -> None:
        self.problem = Problem(path, line, reason)
        super().__init__(str(self.problem))
