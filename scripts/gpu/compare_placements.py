#!/usr/bin/env python3
"""Speed of the placements of a MoE model's experts, measured side by side with stock llama-bench.

Every arm runs once per round, in turn, so that a drift of the machine meets all of them; the table gives the median
over the rounds, its spread, and the ratio to full load of the same round; then the peak of the device memory in use.
Needs Python and a CUDA build of llama.cpp.

Examples (from the project's root):
  python3 -m scripts.gpu.compare_placements --llama-bin BIN --plugin libggml-moecache.so -m MODEL.gguf --json out.json
  python3 -m scripts.gpu.compare_placements ... --arms "25%,-ncmoe 30" --options "-p 0 -n 128 -r 3"

"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyanalysis.llama_bench import BenchError, run_llama_bench

from .peak_memory import PeakMemory

# name: (llama-bench options, environment); {device} is the stock device, {ours} the one of this project
ARMS: dict[str, tuple[list[str], dict[str, str]]] = {
    "stock, everything on the GPU": (["-dev", "{device}"], {}),
    "MoECache, capacity all": (["-dev", "{ours}", "-lm", "none"], {"GGML_MOECACHE_CAPACITY": "all"}),
    "stock, -ncmoe 99": (["-dev", "{device}", "-ncmoe", "99", "-lm", "none"], {}),
    "MoECache, capacity 0": (["-dev", "{ours}", "-lm", "none"], {"GGML_MOECACHE_CAPACITY": "0"}),
    "stock, -ncmoe 30": (
        ["-dev", "{device}", "-ncmoe", "30", "-lm", "none"],
        {},
    ),  # of 40 layers: 25 %
    "MoECache, capacity 25%": (["-dev", "{ours}", "-lm", "none"], {"GGML_MOECACHE_CAPACITY": "25%"}),
    "stock, -ncmoe 22": (["-dev", "{device}", "-ncmoe", "22", "-lm", "none"], {}),  # 45 %
    "MoECache, capacity 45%": (["-dev", "{ours}", "-lm", "none"], {"GGML_MOECACHE_CAPACITY": "45%"}),
}
FULL_LOAD = "stock, everything on the GPU"


def run_arm(arguments: argparse.Namespace, name: str, status: Path) -> dict[str, float]:
    """Tokens per second by test ("pp512", "tg128") of one llama-bench run."""
    options, variables = ARMS[name]
    names = {"device": arguments.device, "ours": arguments.ours}
    options = ["-m", str(arguments.model), "-ngl", "99", *(option.format(**names) for option in options)]
    if variables:
        plugin = {"GGML_BACKEND_PATH": str(arguments.plugin), "GGML_MOECACHE_STATUS": str(status)}
        variables = {**variables, **plugin, "MOECACHE_REQUIRE": "1"}
    try:
        return run_llama_bench(arguments.llama_bin, options + arguments.options.split(), variables)
    except BenchError as error:
        raise SystemExit(f"{name}: {error}") from None


def table(results: dict[str, list[dict[str, float]]]) -> str:
    """Aligned: per arm and test the median, minimum and maximum of the rounds and the median ratio to full load."""
    lines = [f"{'placement':32} {'test':8} {'median t/s':>11} {'min':>9} {'max':>9} {'of full load':>13}"]
    for name, rounds in results.items():
        for test in rounds[0]:
            values = [speeds[test] for speeds in rounds]
            ratios = [speeds[test] / full[test] for speeds, full in zip(rounds, results[FULL_LOAD], strict=True)]
            lines.append(
                f"{name:32} {test:8} {statistics.median(values):11.1f} {min(values):9.1f} {max(values):9.1f}"
                f" {100 * statistics.median(ratios):12.1f}%"
            )
    return "\n".join(lines)


def hit_rates(statuses: dict[str, Any]) -> str:
    """Per arm with a cache, over all contexts of its last run: rows computed on the GPU, copies, late copies."""
    lines = []
    for name, status in statuses.items():
        contexts = [context for context in status["contexts"] if context["policy"]]
        hits, misses, copies, late = (
            sum(context[field] for context in contexts) for field in ("n_hits", "n_misses", "n_copies", "n_copies_late")
        )
        if contexts:
            rate = 100 * hits / max(1, hits + misses)
            lines.append(f"{name:32} {rate:6.2f} % of {hits + misses} rows on the GPU, {copies} copies, {late} late")
    return "\n".join(lines)


def memory_table(peaks: dict[str, list[int | None]]) -> str:
    """Per arm the most device memory that was in use at once, over all rounds, other processes' included."""
    lines = [f"{'placement':32} {'peak MiB':>9}"]
    for name, rounds in peaks.items():
        known = [mib for mib in rounds if mib is not None]
        lines.append(f"{name:32} {max(known) if known else 'not known':>9}")
    return "\n".join(lines)


def main() -> int:
    """Run all rounds, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bin", type=Path, required=True, help="folder of llama-bench")
    parser.add_argument("--plugin", type=Path, required=True, help="libggml-moecache.so")
    parser.add_argument("-m", "--model", type=Path, required=True, help="a MoE GGUF that fits the GPU as a whole")
    parser.add_argument("--device", default="CUDA0", help="stock device (default: %(default)s)")
    parser.add_argument("--ours", default="MoECache0", help="device of this project (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all arms (default: %(default)s)")
    parser.add_argument("--options", default="-p 512 -n 128 -r 3", help="for llama-bench (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    parser.add_argument("--arms", help="only arms whose names hold one of these (a,b,c), beside full load")
    arguments = parser.parse_args()
    wanted = arguments.arms.split(",") if arguments.arms else [""]
    names = [name for name in ARMS if name == FULL_LOAD or any(part in name for part in wanted)]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    peaks: dict[str, list[int | None]] = {name: [] for name in names}
    statuses: dict[str, Any] = {}
    for index in range(arguments.rounds):
        for name in names:
            status = Path(tempfile.gettempdir()) / f"moecache-status-{os.getpid()}.json"
            with PeakMemory() as peak:
                results[name].append(run_arm(arguments, name, status))
            peaks[name].append(peak.mib)
            if status.exists():
                statuses[name] = json.loads(status.read_text())
                status.unlink()
            print(f"round {index + 1}/{arguments.rounds}: {name}: {results[name][-1]}", file=sys.stderr, flush=True)
    print(table(results))
    print(hit_rates(statuses))
    print(memory_table(peaks))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"speeds": results, "peak_mib": peaks, "status": statuses}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
