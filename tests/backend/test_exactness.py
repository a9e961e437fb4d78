"""The device computes what stock llama.cpp computes, bit for bit, in every family, type, batch form and capacity.

DESIGN 7: with everything resident as stock on that device, with capacity 0 as the CPU backend on the same ops. On the
stand-in, a device that wraps the CPU backend, both are stock on the CPU.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.harness.environment import Build, reference_device
from tests.harness.exact import CAPACITIES, assert_as_stock
from tests.harness.plan import ModelOptions, Plan
from tests.harness.runner import run_moecache
from tests.harness.scenarios import STANDARD
from tests.models.families.table import FAMILIES, MOE_FAMILIES
from tests.models.generate import TYPES, model_path
from tests.models.tokenizer import embedded_model

# Every family in two types and every type in three families at least; the rest of the product is --full.
COVERING = {
    "qwen35moe": ("F32", "Q4_0"),
    "qwen35moe-mtp": ("Q8_0", "Q4_K"),
    "qwen35moe-fused": ("F16", "Q4_K+Q6_K"),
    "qwen3moe": ("Q8_0", "Q4_K"),
    "qwen3moe-scaled": ("F32", "Q4_0"),
    "mixtral": ("F32", "Q4_K+Q6_K"),
    "mixtral-ungated-top1": ("Q8_0", "Q4_0"),
    "llama4": ("F16", "Q4_K"),
    "smallthinker": ("Q4_0", "Q4_K+Q6_K"),
    "gpt-oss": ("F16", "Q4_K", "MXFP4"),
    "deepseek2": ("Q4_0", "Q4_K+Q6_K", "MXFP4"),
    "olmoe": ("F16", "Q8_0"),
    "grovemoe": ("Q4_0", "Q4_K+Q6_K", "MXFP4"),
    "dense": ("F32", "Q4_0"),
}


def _cases() -> list[object]:
    return [
        pytest.param(
            family,
            type_name,
            id=f"{family}-{type_name}",
            marks=() if type_name in COVERING[family] else pytest.mark.full,
        )
        for family in FAMILIES
        for type_name in TYPES
    ]


def _assert_equal(build: Build, plan: Plan, capacity: str) -> None:
    assert_as_stock(build, plan, run_moecache(build, plan, capacity=capacity).logits(), capacity=capacity)


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize(("family", "type_name"), _cases())
def test_logits_equal_stock(build: Build, family: str, type_name: str, capacity: str) -> None:
    """1, 7 and 512 tokens, small batches, several ubatches, two sequences, decode after prefill, last output only."""
    if family == "grovemoe" and capacity == "0" and reference_device() is not None:
        pytest.skip("stock sums the first family's rows on the CPU, between two blocks there; the device on the GPU")
    path = str(model_path(family, type_name, build.llama_bin))
    _assert_equal(build, Plan(ModelOptions(path), STANDARD), capacity)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_trained_model(build: Build, capacity: str) -> None:
    """The embedded model, 128 experts of width 32 and top-8, routes by what it reads."""
    _assert_equal(build, Plan(ModelOptions(str(embedded_model())), STANDARD), capacity)


@pytest.mark.full
@pytest.mark.parametrize("flash_attn", [0, 1])
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_threads_and_flash_attention(build: Build, family: str, capacity: str, n_threads: int, flash_attn: int) -> None:
    """Other thread counts than the tests' 2, flash attention off and on."""
    scenarios = tuple(dataclasses.replace(scenario, flash_attn=flash_attn) for scenario in STANDARD)
    _assert_equal(build, Plan(ModelOptions(str(model_path(family, "Q4_0"))), scenarios, n_threads), capacity)
