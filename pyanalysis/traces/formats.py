"""The table of trace formats, and opening a trace whatever its format.

To add a format: a file with its Reader (and Writer), one line in FORMATS, a section in traces/FORMAT.md, or in
traces/FOREIGN.md if it is another program's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyanalysis.traces import metadata as run_json
from pyanalysis.traces import moe_trace_csv, route_trace_csv, token_jsonl
from pyanalysis.traces.check import check_trace
from pyanalysis.traces.errors import TraceError
from pyanalysis.traces.event import Event
from pyanalysis.traces.foreign import shown_text
from pyanalysis.traces.jsonl import JsonlReader, JsonlWriter
from pyanalysis.traces.log import Structure, WholeReader, raise_problem
from pyanalysis.traces.npz import NpzReader, NpzWriter
from pyanalysis.traces.output import Output
from pyanalysis.traces.parquet import ParquetReader, ParquetWriter
from pyanalysis.traces.progress import Progress
from pyanalysis.traces.table import records_of
from pyanalysis.traces.trace import Trace, TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from pyanalysis.traces.log import Chunk, OnProblem, Reader, Writer

_LOG_NAME = re.compile(r"routing(?:-(\d+))?\.jsonl")
_HEAD_BYTES = 1 << 16  # enough for the first line of any of these formats


def _is_log(head: bytes) -> bool:
    line = head.split(b"\n", 1)[0]
    return line.startswith(b"{") and b'"type"' in line


def _is_parquet(head: bytes) -> bool:
    return head.startswith(b"PAR1")


def _is_archive(head: bytes) -> bool:
    return head.startswith(b"PK\x03\x04")


@dataclass(frozen=True)
class Format:
    """`recognises`: whether a file with these first bytes is one. `writer` None: read only, convert it to ours."""

    suffix: str
    summary: str
    recognises: Callable[[bytes], bool]
    reader: Callable[[Path], Reader]
    writer: type[JsonlWriter | ParquetWriter | NpzWriter] | None = None
    is_log: bool = False  # a routing log with all its lines, streamed; the others hold decisions only


FORMATS = (
    Format(".jsonl", "routing log, JSON Lines", _is_log, JsonlReader, JsonlWriter, is_log=True),
    Format(".parquet", "routing log, Parquet", _is_parquet, ParquetReader, ParquetWriter, is_log=True),
    Format(".npz", "routing decisions, numpy arrays", _is_archive, NpzReader, NpzWriter),
    Format(".csv", "route_trace v1", route_trace_csv.recognises, route_trace_csv.RouteTraceReader),
    Format(".csv", "llama-moe-trace", moe_trace_csv.recognises, moe_trace_csv.MoeTraceReader),
    Format(".jsonl", "tokens with layers, JSON Lines", token_jsonl.recognises, token_jsonl.TokenJsonlReader),
)


def logs_in(path: str | Path) -> list[Path]:
    """The logs of a directory, routing.jsonl first; a file is its own only log. Raises TraceError if there is none."""
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise TraceError(path, None, "does not exist")
        return [path]
    found = [(int(match[1] or -1), entry) for entry in path.iterdir() if (match := _LOG_NAME.fullmatch(entry.name))]
    if not found:
        raise TraceError(
            path, None, "holds no routing.jsonl; name a directory that GGML_MOECACHE_LOG has written, or a file"
        )
    return [entry for _, entry in sorted(found)]


def the_log(path: str | Path) -> Path:
    """The one log at `path`. Raises TraceError if it is a directory of several."""
    logs = logs_in(path)
    if len(logs) > 1:
        names = ", ".join(log.name for log in logs)
        raise TraceError(Path(path), None, f"holds {len(logs)} logs ({names}): {_how_to_choose(logs)}")
    return logs[0]


def _how_to_choose(logs: list[Path]) -> str:
    """Devices of one context compute its layers together; a draft model or an MTP layer has tokens of its own."""
    metadata = run_json.read(run_json.path_for(logs[0])) or {}
    devices = [context.get("device") for context in metadata.get("contexts") or []]
    if len(devices) == len(logs) and len(set(devices)) < len(devices):
        return "name one of them; each is of a context of its own, such as the target and its draft model or MTP layer"
    return "name one of them, or put the devices of one context together with moecache trace merge"


def format_of(path: Path) -> Format:
    """The format of a file by its first bytes; where they tell nothing, by its suffix, whose reader says what is wrong.

    Raises TraceError.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise TraceError(path, None, f"cannot be read: {error.strerror}") from None
    for known in FORMATS:
        if known.recognises(head):
            return known
    for known in FORMATS:
        if path.suffix == known.suffix and known.writer is not None:
            return known
    if not head:
        raise TraceError(path, None, "is empty")
    begins = shown_text(head.split(b"\n", 1)[0])
    names = ", ".join(dict.fromkeys(known.summary for known in FORMATS))
    raise TraceError(path, 1, f"is no trace of a known format ({names}); it begins with {begins}")


