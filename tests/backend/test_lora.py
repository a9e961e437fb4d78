"""LoRA adapters on attention and experts; llama.cpp puts them into the buffer type of the tensor they adapt."""

from __future__ import annotations

import pytest

from tests.harness.difference import compare
from tests.harness.environment import Build, reference_device
from tests.harness.exact import CAPACITIES, assert_as_stock
from tests.harness.plan import ModelOptions, Plan, Scenario, Step, decode
from tests.harness.runner import run_moecache, run_reference
from tests.harness.scenarios import token_stream
from tests.models.generate import model_path
from tests.models.lora import adapter_path

FAMILIES = ("qwen3moe", "mixtral", "gpt-oss", "olmoe", "grovemoe", "qwen3moe-scaled")


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_adapter_on_experts(build: Build, family: str, capacity: str) -> None:
    """Set, at half scale and taken off again between decodes: each step as stock; the adapter changes the logits."""
    if reference_device() is not None and capacity == "0":
        pytest.skip("stock runs the products of an adapter whose base is on the CPU partly on the GPU: other kernels")
    adapter = str(adapter_path(family))
    tokens = token_stream(60)
    steps = (
        decode(tokens[:40]),
        Step("lora", path=adapter, scale=1.0),
        decode(tokens[40:50], start=40),
        decode(tokens[50:51], start=50),
        Step("lora", path=adapter, scale=0.5),
        decode(tokens[51:52], start=51),
        Step("lora", path=adapter, scale=0.0),
        decode(tokens[52:60], start=52),
    )
    plan = Plan(ModelOptions(str(model_path(family, "Q4_0"))), (Scenario("lora", steps),))
    expected = run_reference(build, plan, capacity=capacity).logits()
    # With slots, blocks with an adapter are the CPU's as a whole, which MOECACHE_REQUIRE=1 refuses.
    result = run_moecache(build, plan, capacity=capacity, environment={"MOECACHE_REQUIRE": ""})
    assert_as_stock(build, plan, result.logits(), capacity=capacity)
    assert result.status is not None
    context = next(context for context in result.status["contexts"] if context["state"] != "idle")
    assert context["fallbacks"] == (["whole_block"] if capacity == "40%" else [])

    plain_steps = tuple(step for step in steps if step.action == "decode")
    plain = Plan(plan.model, (Scenario("plain", plain_steps),))
    without = run_reference(build, plain, capacity=capacity).logits()
    changed = compare({"first": without["plain/1"]}, {"first": expected["lora/2"]})
    assert changed.max_relative > 1e-2
