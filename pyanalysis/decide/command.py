"""The subcommand `moecache decide`: arguments, progress and output."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggml_moecache.errors import ConfigError, MissingDependencyError
from pyanalysis.output_path import folder_to_write
from pyanalysis.printing import write

if TYPE_CHECKING:
    from pyanalysis.decide.decision import Decision
    from pyanalysis.decide.evidence import Options

_EXAMPLES = """\
Static or adaptive: which policy to run, and whether to run any. Every trace is replayed at capacities from 0 to all
against static sets, adaptive policies with several lengths of history, and the optimum; choices are made on one part
of the trace and judged on another, with intervals. The margins are fixed: adaptive equals the best static set known in
hindsight if it takes at most 2 % more time per token and hits at most 1 point less, at capacities of 5 to 60 %.

examples:
  moecache decide recorded/long/parallel-1 recorded/heterogeneous/parallel-1 --cost my-machine.json --report decision
  moecache decide trace.npz --cost h200,rtx-4060-ti --first-tokens 16384 --report decision
  moecache decide log --cost my-machine.json --adaptive cumulative-lfu,lru --per-layer
  moecache decide log --cost my-machine.json --json | jq .recommended
"""


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add `decide` to the program's subcommands."""
    parser = commands.add_parser(
        "decide",
        help="static or adaptive: which policy to run by your traces and costs",
        description="Decide by traces and costs whether to cache, and whether a static set or an adaptive policy.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("traces", metavar="TRACE", type=Path, nargs="+", help="any trace that moecache trace reads")
    parser.add_argument(
        "--cost",
        metavar="LIST",
        required=True,
        help="cost models by comma: JSON files, or h200, h200-calibrated, rtx-4060-ti",
    )
    parser.add_argument(
        "--adaptive",
        metavar="LIST",
        help="adaptive policies by comma (default: every kind, with several lengths of history)",
    )
    parser.add_argument(
        "--capacity",
        metavar="LIST",
        help="capacities in percent of the experts by comma (default: 19 from 0%% to 100%%)",
    )
    parser.add_argument(
        "--per-layer", action="store_true", help="a budget for each layer (default: one for all layers)"
    )
    parser.add_argument("--first-tokens", metavar="N", type=int, help="of each trace only the first N tokens")
    parser.add_argument(
        "--batch-size",
        metavar="N",
        type=int,
        default=512,
        help="prompt tokens in a batch, where the trace does not tell its ubatches (default: %(default)s)",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the bootstrap (default: %(default)s)")
    parser.add_argument("--workers", metavar="N", type=int, help="threads (default: every CPU)")
    parser.add_argument("--json", action="store_true", help="print the verdicts and all they rest on as JSON")
    parser.add_argument(
        "--report",
        metavar="DIR",
        type=folder_to_write,
        help="README.md, index.html with plots, decision.json, points.parquet",
    )
    parser.add_argument("--force", action="store_true", help="replace the report if it exists")


def run(given: argparse.Namespace) -> int:
    """Decide, print, write. Raises MoeCacheError for anything that cannot work."""
    options = _options(given)
    if given.report:
        _require_report(given.report, force=given.force)
    decision = _decide(given, options)

    from ggml_moecache import _native  # noqa: PLC0415 - each command imports only what it needs
    from pyanalysis.decide import report  # noqa: PLC0415
    from pyanalysis.decide.document import as_markdown  # noqa: PLC0415

    if given.report:  # first: a reader of stdout may leave, or its disk be full
        from pyanalysis.report.write import new_folder  # noqa: PLC0415

        with new_folder(given.report, force=given.force) as folder:
            report.write(folder, decision, command=_command(given))
        print(f"moecache: note: wrote {given.report / 'index.html'}", file=sys.stderr)
    if given.json:
        write(report.as_json(decision))
    else:
        write(as_markdown(report.TITLE, [*report.conclusion(decision), *report.regimes(decision)]) + "\n")
        if decision.recommended is not None:
            agrees = "the same" if decision.recommended == _native.default_policy else "another one"
            write(f"The runtime's default policy is {_native.default_policy}, {agrees}.\n")
    return 0


def _options(given: argparse.Namespace) -> Options:
    from pyanalysis import costs  # noqa: PLC0415
    from pyanalysis.decide.evidence import ADAPTIVE_POLICIES, PERCENTS, Options, canonical  # noqa: PLC0415

    for name, least in (("batch_size", 1), ("seed", 0), ("workers", 1), ("first_tokens", 2)):
        value = getattr(given, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} must be a whole number of at least {least}, got {value}")
    models = tuple(costs.load(part) for part in given.cost.split(",") if part)
    names = [cost.name for cost in models]
    if not models or len(set(names)) < len(names):
        raise ConfigError(f"--cost must name cost models, each with a name of its own, got '{given.cost}'")
    for cost in models:
        if not any((cost.cpu_miss_ns, cost.cpu_event_ns, cost.gpu_hit_ns, cost.other_layer_ns, cost.other_token_ns)):
            raise ConfigError(f"--cost {cost.name}: all times are 0, so no time follows from it; measure them")
    percents = PERCENTS if given.capacity is None else _percents(given.capacity)
    adaptive = canonical(ADAPTIVE_POLICIES if given.adaptive is None else given.adaptive.split(","))
    return Options(models, adaptive, percents, given.per_layer, given.batch_size, given.first_tokens, given.workers)


def _percents(text: str) -> tuple[float, ...]:
    """Rising, 0 among them: everything is compared with it."""
    found = {0.0}
    for part in text.split(","):
        try:
            value = float(part.strip().removesuffix("%"))
        except ValueError:
            value = -1.0
        if not 0 <= value <= 100:  # noqa: PLR2004 - per cent
            raise ConfigError(f"--capacity must be percentages from 0% to 100% by comma, got '{part}'")
        found.add(value)
    return tuple(sorted(found))


def _decide(given: argparse.Namespace, options: Options) -> Decision:
    from pyanalysis.decide.decision import decision_of  # noqa: PLC0415
    from pyanalysis.decide.evidence import gather  # noqa: PLC0415
    from pyanalysis.simulation.progress import bar  # noqa: PLC0415
    from pyanalysis.traces import logs_in, read_trace  # noqa: PLC0415

    logs = [log for path in given.traces for log in logs_in(path)]
    names = names_of(logs)
    evidences = []
    for log, name in zip(logs, names, strict=True):
        trace = read_trace(log)
        for note in trace.notes:
            print(f"moecache: note: {log}: {note}", file=sys.stderr)
        with bar(f"replaying {name}") as progress:
            evidences.append(gather(trace, options, progress, name=name))
    with bar("changing costs") as progress:
        return decision_of(evidences, options, seed=given.seed, progress=progress)


def names_of(logs: list[Path]) -> list[str]:
    """A short name for each trace, all different: the file's, with as many of its folders as it takes."""
    for depth in range(1, max(len(log.resolve().parts) for log in logs) + 1):
        names = ["/".join(log.resolve().parts[-depth:]) for log in logs]
        if len(set(names)) == len(names):
            return names
    raise ConfigError("a trace is named twice")


def _command(given: argparse.Namespace) -> str:
    """As it was given; of an absolute path only the name, which is all that means anything elsewhere."""

    def named(path: str | Path) -> str:
        return Path(path).name if Path(path).is_absolute() else str(path)

    words = ["moecache", "decide", *map(named, given.traces)]
    words += ["--cost", ",".join(named(part) for part in given.cost.split(",") if part)]
    for name in ("adaptive", "capacity", "first_tokens"):
        if getattr(given, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(given, name))]
    words += ["--per-layer"] * given.per_layer
    for name, default in (("batch_size", 512), ("seed", 0)):
        if getattr(given, name) != default:
            words += [f"--{name.replace('_', '-')}", str(getattr(given, name))]
    return shlex.join([*words, "--report", given.report.name])


def _require_report(folder: Path, *, force: bool) -> None:
    """Refuse before the work what would be refused after it."""
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415

        from pyanalysis.report.write import refuse_existing  # noqa: PLC0415
        from pyanalysis.traces.staging import require_writable  # noqa: PLC0415
    except ImportError:
        raise MissingDependencyError("--report needs the extra 'report': pip install 'ggml-moecache[report]'") from None
    refuse_existing(folder, force=force)
    require_writable(folder)
