"""Runs with a routing log, the log read back, and what stock's eval callback shows in its place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.harness.environment import Build
from tests.harness.plan import Plan, Scenario
from tests.harness.runner import Result, run_moecache

WEIGHT_STAGES = ("_scaled", "_norm", "_softmax", "")


@dataclass
class Log:
    """One run's log: events by context file in order, the other lines, run.json."""

    events: list[dict[str, Any]]
    others: list[dict[str, Any]]
    metadata: dict[str, Any]


def read_log(folder: Path, name: str = "routing.jsonl") -> Log:
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    events = [line for line in lines if line["type"] == "event"]
    others = [line for line in lines if line["type"] != "event"]
    return Log(events, others, json.loads((folder / "run.json").read_text()))


def run_logged(build: Build, plan: Plan, folder: Path, capacity: str, **environment: str) -> tuple[Result, Log]:
    result = run_moecache(build, plan, capacity=capacity, environment={"GGML_MOECACHE_LOG": str(folder), **environment})
    return result, read_log(folder)


def observed(plan: Plan) -> Plan:
    scenarios = tuple(Scenario(**{**vars(scenario), "observe_routing": True}) for scenario in plan.scenarios)
    return Plan(plan.model, scenarios, plan.n_threads)


def stock_rows(result: Result, scenario: str, step: int, layer: int, top_k: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and weights of all tokens of a step, ubatches joined: shapes (n_row, top_k)."""
    key = f"{scenario}/{step}"

    def joined(name: str) -> np.ndarray:
        parts = []
        while f"{key}/{name}/{len(parts)}" in result.arrays:
            parts.append(result.arrays[f"{key}/{name}/{len(parts)}"].reshape(-1, top_k))
        return np.concatenate(parts) if parts else np.empty((0, top_k))

    ids = joined(f"ffn_moe_topk-{layer}")
    weights = next(
        joined(f"ffn_moe_weights{stage}-{layer}")
        for stage in WEIGHT_STAGES
        if f"{key}/ffn_moe_weights{stage}-{layer}/0" in result.arrays
    )
    return ids, weights
