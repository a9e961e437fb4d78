#!/usr/bin/env python3
"""A model spread over two GPUs: perplexity and placement at capacity all, 0 and 25 %, beside stock llama.cpp.

Ubatches of 32 tokens, which the cache takes. At capacity all the perplexity is that of stock with everything on the
GPUs, at 0 that of stock with the experts on the CPU; at 25 % it lies near both, and every device has slots for its own
layers only.

Example (from the project's root):
  python3 -m scripts.gpu.two_gpus --llama-bin BIN --plugin libggml-moecache.so --out results
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyanalysis.llama_bench import BenchError, run_llama_bench

TINY = Path("bindings/ggml_moecache/models/tiny-qwen35moe-Q4_0.gguf")
STOCK, OURS = "CUDA0/CUDA1", "MoECache0/MoECache1"


@dataclass(frozen=True)
class Run:
    """`variables`: of the plugin; none: stock llama.cpp without it."""

    name: str
    devices: str  # as llama-bench takes them
    variables: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


RUNS = (
    Run("stock, experts on the GPUs", STOCK),
    Run("capacity all", OURS, {"CAPACITY": "all"}),
    Run("stock, experts on the CPU", STOCK, options=("-ncmoe", "99", "--no-op-offload")),
    Run("capacity 0", OURS, {"CAPACITY": "0"}),
    Run("capacity 25%", OURS, {"CAPACITY": "25%"}),
    Run("capacity 25% per layer", OURS, {"CAPACITY": "25%", "PER_LAYER": "1"}),
)
SHOWN = (
    "device",
    "n_layers",
    "n_layers_elsewhere",
    "n_experts",
    "n_resident",
    "n_hits",
    "n_misses",
    "n_copies",
)


def variables_of(run: Run, plugin: Path) -> dict[str, str]:
    """The plugin's variables; LRU, so that slots change hands."""
    if not run.variables:
        return {}
    own = {f"GGML_MOECACHE_{name}": value for name, value in run.variables.items()}
    return {"GGML_BACKEND_PATH": str(plugin), "MOECACHE_REQUIRE": "1", "GGML_MOECACHE_POLICY": "lru", **own}


def perplexity(arguments: argparse.Namespace, run: Run, folder: Path) -> str:
    """The final estimate's line; status and log go into `folder`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GGML_MOECACHE_", "GGML_BACKEND_PATH"))}
    environment = {**kept, **variables_of(run, arguments.plugin)}
    if run.variables:
        environment["GGML_MOECACHE_STATUS"] = str(folder / "status.json")
    if run.variables.get("CAPACITY", "").endswith("%"):
        environment |= {"GGML_MOECACHE_LOG": str(folder / "log"), "GGML_MOECACHE_SYNC": "1"}
    command = [
        arguments.llama_bin / "llama-perplexity", "-m", TINY, "-f", "tests/data/heldout.txt", "-c", "512", "-ub", "32",
        "--chunks", "8", "-fa", "off", "-lm", "none", "--device", run.devices.replace("/", ","), "-ngl", "99",
        *run.options,
    ]  # fmt: skip
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"Final estimate: (.*)", result.stdout + result.stderr)
    if result.returncode != 0 or found is None:
        raise SystemExit(f"{run.name}: llama-perplexity ended with {result.returncode}:\n{result.stderr[-2000:]}")
    return found.group(1)


def contexts(folder: Path) -> list[dict[str, Any]]:
    """Figures of the devices that computed."""
    status = json.loads((folder / "status.json").read_text())
    return [{key: one.get(key) for key in SHOWN} for one in status["contexts"] if one["state"] == "active"]


def logged_layers(folder: Path) -> dict[str, str]:
    """By log file: its layers, copies that were in time, and how many of the copies have a time of their own."""
    found = {}
    for path in sorted((folder / "log").glob("*.jsonl")):
        events = [json.loads(line) for line in path.read_text().splitlines() if '"type":"event"' in line]
        layers = sorted({event["layer_id"] for event in events})
        ready = [event for event in events if event["ready_before_next_token"]]
        timed = [event for event in ready if event["copy_ready_ns"] and event["copy_duration_ns"]]
        hits = [event for event in events if any(event["cache_hit"])]
        found[path.name] = (
            f"layers {layers}, {len(ready)} events with copies in time, {len(timed)} of them timed, "
            f"{sum(1 for event in hits if event['cuda_duration_ns'])} events with a time on the device"
        )
    return found


def speeds(arguments: argparse.Namespace, run: Run) -> dict[str, float]:
    """Tokens per second by test."""
    bench = ["-m", str(arguments.model), "-ngl", "99", "-fa", "off", "-lm", "none", "-t", "16", "-p", "512", "-n", "64"]
    options = ["-nopo", "1" if run.options else "0", "-r", "2", "-dev", run.devices]
    placement = [option for option in run.options if option != "--no-op-offload"]  # llama-bench's is -nopo
    try:
        return run_llama_bench(arguments.llama_bin, [*bench, *options, *placement], variables_of(run, arguments.plugin))
    except BenchError as error:
        raise SystemExit(f"{run.name}: {error}") from None


def main() -> int:
    """Run all, print figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bin", type=Path, required=True, help="folder of llama-perplexity and llama-bench")
    parser.add_argument("--plugin", type=Path, required=True, help="libggml-moecache.so")
    parser.add_argument("-m", "--model", type=Path, help="also measure the speed of this MoE GGUF")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of status files and logs")
    arguments = parser.parse_args()
    for run in RUNS:
        folder = arguments.out / re.sub(r"\W+", "-", run.name).strip("-")
        folder.mkdir(parents=True, exist_ok=True)
        print(f"## {run.name}: {perplexity(arguments, run, folder)}", flush=True)
        for context in contexts(folder) if run.variables else []:
            print("  ", context)
        for file, layers in logged_layers(folder).items():
            print(f"   {file}: {layers}")
        if arguments.model is not None:
            print(f"   {speeds(arguments, run)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
