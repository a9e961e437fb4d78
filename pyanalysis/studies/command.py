"""The subcommand `moecache study`: arguments, traces, time and memory, output."""

from __future__ import annotations

import argparse
import resource
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggml_moecache.errors import ConfigError, MissingDependencyError
from pyanalysis.output_path import folder_to_write
from pyanalysis.studies import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyanalysis.cost import CostModel
    from pyanalysis.studies.findings import Findings
    from pyanalysis.studies.registry import Study
    from pyanalysis.traces import Trace

_EXAMPLES = """\
Each study reads routing traces and prints its tables; with --report it also writes index.html with plots, README.md,
every table as CSV, data.npz (the arrays behind the plots) and study.json (arguments, time, memory). What is fitted is
fitted on one part and judged on another: held-out tokens, held-out requests, and another workload where two traces of
the same model are given. What each study does: pyanalysis/studies/STUDIES.md.

examples:
  moecache study --list
  moecache study frequency traces/tiny-long.parquet --report frequency
  moecache study prediction traces/tiny-long.parquet traces/tiny-heterogeneous-parallel-1.parquet --report prediction
  moecache study strategies traces/tiny-long.parquet --cost h200-calibrated --capacity 10,25 --report strategies
  moecache study transitions trace.npz --tokens 16384 --json | jq .tables
"""
_CAPACITIES = "5,10,15,25,45"
_COSTS = "h200-calibrated,rtx-4060-ti"


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add `study` to the program's subcommands."""
    parser = commands.add_parser(
        "study",
        help="what routing sequences hold, and whether predicting them pays",
        description="Offline studies of routing traces.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="print the studies and stop")
    parser.add_argument("study", metavar="NAME", nargs="?", help="the study (--list)")
    parser.add_argument("traces", metavar="TRACE", type=Path, nargs="*", help="any trace that moecache trace reads")
    parser.add_argument("--tokens", metavar="N", type=int, help="of each trace only the first N tokens")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of all that draws (default: %(default)s)")
    parser.add_argument(
        "--capacity", metavar="LIST", help=f"percentages of the experts by comma (default: {_CAPACITIES})"
    )
    parser.add_argument("--per-layer", action="store_true", help="a budget for each layer (default: one for all)")
    parser.add_argument(
        "--cost",
        metavar="LIST",
        help=f"cost models by comma: JSON files, or h200-calibrated, h200, rtx-4060-ti (default: {_COSTS})",
    )
    parser.add_argument("--predictors", metavar="LIST", help="only these predictors, by comma")
    parser.add_argument("--strategies", metavar="LIST", help="only these strategies, by comma")
    parser.add_argument("--json", action="store_true", help="print the tables as one JSON object")
    parser.add_argument("--report", metavar="DIR", type=folder_to_write, help="write the report to this folder")
    parser.add_argument("--force", action="store_true", help="replace the report if it exists")


def run(given: argparse.Namespace) -> int:
    """Study, print, write. Raises MoeCacheError for anything that cannot work."""
    if given.list:
        width = max(len(study.name) for study in registry.STUDIES)
        print("\n".join(f"{study.name:{width}}  {study.summary}" for study in registry.STUDIES))
        return 0
    if given.study is None or not given.traces:
        raise ConfigError(
            "moecache study NAME TRACE...: name a study and its traces; moecache study --list has the names"
        )
    study = registry.find(given.study)
    _refuse_options(study, given)
    started = time.monotonic()
    try:
        if given.report:
            registry.folder_is_free(given.report, force=given.force)
        work = study.load()
    except ImportError as error:
        if isinstance(error, MissingDependencyError):
            raise
        raise MissingDependencyError(
            f"moecache study needs {error.name}, which is not installed: pip install 'ggml-moecache[study]'"
        ) from None
    request = _request(study, given)
    findings = work(request)
    operating_regime = _add_regime(findings, study, request)
    facts = {
        "study": study.name,
        "command": _command(sys.argv[1:]),
        "seed": given.seed,
        "tokens": given.tokens if given.tokens is not None else study.default_tokens,
        "seconds": round(time.monotonic() - started, 1),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "operating_regime": operating_regime,
    }
    findings.heading("Time and memory")
    findings.say(f"{facts['seconds']} s, at most {facts['peak_memory_mib']:,} MiB, traces and imports included.")
    _output(findings, facts, given)
    return 0


def _add_regime(findings: Findings, study: Study, request: registry.Request) -> list[dict[str, Any]]:
    """Wherever hit rates at a capacity are printed; the study regime is about nothing else and has it in full."""
    takes_capacities = "capacity" in study.takes
    percents = request.percents if takes_capacities else study.layer_percents
    if not percents or study.name == "regime":
        return []
    from pyanalysis.studies import regime  # noqa: PLC0415 - each command imports only what it needs

    return regime.add(findings, request, percents, per_layer=request.per_layer if takes_capacities else True)


def _command(words: list[str]) -> str:
    """As it was given; of an absolute path only the name, which is all that means anything elsewhere."""
    return shlex.join(["moecache", *(Path(word).name if Path(word).is_absolute() else word for word in words)])


def _output(findings: Findings, facts: dict[str, Any], given: argparse.Namespace) -> None:
    from pyanalysis.printing import show  # noqa: PLC0415 - each command imports only what it needs

    show((findings.as_json(facts) if given.json else findings.as_markdown()).rstrip("\n"))
    if given.report:
        from pyanalysis.report.write import new_folder  # noqa: PLC0415

        with new_folder(given.report, force=given.force) as folder:
            findings.write(folder, facts)
        print(f"moecache: note: wrote {given.report / 'index.html'}", file=sys.stderr)


def _refuse_options(study: Study, given: argparse.Namespace) -> None:
    """An option that would do nothing is an error, not silence."""
    for name in ("capacity", "per_layer", "cost", "predictors", "strategies"):
        if getattr(given, name) not in (None, False) and name not in study.takes:
            taken = ", ".join(f"--{one.replace('_', '-')}" for one in sorted(study.takes)) or "only --seed and --tokens"
            raise ConfigError(f"study {study.name} does not take --{name.replace('_', '-')}; it takes {taken}")
    for name, least in (("tokens", 2), ("seed", 0)):
        value = getattr(given, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name} must be a whole number of at least {least}, got {value}")


def _request(study: Study, given: argparse.Namespace) -> registry.Request:
    """Every option is checked before a trace, which may take minutes, is read."""
    n_tokens = given.tokens if given.tokens is not None else study.default_tokens
    percents = _percents(_listed("capacity", given.capacity) or _CAPACITIES.split(","))
    costs = _costs(_listed("cost", given.cost) or _COSTS.split(",")) if "cost" in study.takes else ()
    predictors, strategies = _listed("predictors", given.predictors), _listed("strategies", given.strategies)
    if predictors:
        from pyanalysis.studies.predictors import table as known_predictors  # noqa: PLC0415 - of their studies alone

        known_predictors.chosen(predictors)
    if strategies:
        from pyanalysis.studies.strategy import table as known_strategies  # noqa: PLC0415

        known_strategies.chosen(strategies)
    return registry.Request(
        traces=_traces(given.traces, n_tokens),
        seed=given.seed,
        percents=percents,
        costs=costs,
        per_layer=given.per_layer,
        n_tokens=n_tokens,
        predictors=predictors,
        strategies=strategies,
        progress=lambda text: print(f"moecache: {text}", file=sys.stderr),
    )


def _traces(paths: list[Path], n_tokens: int | None) -> tuple[tuple[str, Trace], ...]:
    from pyanalysis.decide.command import names_of  # noqa: PLC0415
    from pyanalysis.decide.parts import first_tokens  # noqa: PLC0415
    from pyanalysis.traces import logs_in, read_trace  # noqa: PLC0415

    logs = [log for path in paths for log in logs_in(path)]
    found = []
    for log, name in zip(logs, names_of(logs), strict=True):
        trace = read_trace(log)
        for note in trace.notes:
            print(f"moecache: note: {log}: {note}", file=sys.stderr)
        if n_tokens is not None and len(trace.tokens) > n_tokens:
            print(f"moecache: note: {log}: the first {n_tokens:,} of {len(trace.tokens):,} tokens", file=sys.stderr)
            trace = first_tokens(trace, n_tokens)
        found.append((name, trace))
    return tuple(found)


def _listed(name: str, text: str | None) -> tuple[str, ...] | None:
    """The items of a list by comma; None: the option was not given. An empty one is an error, and does not mean all."""
    if text is None:
        return None
    items = tuple(part.strip() for part in text.split(","))
    if "" in items:
        raise ConfigError(f"--{name} has an empty item: name {name} by comma, or leave the option away. Got {text!r}")
    return items


def _percents(parts: Sequence[str]) -> tuple[float, ...]:
    found = set()
    for part in parts:
        try:
            value = float(part.removesuffix("%"))
        except ValueError:
            value = 0.0
        if not 0 < value <= 100:  # noqa: PLR2004 - per cent
            raise ConfigError(f"--capacity must be percentages above 0 up to 100 by comma, got '{part}'")
        found.add(value)
    return tuple(sorted(found))


def _costs(parts: Sequence[str]) -> tuple[CostModel, ...]:
    from pyanalysis import costs  # noqa: PLC0415

    models = tuple(costs.load(part) for part in parts)
    if len({cost.name for cost in models}) < len(models):
        raise ConfigError(f"--cost must name cost models, each with a name of its own, got '{','.join(parts)}'")
    for cost in models:
        if cost.expert_bytes is None:
            raise ConfigError(f"--cost {cost.name}: expert_bytes is needed: copies are of the cost model's experts")
    return models
