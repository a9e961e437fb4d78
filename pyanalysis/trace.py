"""The subcommand `moecache trace`: arguments and output; the work is done in pyanalysis.traces."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggml_moecache.errors import ConfigError
from pyanalysis.output_path import file_to_write
from pyanalysis.printing import show

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyanalysis.traces.errors import Problem
    from pyanalysis.traces.log import Writer
    from pyanalysis.traces.trace import Trace

    Subcommands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - has no public name

_EXAMPLES = """\
A LOG is routing.jsonl, its Parquet or npz form, a directory that GGML_MOECACHE_LOG has written, or another program's
trace: CSV of llama-moe-trace (pos,layer,id0,...), CSV route_trace v1, JSON Lines {"tok":n,"layers":[[ids],...]}, numpy
archives. It is recognised by its content; traces/FORMAT.md and traces/FOREIGN.md describe all of them. A FILE becomes
what its suffix says: .jsonl, .parquet, .npz. Without one it is a directory with run.json and routing.jsonl. The folder
that FILE lies in must exist.

examples:
  moecache trace show log
  moecache trace show log --json | jq '.[0].overlap'
  moecache trace check log
  moecache trace convert log/routing.jsonl routing.parquet
  moecache trace convert moe-trace.csv log --experts 128
  moecache trace cut log short.parquet --requests 0:10 --tokens :512 --layers 0,4:8 --phase decode
  moecache trace merge log/routing.jsonl log/routing-1.jsonl both.parquet
  moecache trace shuffle log shuffled.parquet --seed 1
