"""`moecache bench`: measurements that anyone can repeat, ratios of two arms that run in turn."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ggml_moecache
from ggml_moecache.errors import BackendError, ConfigError
from ggml_moecache.gguf_file import read_model

_EXAMPLES = """\
examples:
  moecache bench log
  moecache bench log -m model.gguf --capacity all --rounds 6 --options "-p 0 -n 128 -r 3 -t 8"
  moecache bench log --json > log-cost.json
"""
_SIMULATE_EXAMPLES = """\
examples:
  moecache bench simulate trace.npz
  moecache bench simulate trace.npz --rounds 5 --growth --json > simulator.json
"""


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add `bench` to the program's subcommands."""
    bench = commands.add_parser("bench", help="measure what something costs, side by side in one run")
    tools = bench.add_subparsers(dest="tool", metavar="WHAT", required=True)
    log = tools.add_parser(
        "log",
        help="the routing log: llama-bench with the log off and on, in turn",
        description="Speed of stock llama-bench on the MoECache device with the routing log off and on, in turn.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    log.add_argument("-m", "--model", type=Path, help="GGUF file (default: the small embedded model)")
    log.add_argument("--capacity", default="all", help="default: %(default)s")
    log.add_argument("--rounds", type=int, default=4, help="rounds over both arms (default: %(default)s)")
    log.add_argument("--options", default="-p 0 -n 128 -r 3", help="options of llama-bench (default: %(default)s)")
    log.add_argument("--json", action="store_true", help="print the figures of every round as JSON")
    _add_simulate(tools)


def _add_simulate(tools: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    simulate = tools.add_parser(
        "simulate",
        help="the simulator beside libcachesim on the same accesses, and a sweep of 8 policies at 33 capacities",
        description="Throughput of the simulator beside libcachesim, and time and memory of a whole sweep.",
        epilog=_SIMULATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    simulate.add_argument("trace", metavar="TRACE", type=Path, help="any trace that moecache trace reads")
    simulate.add_argument(
        "--capacity",
        metavar="LIST",
        default="12.5%,25%,50%",
        help="of the throughput part, all layers together (default: 12.5%%,25%%,50%%)",
    )
    simulate.add_argument("--rounds", type=int, default=3, help="rounds over all arms (default: %(default)s)")
    simulate.add_argument("--workers", metavar="N", type=int, help="threads of the sweep (default: every CPU)")
    simulate.add_argument(
        "--no-victim-agreement",
        dest="victim_agreement",
        action="store_false",
        help="sweep without it, as moecache simulate --no-victim-agreement does",
    )
    simulate.add_argument("--growth", action="store_true", help="also how a sweep grows with its sizes, on made traces")
    simulate.add_argument("--json", action="store_true", help="print every figure as JSON")


def run(given: argparse.Namespace) -> int:
    """Run the measurement and print its table. Raises MoeCacheError for anything that cannot work."""
    return _simulate(given) if given.tool == "simulate" else _log(given)


def _simulate(given: argparse.Namespace) -> int:
    from pyanalysis import bench_growth, bench_simulate  # noqa: PLC0415 - each command imports only what it needs
    from pyanalysis.traces import read_trace  # noqa: PLC0415
    from pyanalysis.traces.formats import the_log  # noqa: PLC0415

    for name, least in (("rounds", 1), ("workers", 1)):
        value = getattr(given, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name} must be a whole number of at least {least}, got {value}")
    arms = bench_simulate.throughput(read_trace(given.trace), given.capacity.split(","), given.rounds)
    swept = bench_simulate.measured_sweep(the_log(given.trace), given.workers, victim_agreement=given.victim_agreement)
    grown = bench_growth.growth(given.workers) if given.growth else []
    print((bench_simulate.as_json if given.json else bench_simulate.as_text)(arms, swept, grown))
    return 0


def _log(given: argparse.Namespace) -> int:
    from pyanalysis import bench_log  # noqa: PLC0415 - each command imports only what it needs
    from pyanalysis import run as program  # noqa: PLC0415
    from pyanalysis.llama_bench import BenchError  # noqa: PLC0415

    if given.rounds < 1:
        raise ConfigError(
            f"The '--rounds' option of moecache bench log must be at least 1. Got {given.rounds} instead."
        )
    model = read_model(given.model or ggml_moecache.embedded_model()).path
    folder = program.program_dir()
    environment = program.environment_for(program.RunRequest(capacity=given.capacity), folder)
    # The caller's own settings count in both arms, but where the log goes is what differs between them.
    variables = {k: v for k, v in environment.items() if k.startswith("GGML_MOECACHE_") and k != "GGML_MOECACHE_LOG"}
    setup = bench_log.Setup(folder, ggml_moecache.backend_path(), model, given.options.split(), variables)
    try:
        rounds = bench_log.measure(setup, given.rounds)
    except BenchError as error:
        raise BackendError(str(error)) from error
    print(bench_log.report(rounds, as_json=given.json))
    sys.stdout.flush()
    return 0