def open_reader(path: str | Path) -> Reader:
    """The trace at `path`: a file of any format in FORMATS, or a directory with one log. Raises TraceError."""
    log = the_log(path)
    return format_of(log).reader(log)


def open_writer(path: str | Path, *, force: bool = False) -> Writer:
    """A trace to be written to `path`; a path without suffix, or an existing folder, becomes a directory with a log.

    That directory is made, its parent, or the folder of a file, is not. Raises TraceError if the target exists (unless
    `force`) or cannot be written.
    """
    path = Path(path)
    folder = None
    if path.is_dir() or not path.suffix:
        if path.is_file():
            raise TraceError(path, None, "exists and is a file; a name without suffix is a directory to write")
        folder = None if path.is_dir() else path
        path = path / "routing.jsonl"
    for known in FORMATS:
        if path.suffix == known.suffix and known.writer is not None:
            return Output(path, known.writer, force=force, folder=folder)
    written = ", ".join(known.suffix for known in FORMATS if known.writer is not None)
    raise TraceError(path, None, f"has no suffix of a trace format that can be written ({written})")


def checked_chunks(reader: Reader, structure: Structure, on_problem: OnProblem = raise_problem) -> Iterator[Chunk]:
    """The chunks of `reader`, with progress on stderr, the rules of `structure` checked on the way."""
    progress = Progress(f"reading {reader.path.name}")
    try:
        for chunk in reader.chunks(on_problem):
            structure.feed(chunk, on_problem)
            progress.update(chunk.done)
            yield chunk
    finally:
        progress.close()
    structure.close(on_problem)


def load_trace(
    reader: Reader, on_problem: OnProblem = raise_problem, observe: Callable[[pa.Table], None] | None = None
) -> Trace:
    """The trace of `reader`, lines and structure checked, its events not yet (check_trace does that).

    `observe` is called with every table of a log on the way: a Trace has no fields of the cache.
    """
    structure = Structure(reader.path)
    if isinstance(reader, WholeReader):
        trace = reader.trace(on_problem)  # lines made of it would become columns again
        structure.complete = trace.complete
        return replace(trace, notes=(*reader.notes, *structure.notes()))
    builder = TraceBuilder()
    for chunk in checked_chunks(reader, structure, on_problem):
        builder.add(chunk.table, chunk.lines)
        if observe is not None:
            observe(chunk.table)
    run_id = structure.run_id or (reader.metadata or {}).get("run_id", "unknown")
    return Trace(
        path=reader.path,
        metadata=reader.metadata or run_json.blank(run_id),
        run_id=run_id,
        context_id=structure.context_id or 0,
        n_lost=structure.n_lost,
        complete=structure.complete,
        notes=(*reader.notes, *structure.notes()),
        **builder.columns(),
    )


def read_trace(path: str | Path, observe: Callable[[pa.Table], None] | None = None) -> Trace:
    """The routing decisions of the trace at `path` (a file, or a directory with one log), checked.

    Raises TraceError, with file, line and reason, if there is no such trace or it is malformed. A log that was cut off
    is read up to its last complete line; `complete` and `notes` say so. `observe` as in load_trace().
    """
    trace = load_trace(open_reader(path), observe=observe)
    check_trace(trace, raise_problem)
    return trace


def read_events(path: str | Path) -> Iterator[Event]:
    """Every event of the trace with all its fields, streamed. Lines are checked, events among each other are not.

    Raises TraceError as read_trace does, when it comes to the malformed line.
    """
    reader = open_reader(path)
    for chunk in checked_chunks(reader, Structure(reader.path)):
        for record in records_of(chunk.table):
            if record["type"] == "event":
                yield Event.of(record)
