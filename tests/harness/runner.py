"""Starts worker processes: the same plan on stock llama.cpp and on the MoECache device."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.harness import plan as plans
from tests.harness.environment import Build, process_environment, reference_device

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300
# As --cpu-moe does it.
EXPERTS_ON_CPU = (r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", "CPU")


class RunFailed(RuntimeError):
    """The worker ended with an error; the message holds its last lines."""


@dataclass(frozen=True)
class Result:
    """What a worker brought back."""

    arrays: dict[str, npt.NDArray[Any]]
    log: str
    status: dict[str, Any] | None

    def logits(self) -> dict[str, npt.NDArray[np.float32]]:
        """Logits per "<scenario>/<step>"."""
        return {key.removesuffix("/logits"): value for key, value in self.arrays.items() if key.endswith("/logits")}


def run_stock(build: Build, plan: plans.Plan, *, device: str | None = None) -> Result:
    """Run the plan without the plugin, on the CPU alone or on the named stock device."""
    return _run(build, plan, device=device, capacity=None, environment={})


def run_reference(build: Build, plan: plans.Plan, *, capacity: str) -> Result:
    """Run the plan on stock llama.cpp as the device must compute it at this capacity.

    On the CPU alone both capacities mean the same. With a reference device, "all" is everything on that device and "0"
    is the experts on the CPU and everything else there, without lending large batches to the device.
    """
    device = reference_device()
    if device is not None and capacity == "0":
        model = dataclasses.replace(plan.model, overrides=(*plan.model.overrides, EXPERTS_ON_CPU))
        scenarios = tuple(dataclasses.replace(scenario, op_offload=False) for scenario in plan.scenarios)
        plan = dataclasses.replace(plan, model=model, scenarios=scenarios)
    return _run_stock_once(build, plan, device)


def reference_is_reproducible(build: Build, plan: plans.Plan, *, capacity: str) -> bool:
    """Whether stock on the reference device gives the same bits twice.

    GGML's CUDA kernels for batches assume that a token selects an expert once; GroveMoE's second family breaks that.
    """
    first = run_reference(build, plan, capacity=capacity).logits()
    _run_stock_once.cache_clear()
    second = run_reference(build, plan, capacity=capacity).logits()
    return all(np.array_equal(first[step].view(np.uint32), second[step].view(np.uint32)) for step in first)


def run_moecache(
    build: Build,
    plan: plans.Plan,
    *,
    capacity: str,
    device: str = "MoECache0",
    environment: dict[str, str] | None = None,
) -> Result:
    """Run the plan on a MoECache device; the status file's content is in the result.

    `environment` adds variables to the worker's, an empty value removes one.
    """
    return _run(build, plan, device=device, capacity=capacity, environment=environment or {})


@functools.lru_cache(maxsize=4)
def _run_stock_once(build: Build, plan: plans.Plan, device: str | None) -> Result:
    """Tests of both capacities follow each other and compare with the same result, which none of them changes."""
    return run_stock(build, plan, device=device)


def _run(
    build: Build, plan: plans.Plan, *, device: str | None, capacity: str | None, environment: dict[str, str]
) -> Result:
    with tempfile.TemporaryDirectory(prefix="moecache-run-") as scratch:
        folder = Path(scratch)
        order = {
            "plan": plans.to_json(plan),
            "llama_bin": str(build.llama_bin),
            "plugin": str(build.plugin) if capacity is not None else None,
            "device": device,
        }
        (folder / "plan.json").write_text(json.dumps(order))
        status_file = folder / "status.json"
        variables = process_environment(build, capacity=capacity, extra=environment)
        if capacity is not None:
            variables["GGML_MOECACHE_STATUS"] = str(status_file)
        variables["PYTHONPATH"] = os.pathsep.join(
            part for part in (str(REPOSITORY), os.environ.get("PYTHONPATH", "")) if part
        )
        done = subprocess.run(
            [sys.executable, "-m", "tests.harness.worker", str(folder / "plan.json"), str(folder / "out.npz")],
            cwd=REPOSITORY,
            env=variables,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        log = done.stderr.decode(errors="replace")
        if done.returncode != 0:
            raise RunFailed(f"worker on {device or 'CPU'} ended with status {done.returncode}:\n{log[-4000:]}")
        with np.load(folder / "out.npz") as stored:
            arrays = {key: stored[key] for key in stored.files}
        status = json.loads(status_file.read_text()) if status_file.is_file() else None
    return Result(arrays, log, status)
