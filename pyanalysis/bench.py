"""`moecache bench`: measurements that anyone can repeat, ratios of two arms that run in turn."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ggml_moecache
from ggml_moecache.errors import BackendError, ConfigError
from ggml_moecache.gguf_file import read_model

_SIMULATE_EXAMPLES = """\
examples:
  moecache bench simulate gpt-oss-20b.npz
  moecache bench simulate log --capacity 12.5%,50% --rounds 3 --json
"""
_EXAMPLES = """\
examples:
  moecache bench log
  moecache bench log -m model.gguf --capacity all --rounds 6 --options "-p 0 -n 128 -r 3 -t 8"
  moecache bench log --json > log-cost.json
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
    log.add_argument("--capacity", choices=("0", "all"), default="all", help="default: %(default)s")
    log.add_argument("--rounds", type=int, default=4, help="rounds over both arms (default: %(default)s)")
    log.add_argument("--options", default="-p 0 -n 128 -r 3", help="options of llama-bench (default: %(default)s)")
    log.add_argument("--json", action="store_true", help="print the figures of every round as JSON")
    simulate = tools.add_parser(
        "simulate",
        help="the simulator: beside libCacheSim on the same requests, and a sweep",
        description="Speed of the simulator: lru and cumulative-lfu at one capacity beside libCacheSim's LRU and LFU "
        "on the same requests, in turn; then a sweep of eight policies over 33 capacities, and over parts of it.",
        epilog=_SIMULATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    simulate.add_argument("trace", metavar="TRACE", type=Path, help="a trace that moecache trace reads")
    simulate.add_argument(
        "--capacity", default="12.5%,25%,50%", help="of the comparison, all layers together (default: 12.5%%,25%%,50%%)"
    )
    simulate.add_argument("--rounds", type=int, default=5, help="rounds over both arms (default: %(default)s)")
    simulate.add_argument("--json", action="store_true", help="print the figures of every round as JSON")


def run(given: argparse.Namespace) -> int:
    """Run the measurement and print its table. Raises MoeCacheError for anything that cannot work."""
    return _run_simulate(given) if given.tool == "simulate" else _run_log(given)


def _run_simulate(given: argparse.Namespace) -> int:
    from pyanalysis import bench_simulate, traces  # noqa: PLC0415 - each command imports only what it needs

    measured = bench_simulate.measure(traces.read_trace(given.trace), given.capacity.split(","), given.rounds)
    print(bench_simulate.report(measured, as_json=given.json))
    sys.stdout.flush()
    return 0


def _run_log(given: argparse.Namespace) -> int:
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
