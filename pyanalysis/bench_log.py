"""What the routing log costs: stock llama-bench with the log off and on, in turn, on the MoECache device.

Per round both arms run once; the figure is the ratio of their speeds in the same round. Beside it stands what the
plugin measures itself: nanoseconds per event that the thread of the graph spends on the log, without waiting for the
device.
Needs nothing but the standard library, so that it also runs on a machine where only the plugin was copied to.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyanalysis.llama_bench import run_llama_bench


@dataclass
class Setup:
    """What runs: the program's folder, the plugin, the model, llama-bench's options, the plugin's variables."""

    llama_bin: Path
    plugin: Path
    model: Path
    options: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass
class Round:
    """One round. Speeds in tokens per second by test (pp512, tg128); counts of the arm that logs."""

    off: dict[str, float]
    on: dict[str, float]
    n_events: int
    n_lost: int
    ns_per_event: float


def run_bench(setup: Setup, log: Path | None, status: Path) -> dict[str, float]:
    """Tokens per second by test of one llama-bench run. Raises BenchError."""
    variables = {**setup.variables, "GGML_BACKEND_PATH": str(setup.plugin), "GGML_MOECACHE_STATUS": str(status)}
    if log is not None:
        variables["GGML_MOECACHE_LOG"] = str(log)
    return run_llama_bench(setup.llama_bin, ["-m", str(setup.model), "-dev", "MoECache0", *setup.options], variables)


def measure(setup: Setup, n_rounds: int) -> list[Round]:
    """Run `n_rounds` rounds, the arms in turn and in turn first. Progress goes to stderr."""
    rounds = []
    for index in range(n_rounds):
        with tempfile.TemporaryDirectory(prefix="moecache-bench-") as scratch:
            status = Path(scratch) / "status.json"
            arms: dict[bool, dict[str, float]] = {}
            counts: list[dict[str, int]] = []
            for logs in (index % 2 == 0, index % 2 == 1):
                arms[logs] = run_bench(setup, Path(scratch) / "log" if logs else None, status)
                if logs:
                    counts = json.loads(status.read_text(encoding="utf-8"))["contexts"]
            events = sum(context["n_log_events"] for context in counts)
            lost = sum(context["n_log_lost"] for context in counts)
            spent = sum(context["log_ns"] for context in counts)
            rounds.append(Round(arms[False], arms[True], events, lost, spent / max(1, events + lost)))
        print(f"round {index + 1}/{n_rounds}: {rounds[-1]}", file=sys.stderr, flush=True)
    return rounds


def table(rounds: list[Round]) -> str:
    """Aligned: per test the median speeds and the cost in percent with its range, then the events."""
    lines = [f"{'test':8} {'off, t/s':>10} {'on, t/s':>10} {'cost, median':>13} {'min':>8} {'max':>8}"]
    for test in rounds[0].off:
        costs = [100 * (1 - one.on[test] / one.off[test]) for one in rounds]
        off, on = (statistics.median(getattr(one, arm)[test] for one in rounds) for arm in ("off", "on"))
        lines.append(
            f"{test:8} {off:10.1f} {on:10.1f} {statistics.median(costs):12.2f}% {min(costs):7.2f}% {max(costs):7.2f}%"
        )
    lines.append(
        f"events {sum(one.n_events for one in rounds)}, lost {sum(one.n_lost for one in rounds)}, "
        f"{statistics.median(one.ns_per_event for one in rounds):.0f} ns per event on the inference path"
    )
    return "\n".join(lines)


def report(rounds: list[Round], *, as_json: bool) -> str:
    """The table, or the figures of every round as JSON."""
    return json.dumps([asdict(one) for one in rounds], indent=2) if as_json else table(rounds)


def main() -> int:
    """`python3 -m pyanalysis.bench_log` where the package is not installed: all paths by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bin", type=Path, required=True)
    parser.add_argument("--plugin", type=Path, required=True)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--capacity", default="all")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--options", default="-p 0 -n 128 -r 3", help="for llama-bench (default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    variables = {"GGML_MOECACHE_CAPACITY": given.capacity}
    setup = Setup(given.llama_bin, given.plugin, given.model, given.options.split(), variables)
    print(report(measure(setup, given.rounds), as_json=given.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
