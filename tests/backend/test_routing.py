"""An eval callback reads the router on the device: planted expert ids come out, and reading changes no logit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.harness.environment import Build
from tests.harness.exact import assert_as_stock
from tests.harness.plan import ModelOptions, Plan
from tests.harness.runner import Result, run_moecache
from tests.harness.scenarios import prefill_and_decode
from tests.models.families.table import FAMILIES, MOE_FAMILIES
from tests.models.generate import model_path, planted_routing

# A callback may cut the graph inside an MoE block, which is a fallback the plugin reports: not an error here.
OBSERVED = {"MOECACHE_REQUIRE": ""}
# Families whose router divides the selected weights by their sum, and the factor applied afterwards.
WEIGHT_SUM = {
    "qwen35moe": 1.0,
    "qwen35moe-mtp": 1.0,
    "qwen35moe-fused": 1.0,
    "qwen3moe": 1.0,
    "qwen3moe-scaled": 1.0,
    "mixtral": 1.0,
    "mixtral-ungated-top1": 1.0,
    "smallthinker": 1.0,
    "gpt-oss": 1.0,
    "deepseek2": 2.5,
    "grovemoe": 1.0,
}
# Others: olmoe's weights are the largest 5 of 10 probabilities, llama4's are 2 sigmoids of positive scores.
UNNORMALIZED_SUM = {"olmoe": (0.5, 1.0), "llama4": (1.0, 2.0)}


def _plan(family: str, *, observe: bool) -> Plan:
    return Plan(ModelOptions(str(model_path(family, "Q4_0"))), (prefill_and_decode(40, 2, observe=observe),))


def _trunk_layers(family: str) -> list[int]:
    geometry = FAMILIES[family].geometry
    return [layer for layer in geometry.moe_layers if layer < geometry.n_layer]


@pytest.fixture(scope="module", params=[(f, c) for f in MOE_FAMILIES for c in ("0", "all")], ids="-".join)
def observed(request: pytest.FixtureRequest, build: Build) -> tuple[str, str, Plan, Result]:
    family, capacity = request.param
    plan = _plan(family, observe=True)
    return family, capacity, plan, run_moecache(build, plan, capacity=capacity, environment=OBSERVED)


def test_ids_are_the_planted_ones(observed: tuple[str, str, Plan, Result]) -> None:
    """In rank order; as a set where the family adds a selection bias to the scores."""
    family, _, plan, result = observed
    routing = planted_routing(family)
    scenario = plan.scenarios[0]
    for index, step in enumerate(scenario.steps):
        for layer in _trunk_layers(family):
            ids = _router_output(result, scenario.name, index, f"ffn_moe_topk-{layer}")
            expected = routing.expert_ids(layer, step.tokens)
            if family == "deepseek2":
                ids, expected = np.sort(ids), np.sort(expected)
            np.testing.assert_array_equal(ids, expected, err_msg=f"step {index}, layer {layer}")


def test_weights_belong_to_the_ids(observed: tuple[str, str, Plan, Result]) -> None:
    """Weights fall with the rank and add up to what the family's router makes of them."""
    family, _, plan, result = observed
    name = plan.scenarios[0].name
    for layer in _trunk_layers(family):
        top_k = FAMILIES[family].geometry.top_k
        weights = _final_weights(result, f"{name}/0", layer).reshape(-1, top_k)
        assert len(weights) == 40
        assert (np.diff(weights, axis=1) < 0).all()
        if family in WEIGHT_SUM:
            np.testing.assert_allclose(weights.sum(axis=1), WEIGHT_SUM[family], rtol=1e-5)
        else:
            low, high = UNNORMALIZED_SUM[family]
            assert ((weights.sum(axis=1) > low) & (weights.sum(axis=1) < high)).all()


def test_reading_changes_nothing(build: Build, observed: tuple[str, str, Plan, Result]) -> None:
    """Logits under the callback equal stock's without a callback."""
    family, capacity, _, result = observed
    assert_as_stock(build, _plan(family, observe=False), result.logits(), capacity=capacity)


def _router_output(result: Result, scenario: str, step: int, name: str, occurrence: int = 0) -> npt.NDArray[np.generic]:
    """Shape (n_token, top_k)."""
    return result.arrays[f"{scenario}/{step}/{name}/{occurrence}"][0]


def _final_weights(result: Result, step_key: str, layer: int) -> npt.NDArray[np.float32]:
    """The weights the expert outputs are multiplied with, n_token * top_k values: the router's last form of them."""
    for stage in ("_scaled", "_norm", "_softmax", ""):
        key = f"{step_key}/ffn_moe_weights{stage}-{layer}/0"
        if key in result.arrays:
            return result.arrays[key]
    raise KeyError(f"no router weights of layer {layer} in {step_key}")
