"""What a reader and a writer of one trace format must provide, and the rules that hold over the lines of a log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow.compute as pc

from pyanalysis.traces.errors import Problem, TraceError
from pyanalysis.traces.event import RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from pyanalysis.traces.metadata import Metadata
    from pyanalysis.traces.trace import Trace

    Lines = np.ndarray[Any, np.dtype[np.int64]]
    Mask = np.ndarray[Any, np.dtype[np.bool_]]
    # Takes note of a problem; may raise to end the reading. Where it returns, the line is left out.
    OnProblem = Callable[[Problem], None]


def raise_problem(problem: Problem) -> None:
    """The strict OnProblem."""
    raise TraceError(*problem)


@dataclass
class Chunk:
    """Some lines of a log in order. `table` has table.SCHEMA; `lines` int64[rows], numbers from 1; `done` 0 to 1."""

    table: pa.Table
    lines: Lines
    done: float


class Reader(Protocol):
    """One trace. Opening it has found the file, its format and `metadata` (None: there is no run.json)."""

    path: Path
    metadata: Metadata | None
    notes: list[str]  # complete after the last chunk

    def chunks(self, on_problem: OnProblem) -> Iterator[Chunk]:
        """Valid lines only; the others go to `on_problem`. Memory is bounded by the chunk."""
        ...


@runtime_checkable
class WholeReader(Reader, Protocol):
    """A reader that has the whole trace as columns anyway; its chunks are made of them."""

    def trace(self, on_problem: OnProblem) -> Trace:
        """The columns, lines checked; no event is a problem too. `notes` is complete after it."""
        ...


class Writer(Protocol):
    """A trace in the making; nothing is at its place before `finish`. `notes`: what the format cannot hold."""

    notes: list[str]

    def write(self, table: pa.Table) -> None: ...

    def finish(self, metadata: Metadata) -> None: ...

    def discard(self) -> None: ...


@dataclass
class Structure:
    """What the lines of one log have in common, checked chunk by chunk.

    One run, one context, ubatches that never fall, and an end record that counts right and comes last. `close` must be
    called after the last chunk.
    """

    path: Path
    run_id: str | None = None
    context_id: int | None = None
    n_events: int = 0
    n_lost: int = 0
    complete: bool = False
    unknown: Counter[str] = field(default_factory=Counter)
    _n_lines: int = 0
    _last_batch: int = -1

    def feed(self, chunk: Chunk, on_problem: OnProblem) -> None:
        table = chunk.table
        if table.num_rows == 0:
            return
        self._n_lines += table.num_rows
        self._one_run(table, chunk.lines, on_problem)
        kinds = table["type"].combine_chunks()
        is_event = pc.equal(kinds, "event").to_numpy(zero_copy_only=False)
        self._rising(table, chunk.lines, is_event, on_problem)
        if self.complete:
            on_problem(Problem(self.path, int(chunk.lines[0]), "stands after the end record"))
        # There may be as many residency lines as events, and they stand for themselves.
        is_other = ~(is_event | pc.equal(kinds, "residency").to_numpy(zero_copy_only=False))
        for row in np.flatnonzero(is_other):
            before = self.n_events + int(is_event[:row].sum())
            self._other(table.slice(row, 1).to_pylist()[0], int(chunk.lines[row]), before, on_problem)
            if self.complete and row + 1 < table.num_rows:
                on_problem(Problem(self.path, int(chunk.lines[row + 1]), "stands after the end record"))
        self.n_events += int(is_event.sum())

    def close(self, on_problem: OnProblem) -> None:
        if self._n_lines == 0:
            on_problem(Problem(self.path, None, "is empty: it has no complete line"))

    def notes(self) -> list[str]:
        found = []
        if self.unknown:
            kinds = ", ".join(f"{count} of type {kind}" for kind, count in sorted(self.unknown.items()))
            found.append(f"lines of unknown types skipped: {kinds}")
        if self.n_lost:
            share = self.n_lost / (self.n_lost + self.n_events)
            found.append(
                f"{self.n_lost:,} events ({share:.1%}) were lost: what follows from this trace is not its run's"
            )
        if not self.complete:
            found.append("no end record: the process was killed or still runs, or the disk was full")
        return found

    def _one_run(self, table: pa.Table, lines: Lines, on_problem: OnProblem) -> None:
        for name, words in (("run_id", "runs"), ("context_id", "contexts")):
            for value in pc.unique(table[name]).to_pylist():
                first = getattr(self, name)
                if first is None:
                    setattr(self, name, value)
                elif value is not None and value != first:
                    line = int(lines[pc.index(table[name], value).as_py()])
                    reason = (
                        f"{name} is {value!r}, but {first!r} on the lines before: two {words} are mixed in one file"
                    )
                    on_problem(Problem(self.path, line, reason))

    def _rising(self, table: pa.Table, lines: Lines, is_event: Mask, on_problem: OnProblem) -> None:
        batches = pc.fill_null(table["batch_id"], -1).to_numpy()[is_event]
        if batches.size == 0:
            return
        before = np.concatenate([[self._last_batch], batches[:-1]])
        for index in np.flatnonzero(batches < before)[:1]:
            reason = f"batch_id is {batches[index]} after {before[index]}: events are not in order"
            on_problem(Problem(self.path, int(lines[is_event][index]), reason))
        self._last_batch = int(batches[-1])

    def _other(self, record: dict[str, Any], line: int, n_events: int, on_problem: OnProblem) -> None:
        kind = record["type"]
        if kind not in RECORDS:
            self.unknown[kind] += 1
        elif kind == "overflow":
            self.n_lost += record["lost_events"]
        elif kind == "end":
            if record["events"] != n_events:
                reason = f"the end record counts {record['events']} events, the file has {n_events}"
                on_problem(Problem(self.path, line, reason))
            if record["lost_events"] < self.n_lost:
                reason = f"the end record counts {record['lost_events']} lost events, the overflow lines {self.n_lost}"
                on_problem(Problem(self.path, line, reason))
            self.n_lost = max(self.n_lost, record["lost_events"])
            self.complete = True
