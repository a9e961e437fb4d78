#!/usr/bin/env python3
r"""Decode speed of policies and capacities, measured side by side on the MoECache device.

Every arm runs once per round, in turn. A run starts with an empty cache: "first" is its first repetition, "last"
its last one, when the cache is warm. Hit rate, copies and late copies are of the whole run. Needs Python and a CUDA
build of llama.cpp.

Example (from the project's root):
  python3 -m scripts.gpu.compare_policies --llama-bin BIN --plugin libggml-moecache.so -m MODEL.gguf \
      --policies lru,cumulative-lfu --capacities 10%,25%
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyanalysis.llama_bench import BenchError, repetitions_of_llama_bench

COUNTERS = ("n_hits", "n_misses", "n_copies", "n_copies_late", "copy_bytes", "n_graphs")


def run_arm(arguments: argparse.Namespace, policy: str, capacity: str, sync: bool) -> dict[str, Any]:
    """Tokens per second of every repetition, and the counters of all contexts."""
    with tempfile.TemporaryDirectory(prefix="moecache-policies-") as scratch:
        status = Path(scratch) / "status.json"
        variables = {
            "GGML_BACKEND_PATH": str(arguments.plugin),
            "GGML_MOECACHE_STATUS": str(status),
            "GGML_MOECACHE_CAPACITY": capacity,
            "GGML_MOECACHE_POLICY": policy,
            "GGML_MOECACHE_SYNC": "1" if sync else "0",
            "MOECACHE_REQUIRE": "1",
        }
        options = ["-m", str(arguments.model), "-ngl", "99", "-dev", "MoECache0", "-lm", "none", "-p", "0"]
        try:
            speeds = repetitions_of_llama_bench(arguments.llama_bin, options + arguments.options.split(), variables)
        except BenchError as error:
            raise SystemExit(f"{policy} at {capacity}: {error}") from None
        contexts = json.loads(status.read_text(encoding="utf-8"))["contexts"]
    counters = {name: sum(context[name] for context in contexts) for name in COUNTERS}
    return {"policy": policy, "capacity": capacity, "speeds": next(iter(speeds.values())), **counters}


def table(runs: list[dict[str, Any]]) -> str:
    """Aligned, one line per arm: medians over the rounds."""
    head = f"{'capacity':>8} {'policy':28} {'first t/s':>10} {'last t/s':>9} {'hits':>7} {'copies/token':>13}"
    lines = [f"{head} {'MB/token':>9} {'late':>6}"]
    for capacity, policy in dict.fromkeys((run["capacity"], run["policy"]) for run in runs):
        same = [run for run in runs if (run["capacity"], run["policy"]) == (capacity, policy)]
        first, last = (statistics.median(run["speeds"][place] for run in same) for place in (0, -1))
        one = same[-1]
        rate = one["n_hits"] / max(1, one["n_hits"] + one["n_misses"])
        lines.append(
            f"{capacity:>8} {policy:28} {first:10.1f} {last:9.1f} {rate:7.2%} {one['n_copies'] / one['n_graphs']:13.1f}"
            f" {one['copy_bytes'] / one['n_graphs'] / 1e6:9.1f} {one['n_copies_late'] / max(1, one['n_copies']):6.1%}"
        )
    return "\n".join(lines)


def main() -> int:
    """Run all rounds, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bin", type=Path, required=True, help="folder of llama-bench")
    parser.add_argument("--plugin", type=Path, required=True, help="libggml-moecache.so")
    parser.add_argument("-m", "--model", type=Path, required=True, help="a MoE GGUF")
    parser.add_argument("--policies", default="lru,cumulative-lfu,decayed-lfu", help="comma between them")
    parser.add_argument("--capacities", default="10%,25%,45%", help="comma between them (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds over all arms (default: %(default)s)")
    parser.add_argument("--options", default="-fa off -t 16 -n 128 -r 3", help="for llama-bench (default: %(default)s)")
    parser.add_argument("--sync", action="store_true", help="wait for every copy (GGML_MOECACHE_SYNC=1)")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    arguments = parser.parse_args()
    runs = []
    for index in range(arguments.rounds):
        for capacity in arguments.capacities.split(","):
            for policy in arguments.policies.split(","):
                runs.append(run_arm(arguments, policy, capacity, arguments.sync))
                print(f"round {index + 1}/{arguments.rounds}: {runs[-1]}", file=sys.stderr, flush=True)
    print(table(runs))
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
