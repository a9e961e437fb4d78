"""The arguments of `moecache simulate`: what there is, and what can be refused before a trace is read."""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggml_moecache.errors import ConfigError
from pyanalysis.output_path import file_to_write, folder_to_write

if TYPE_CHECKING:
    from pyanalysis.cost import CostModel
    from pyanalysis.traces import Trace

_EXAMPLES = """\
A policy is name:parameter=value:parameter=value. A capacity is a number of experts, a range A:B or A:B:STEP (without
B), all, a share of the experts (25%: rounded to the nearest whole expert, at least 1), memory (2GiB, 512MiB), or with
--per-layer one number for each layer, joined by + (4+4+8). With --per-layer numbers and shares are of each layer.

examples:
  moecache simulate log --policy lru,cumulative-lfu,belady --capacity 5%,10%,25%,50% --per-layer
  moecache simulate log --policy cumulative-lfu:tie=recency --capacity 0:17:4,all -o jsonl | jq .hit_rate
  moecache simulate log --policy lru,lfru:weight=32 --capacity 2GiB --cost h200
  moecache simulate log --policy lru,random --capacity 0:129:16 --per-layer --cost h200 --report report
  moecache simulate log --policy lru,lfru --capacity 25% --per-layer --targets 50%,80%
  moecache simulate log --policy belady --capacity 25% --per-layer --events optimum.parquet
  moecache simulate log --policy lru --capacity 25% --state-out warm.json
  moecache simulate log --mode as-run
"""
_TARGETS = "50%,80%,90%,95%"


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add `simulate` to the program's subcommands."""
    parser = commands.add_parser(
        "simulate",
        help="replay traces against cache policies at several capacities",
        description="Replay routing traces, event by event, against cache policies at several capacities.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("traces", metavar="TRACE", type=Path, nargs="*", help="any trace that moecache trace reads")
    parser.add_argument("--list-policies", action="store_true", help="print every policy with its parameters and exit")
    parser.add_argument(
        "--policy", metavar="LIST", help="policies by comma (with --mode as-run by default that of the log)"
    )
    parser.add_argument("--capacity", metavar="LIST", help="capacities by comma (likewise, with its --per-layer)")
    parser.add_argument(
        "--per-layer", action="store_true", help="a budget for each layer (default: one for all layers)"
    )
    model = parser.add_argument_group("how to replay")
    model.add_argument(
        "--cost",
        metavar="FILE",
        help="cost model: a JSON file, or h200, h200-calibrated, rtx-4060-ti (default: none, no times)",
    )
    model.add_argument(
        "--timing",
        choices=("ideal", "clocked"),
        help="ideal: a copy is there at the next token; clocked: when the costs say (default: clocked with --cost)",
    )
    model.add_argument(
        "--mode",
        choices=("event-atomic", "as-run", "per-access"),
        default="event-atomic",
        help="as-run: ubatches as the runtime takes them; per-access: what no runtime can reach (default: %(default)s)",
    )
    model.add_argument(
        "--batch-size",
        metavar="N",
        type=int,
        default=512,
        help="prompt tokens in a batch, where the trace does not tell its ubatches (default: %(default)s)",
    )
    model.add_argument("--seed", metavar="N", type=int, default=0, help="of policies that draw (default: %(default)s)")
    model.add_argument(
        "--no-victim-agreement",
        dest="victim_agreement",
        action="store_false",
        help="leave out the share of evictions that the optimum could have chosen as well: a sweep is then faster",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o",
        dest="form",
        choices=("table", "csv", "jsonl", "parquet"),
        default="table",
        help="form of the results; the rates of single layers are in jsonl and parquet (default: %(default)s)",
    )
    output.add_argument("--json", action="store_true", help="print one JSON array")
    output.add_argument("--out", metavar="FILE", type=file_to_write, help="write the results there (default: stdout)")
    output.add_argument(
        "--events",
        metavar="FILE",
        type=file_to_write,
        help="hits, admissions, evictions of every event; .jsonl or .parquet",
    )
    output.add_argument(
        "--report", metavar="DIR", type=folder_to_write, help="an HTML page with plots, and its tables as CSV"
    )
    output.add_argument(
        "--targets",
        metavar="LIST",
        help="print the smallest capacity at which each policy reaches these hit rates, such as 50%%,80%%; also those "
        f"of the report's table (which has {_TARGETS.replace('%', '%%')} by default)",
    )
    output.add_argument(
        "--state-out",
        metavar="FILE",
        type=file_to_write,
        help="the session state after one trace with one policy and capacity: GGML_MOECACHE_STATE_IN of a runtime",
    )
    output.add_argument("--force", action="store_true", help="replace files and the report if they exist")
    where = parser.add_argument_group("where to compute")
    where.add_argument("--workers", metavar="N", type=int, help="threads (default: every CPU)")
    where.add_argument("--scheduler", metavar="ADDRESS", help="a Dask cluster, such as tcp://host:8786")


@dataclass(frozen=True)
class Request:
    """The arguments, checked as far as they can be without the traces.

    policies, capacities   empty: those of each log (as-run), see of_trace
    """

    given: argparse.Namespace
    policies: list[str]
    capacities: list[str | int | list[int]]
    per_layer: bool
    cost: CostModel | None
    targets: list[float]

    @property
    def options(self) -> dict[str, Any]:
        """Those of simulate() and sweep() alike."""
        names = ("timing", "mode", "batch_size", "seed", "victim_agreement")
        own = {"cost": self.cost, "per_layer": self.per_layer}
        return {**own, **{name: getattr(self.given, name) for name in names}}

    def of_trace(self, trace: Trace) -> Request:
        """The same with what was left to the log, which one line says. Raises ConfigError if the log has no cache."""
        if self.policies and self.capacities:
            return self
        from pyanalysis.simulation.logged import cache_of  # noqa: PLC0415 - each command imports only what it needs

        own = cache_of(trace)
        if own is None:
            missing = " and ".join(name for name in ("policy", "capacity") if not getattr(self.given, name))
            raise ConfigError(
                f"{trace.path}: does not tell the {missing} of a cache; say --policy and --capacity, and --per-layer "
                "if each layer has its own"
            )
        from pyanalysis.simulation.arguments import refuse_twice  # noqa: PLC0415

        found, shown = self, list[str]()
        if not self.policies:
            refuse_twice([own.policy], self.given.seed)  # a policy that this version does not have
            found, shown = replace(found, policies=[own.policy]), [f"--policy {own.policy}"]
        if not self.capacities:  # whose budget it is belongs to it
            per_layer = self.per_layer or own.per_layer
            found = replace(found, capacities=[own.capacity], per_layer=per_layer)
            shown += [f"--capacity {own.capacity}", *["--per-layer"] * per_layer]
        print(f"moecache: note: {trace.path}: replayed with {' '.join(shown)}, the log's own", file=sys.stderr)
        return found


def request_of(given: argparse.Namespace) -> Request:
    from pyanalysis.simulation.arguments import MOST_WHOLE, policies_of, refuse_twice  # noqa: PLC0415
    from pyanalysis.simulation.capacity import capacities_of  # noqa: PLC0415

    for name in ("policy", "capacity"):
        of_log = given.mode == "as-run" and getattr(given, name) is None
        if not getattr(given, name) and not of_log:
            raise ConfigError(f"moecache simulate needs --{name}; moecache simulate --help has examples")
    if not given.traces:
        raise ConfigError("moecache simulate needs a TRACE: a file, or a directory that GGML_MOECACHE_LOG has written")
    for name, least in (("batch_size", 1), ("seed", 0), ("workers", 1)):
        value = getattr(given, name)
        if value is not None and not least <= value <= MOST_WHOLE:
            raise ConfigError(
                f"--{name.replace('_', '-')} must be a whole number from {least} to 2^63 - 1, got {value}"
            )
    if given.json and given.form != "table":
        raise ConfigError(f"--json and -o {given.form} are two forms of the results; name one of them")
    if given.form == "parquet" and given.out is None and sys.stdout.isatty():
        raise ConfigError("-o parquet is binary: name a file with --out, or redirect the output")
    if given.scheduler == "":
        raise ConfigError("--scheduler needs the address of a Dask scheduler, such as tcp://host:8786")
    _check_outputs(given)
    cost = None
    if given.cost is not None:
        from pyanalysis import costs  # noqa: PLC0415

        cost = costs.load(given.cost)
    policies = policies_of(given.policy) if given.policy else []
    refuse_twice(policies, given.seed)
    capacities = capacities_of(given.capacity) if given.capacity else []
    targets = [_rate(part.strip()) for part in (_TARGETS if given.targets is None else given.targets).split(",")]
    return Request(given, policies, capacities, given.per_layer, cost, targets)


def _check_outputs(given: argparse.Namespace) -> None:
    """Refuse before the work what would be refused after it."""
    files = {"--out": given.out, "--events": given.events, "--state-out": given.state_out}
    for (one, path), (other, second) in itertools.combinations(files.items(), 2):
        if path and second and path.resolve() == second.resolve():
            raise ConfigError(f"{one} and {other} name the same file, '{path}'; name two")
    if given.targets and not given.report and (given.json or given.form in ("csv", "parquet")):
        raise ConfigError("--targets is printed with -o table and -o jsonl, and in the --report; choose one of them")


def _rate(text: str) -> float:
    """A hit rate as a fraction or a percentage."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise ConfigError(f"--targets must be hit rates by comma, such as 80% or 0.8, got '{text}'")
    return value
