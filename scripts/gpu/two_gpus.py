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
from pathlib import Path
from typing import Any

from pyanalysis.llama_bench import BenchError, run_llama_bench

TINY = Path("bindings/ggml_moecache/models/tiny-qwen35moe-Q4_0.gguf")
STOCK, OURS = "CUDA0/CUDA1", "MoECache0/MoECache1"
# name, devices, capacity, further options
RUNS: tuple[tuple[str, str, str | None, list[str]], ...] = (
    ("stock, experts on the GPUs", STOCK, None, []),
    ("capacity all", OURS, "all", []),
    ("stock, experts on the CPU", STOCK, None, ["-ncmoe", "99", "--no-op-offload"]),
    ("capacity 0", OURS, "0", []),
    ("capacity 25%", OURS, "25%", []),
    ("capacity 25% per layer", OURS, "25%", []),
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


def perplexity(arguments: argparse.Namespace, name: str, run: tuple[str, str | None, list[str]], folder: Path) -> str:
    """The final estimate's line; status and log go into `folder`."""
    devices, capacity, options = run
    environment = dict(os.environ)
    if capacity is not None:
        environment |= {
            "GGML_BACKEND_PATH": str(arguments.plugin), "GGML_MOECACHE_CAPACITY": capacity, "MOECACHE_REQUIRE": "1",
            "GGML_MOECACHE_STATUS": str(folder / "status.json"), "GGML_MOECACHE_POLICY": "lru",
        }  # fmt: skip
        if capacity.endswith("%"):
            environment |= {"GGML_MOECACHE_LOG": str(folder / "log"), "GGML_MOECACHE_SYNC": "1"}
        if "per layer" in name:
            environment["GGML_MOECACHE_PER_LAYER"] = "1"
    command = [
        arguments.llama_bin / "llama-perplexity", "-m", TINY, "-f", "tests/data/heldout.txt", "-c", "512", "-ub", "32",
        "--chunks", "8", "-fa", "off", "-lm", "none", "--device", devices.replace("/", ","), "-ngl", "99", *options,
    ]  # fmt: skip
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"Final estimate: (.*)", result.stdout + result.stderr)
    if result.returncode != 0 or found is None:
        raise SystemExit(f"{name}: llama-perplexity ended with {result.returncode}:\n{result.stderr[-2000:]}")
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


def main() -> int:
    """Run all, print figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bin", type=Path, required=True, help="folder of llama-perplexity and llama-bench")
    parser.add_argument("--plugin", type=Path, required=True, help="libggml-moecache.so")
    parser.add_argument("-m", "--model", type=Path, help="also measure the speed of this MoE GGUF")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of status files and logs")
    arguments = parser.parse_args()
    for name, devices, capacity, options in RUNS:
        folder = arguments.out / re.sub(r"\W+", "-", name).strip("-")
        folder.mkdir(parents=True, exist_ok=True)
        print(f"## {name}: {perplexity(arguments, name, (devices, capacity, options), folder)}", flush=True)
        for context in contexts(folder) if capacity is not None else []:
            print("  ", context)
        for file, layers in logged_layers(folder).items():
            print(f"   {file}: {layers}")
        if arguments.model is None:
            continue
        variables = {"GGML_BACKEND_PATH": str(arguments.plugin), "GGML_MOECACHE_CAPACITY": capacity} if capacity else {}
        bench = ["-m", str(arguments.model), "-ngl", "99", "-fa", "off", "-lm", "none", "-t", "16", "-p", "512", "-n"]
        try:
            speeds = run_llama_bench(
                arguments.llama_bin, [*bench, "64", "-r", "2", "-dev", devices, *options], variables
            )
        except BenchError as error:
            raise SystemExit(f"{name}: {error}") from None
        print(f"   {speeds}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
