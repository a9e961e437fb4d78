#!/usr/bin/env python3
"""Hit rates of runs with a cache, from their logs, beside what the simulator predicts for the same routing.

Policy and capacity are those of the log. Predicted with copies that are there at the next token, and with copies that
take as long as a cost model says; event by event, with the runtime's own policy code.

Example (from the project's root, after STEPS=hit_rates scripts/gpu/measure out):
  for f in out/hits-*.tgz; do tar xzf $f -C out; done
  python3 -m scripts.gpu.predicted_hit_rates --cost h200-calibrated out/hits-25 out/hits-45
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import pyanalysis
from pyanalysis import traces


def events_of(folder: Path) -> list[dict[str, Any]]:
    """The events that a cache took."""
    lines = (folder / "routing.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["type"] == "event" and event["cache_hit"]]


def predicted(trace: traces.Trace, run: dict[str, Any], cost: str | None) -> float:
    """Hit rate in per cent; without a cost model every copy is there at the next token."""
    parameters = run["policy_parameters"]
    capacity, per_layer = parameters["n_slots"], parameters["per_layer"]
    if per_layer:
        raise SystemExit(
            "the budgets of logs with GGML_MOECACHE_PER_LAYER=1 are not in run.json: use one for all layers"
        )
    result = pyanalysis.simulate(trace, run["policy"], capacity, cost=cost, mode="as-run")
    return 100 * result.hit_rate


def times_of(events: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Microseconds of copies per expert, of the CPU per missed row, of the GPU per event, as logged."""
    return {
        "copy of an expert": [
            event["copy_duration_ns"] / len(event["admitted"]) / 1e3 for event in events if event["copy_duration_ns"]
        ],
        "CPU, a missed row": [
            event["cpu_duration_ns"] / event["cache_hit"].count(False) / 1e3
            for event in events
            if event["cpu_duration_ns"] and event["cache_hit"].count(False)
        ],
        "GPU, an event with hits": [event["cuda_duration_ns"] / 1e3 for event in events if event["cuda_duration_ns"]],
    }


def main() -> int:
    """Print a line per log and prediction, then the logged times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path, nargs="+", help="folders of GGML_MOECACHE_LOG")
    parser.add_argument("--cost", default="h200-calibrated", help="cost model (default: %(default)s)")
    arguments = parser.parse_args()
    print(f"{'log':20} {'policy':24} {'slots':>6} {'measured':>9} {'ideal':>9} {'clocked':>9} {'late events':>12}")
    for folder in arguments.logs:
        run = json.loads((folder / "run.json").read_text())
        events = events_of(folder)
        trace = traces.read_trace(folder)
        measured = 100 * float(np.mean([hit for event in events for hit in event["cache_hit"]]))
        told = [event["ready_before_next_token"] for event in events if event["ready_before_next_token"] is not None]
        print(
            f"{folder.name:20} {run['policy']:24} {run['policy_parameters']['n_slots']:6} {measured:8.2f}%"
            f" {predicted(trace, run, None):8.2f}% {predicted(trace, run, arguments.cost):8.2f}%"
            f" {100 * told.count(False) / max(1, len(told)):11.2f}%"
        )
        for name, values in times_of(events).items():
            if values:
                low, middle, high = np.percentile(values, [10, 50, 90])
                print(
                    f"  {name:26} {middle:8.1f} us (10 % below {low:.1f}, 10 % above {high:.1f}), {len(values)} events"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