"""
_SHOWN_PROBLEMS = 20


def add_parser(commands: Subcommands) -> None:
    """Add `trace` to the program's subcommands."""
    trace = commands.add_parser(
        "trace",
        help="show, check, convert and edit routing logs",
        description="Show, check, convert and edit routing logs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tools = trace.add_subparsers(dest="tool", metavar="TOOL", required=True)

    def tool(name: str, summary: str, example: str) -> argparse.ArgumentParser:
        return tools.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"example:\n  moecache trace {name} {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    show = tool("show", "tokens, layers, top experts, Gini, overlap with the previous token, lost events", "log --json")
    show.add_argument("log", metavar="LOG", type=Path)
    show.add_argument("--top", metavar="N", type=int, default=5, help="most used experts shown per layer (default: 5)")
    show.add_argument("--json", action="store_true", help="print a JSON array, one object per log")
    check = tool(
        "check", "every line, and what the lines must have in common; exit status 1 if something is wrong", "log"
    )
    check.add_argument("log", metavar="LOG", type=Path)
    check.add_argument("--json", action="store_true", help="print one JSON object with every problem")
    convert = tool("convert", "any trace to JSON Lines, Parquet or npz, by suffix", "log routing.parquet")
    cut = tool(
        "cut", "the events of some requests, positions, layers or of one phase", "log out.parquet --tokens 0:512"
    )
    merge = tool("merge", "the devices of one run, or several runs of one model, as one log", "a b both.parquet")
    shuffle = tool("shuffle", "the tokens of each request in random order: a control for order in time", "a b --seed 1")
    for parser in (convert, cut, shuffle):
        parser.add_argument("log", metavar="LOG", type=Path)
    merge.add_argument("logs", metavar="LOG", type=Path, nargs="+")
    for parser in (convert, cut, merge, shuffle):
        parser.add_argument("out", metavar="FILE", type=_to_write)
        parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    convert.add_argument(
        "--experts", metavar="N", type=int, help="experts per layer, for a trace that does not say; its ids are checked"
    )
    cut.add_argument(
        "--requests", metavar="A:B", help="request_id from A to B - 1; one may be left out; A alone: that one"
    )
    cut.add_argument("--tokens", metavar="A:B", help="token_index, likewise")
    cut.add_argument("--layers", metavar="LIST", help="layers by comma, ranges as above: 0,4:8")
    cut.add_argument("--phase", choices=("prefill", "decode"), help="the events of one phase")
    cut.add_argument(
        "--no-weights", action="store_true", help="leave out the router's weights, most of a compressed log"
    )
    shuffle.add_argument("--seed", metavar="N", type=int, required=True, help="whole number of at least 0")


def _to_write(text: str) -> Path:
    """A file, or a folder for a log: a name without suffix, or a folder that is there. Raises MoeCacheError."""
    return Path(text) if Path(text).is_dir() or not Path(text).suffix else file_to_write(text)


def run(arguments: argparse.Namespace) -> int:
    """Exit status of the tool. Raises MoeCacheError for anything that cannot work."""
    tools: dict[str, Callable[[argparse.Namespace], int]] = {
        "show": _show,
        "check": _check,
        "convert": _convert,
        "cut": _cut,
        "merge": _merge,
        "shuffle": _shuffle,
    }
    return tools[arguments.tool](arguments)


# --- show and check -------------------------------------------------------------------------------------------------


def _show(arguments: argparse.Namespace) -> int:
    from pyanalysis.simulation.logged import regime_of  # noqa: PLC0415 - pyarrow only when used
    from pyanalysis.traces import cache_use, logs_in, read_trace, summary  # noqa: PLC0415

    if arguments.top < 1:
        raise ConfigError(f"--top must be a whole number of at least 1, got {arguments.top}")
    found = []
    for log in logs_in(arguments.log):
        cache = cache_use.CacheUseBuilder()
        trace = read_trace(log, cache.add)
        use = cache.finish()
        regime = None if use is None else regime_of(trace)
        found.append(summary.summarize(trace, arguments.top, use, regime))
    if arguments.json:
        show(json.dumps([one.as_json() for one in found], indent=2))
    else:
        show("\n\n".join(summary.as_text(one) for one in found))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from pyanalysis import traces  # noqa: PLC0415

    problems: list[Problem] = []
    checked: list[Trace] = []
    for log in traces.logs_in(arguments.log):
        try:
            trace = traces.load_trace(traces.open_reader(log), problems.append)
        except traces.TraceError as error:  # no line could be read
            problems.append(error.problem)
            continue
        traces.check_trace(trace, problems.append)
        checked.append(trace)
    if checked and arguments.log.is_dir():
        traces.check_layers_of_run(checked, problems.append)
    if arguments.json:
        show(json.dumps(_check_as_json(problems, checked), indent=2))
    else:
        show("\n".join(_check_as_lines(problems, checked)))
    return 1 if problems else 0


def _check_as_json(problems: list[Problem], checked: list[Trace]) -> dict[str, Any]:
    return {
        "valid": not problems,
        "problems": [{"file": str(p.path), "line": p.line, "reason": p.reason} for p in problems],
        "logs": [
            {"file": str(t.path), "n_events": t.n_events, "complete": t.complete, "notes": list(t.notes)}
            for t in checked
        ],
    }


def _check_as_lines(problems: list[Problem], checked: list[Trace]) -> list[str]:
    lines = [str(problem) for problem in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > _SHOWN_PROBLEMS:
        lines.append(f"... and {len(problems) - _SHOWN_PROBLEMS:,} problems more; --json lists all of them")
    bad = {problem.path for problem in problems}
    for trace in checked:
        lines += [f"{trace.path}: note: {note}" for note in trace.notes]
        if trace.path not in bad:
            lost = f", {trace.n_lost:,} lost" if trace.n_lost else ""
            lines.append(f"{trace.path}: valid, {trace.n_events:,} events{lost}")
    return lines


# --- tools that write -----------------------------------------------------------------------------------------------


def _write(arguments: argparse.Namespace, work: Callable[[Writer], list[str]]) -> int:
    """Run `work` with a writer for FILE; what it leaves unfinished is removed. Its notes go to stderr."""
    from pyanalysis.traces import open_writer  # noqa: PLC0415

    writer = open_writer(arguments.out, force=arguments.force)
    try:
        notes = work(writer)
    except BaseException:
        writer.discard()
        raise
    for note in [*notes, *writer.notes]:
        print(f"moecache: note: {note}", file=sys.stderr)
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    from pyanalysis.traces import edit  # noqa: PLC0415

    if arguments.experts is not None and arguments.experts < 1:
        raise ConfigError(f"--experts must be a whole number of at least 1, got {arguments.experts}")
    return _write(arguments, lambda writer: edit.copy(arguments.log, writer, arguments.experts))


def _cut(arguments: argparse.Namespace) -> int:
    from pyanalysis.traces import edit  # noqa: PLC0415

    selection = edit.Selection(
        requests=_bounds("--requests", arguments.requests),
        tokens=_bounds("--tokens", arguments.tokens),
        layers=_layers(arguments.layers),
        phase=arguments.phase,
        weights=not arguments.no_weights,
    )
    if selection == edit.Selection():
        raise ConfigError(
            "cut needs one of --requests, --tokens, --layers, --phase, --no-weights; convert copies everything"
        )
    return _write(arguments, lambda writer: edit.cut(arguments.log, writer, selection))


def _merge(arguments: argparse.Namespace) -> int:
    from pyanalysis.traces import merge  # noqa: PLC0415

    if len(arguments.logs) < 2:  # noqa: PLR2004
        raise ConfigError("merge needs at least two logs and the file to write")
    return _write(arguments, lambda writer: merge.merge(arguments.logs, writer))


def _shuffle(arguments: argparse.Namespace) -> int:
    from pyanalysis.traces import edit  # noqa: PLC0415

    if arguments.seed < 0:
        raise ConfigError(f"--seed must be a whole number of at least 0, got {arguments.seed}")
    return _write(arguments, lambda writer: edit.shuffle(arguments.log, writer, arguments.seed))


def _bounds(option: str, text: str | None) -> tuple[int | None, int | None] | None:
    """(first, end) of "A:B", "A:", ":B" or "A"; None for None. Raises ConfigError."""
    if text is None:
        return None
    first, colon, end = text.partition(":")
    if not all(part.isascii() and (part == "" or part.isdigit()) for part in (first, end)) or not (first or end):
        raise ConfigError(f"{option} must be A:B, A:, :B or A with whole numbers of at least 0, got {text!r}")
    if not colon:
        return int(first), int(first) + 1
    bounds = (int(first) if first else None, int(end) if end else None)
    if bounds[1] is not None and bounds[1] <= (bounds[0] or 0):
        raise ConfigError(
            f"{option} selects nothing: the end {end} is not above the first {first or 0} (A:B excludes B)"
        )
    return bounds


def _layers(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    layers: set[int] = set()
    for part in text.split(","):
        first, end = _bounds("--layers", part) or (None, None)
        if first is None or end is None:
            raise ConfigError(f"--layers must be numbers and ranges A:B by comma, got {text!r}")
        layers |= set(range(first, end))
    return frozenset(layers)
