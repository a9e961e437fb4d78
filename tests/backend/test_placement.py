"""Where the user puts layers and experts they stay, and the result is stock's: -ngl N, -ncmoe N, -ot, load modes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.harness.environment import Build, reference_device
from tests.harness.exact import CAPACITIES, assert_as_stock
from tests.harness.plan import ModelOptions, Plan
from tests.harness.runner import Result, run_moecache
from tests.harness.scenarios import prefill_and_decode, two_sequences
from tests.models.generate import model_path

SCENARIOS = (prefill_and_decode(7), prefill_and_decode(100), two_sequences())
LOAD_MODES = {"none": 0, "mmap": 1, "mlock": 2, "direct-io": 4}


def _run(build: Build, capacity: str, family: str = "qwen3moe", **options: Any) -> Result:
    """Run on the device and compare with stock.

    On the CPU alone stock gives one result wherever a layer is placed. On a GPU stock must place layers likewise, and
    at capacity 0, where its experts stay on the CPU, neither side may lend large batches to the GPU.
    """
    environment = options.pop("environment", {})
    path = str(model_path(family, "Q4_0"))
    scenarios = SCENARIOS
    stock_options = {}
    if reference_device() is not None:
        stock_options = options
        scenarios = tuple(dataclasses.replace(scenario, op_offload=capacity != "0") for scenario in SCENARIOS)
    plan = Plan(ModelOptions(path, **options), scenarios)
    result = run_moecache(build, plan, capacity=capacity, environment=environment)
    stock_plan = Plan(ModelOptions(path, **stock_options), scenarios)
    assert_as_stock(build, stock_plan, result.logits(), capacity=capacity)
    return result


def _first_context(result: Result) -> dict[str, Any]:
    assert result.status is not None
    return next(context for context in result.status["contexts"] if context["state"] != "idle")


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize(("n_gpu_layers", "n_layer"), [(1, 0), (2, 1), (3, 2), (4, 3), (99, 3)])
def test_layers_on_the_device(build: Build, capacity: str, n_gpu_layers: int, n_layer: int) -> None:
    """qwen3moe has 3 layers of 6 experts; llama.cpp counts the output layer first, then layers from the last one on."""
    # With no MoE layer on the device there is nothing to cache, which MOECACHE_REQUIRE makes an error.
    environment = {"MOECACHE_REQUIRE": ""} if n_layer == 0 else {}
    result = _run(build, capacity, n_gpu_layers=n_gpu_layers, environment=environment)
    if n_layer:
        context = _first_context(result)
        assert context["state"] == "active"
        assert context["n_layers"] == n_layer
        assert context["n_experts"] == 6 * n_layer
    else:
        assert "moecache: active" not in result.log


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_no_layer_on_the_device(build: Build, capacity: str) -> None:
    """-ngl 0: nothing of the model is on the device; large batches may still be lent to it."""
    result = _run(build, capacity, n_gpu_layers=0, environment={"MOECACHE_REQUIRE": ""})
    assert "moecache: active" not in result.log


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize(("pattern", "n_elsewhere"), [
    (r"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps", 1),
    (r"blk\.[01]\.ffn_(up|down|gate|gate_up)_(ch|)exps", 2),
])  # fmt: skip
@pytest.mark.parametrize("family", ["qwen3moe", "qwen35moe-fused", "grovemoe"])
def test_experts_kept_on_the_cpu(build: Build, capacity: str, family: str, pattern: str, n_elsewhere: int) -> None:
    """-ncmoe N keeps the experts of the first N layers in the CPU's buffers; they are counted as elsewhere."""
    n_moe_layer = {"qwen3moe": 3, "qwen35moe-fused": 2, "grovemoe": 2}[family]
    remaining = n_moe_layer - n_elsewhere
    environment = {} if remaining else {"MOECACHE_REQUIRE": ""}
    result = _run(build, capacity, family, overrides=((pattern, "CPU"),), environment=environment)
    context = _first_context(result)
    if remaining:
        assert context["state"] == "active"
        assert context["n_layers"] == remaining
        assert context["n_layers_elsewhere"] == n_elsewhere
        assert context["fallbacks"] == []
    else:
        assert (context["state"], context["reason"]) == ("inactive", "experts_elsewhere")


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_only_down_kept_on_the_cpu(build: Build, capacity: str) -> None:
    """-ot takes one of the three tensors of a layer away: what is left of the block is computed all the same."""
    if reference_device() is not None:
        pytest.skip("stock computes the activation between on the CPU, the device on the GPU: other kernels")
    _run(build, capacity, overrides=((r"blk\.1\.ffn_down_exps", "CPU"),), environment={"MOECACHE_REQUIRE": ""})


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_attention_kept_on_the_cpu(build: Build, capacity: str) -> None:
    """-ot on other tensors leaves the experts in the store."""
    context = _first_context(_run(build, capacity, overrides=((r"attn", "CPU"),)))
    assert context["n_experts"] == 18


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("mode", LOAD_MODES)
def test_load_modes(build: Build, capacity: str, mode: str) -> None:
    """The store is filled from the mapping or by reading the file into it, with the same result."""
    context = _first_context(_run(build, capacity, load_mode=LOAD_MODES[mode]))
    assert context["n_experts"] == 18


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("use_extra_bufts", [False, True])
def test_repacking_does_not_reach_the_store(build: Build, capacity: str, use_extra_bufts: bool) -> None:
    """With all layers on the device the CPU backend's repacked types are offered but get no weight of them."""
    context = _first_context(_run(build, capacity, use_extra_bufts=use_extra_bufts))
    assert context["n_experts"] == 18
