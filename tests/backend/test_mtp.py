"""The multi-token-prediction layer: a second context on the same weights, with experts of its own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.harness.difference import compare
from tests.harness.environment import Build
from tests.harness.exact import CAPACITIES
from tests.harness.plan import ModelOptions, Plan, Scenario, decode
from tests.harness.runner import run_moecache, run_reference
from tests.harness.scenarios import prefill_and_decode, token_stream
from tests.models.families.table import FAMILIES
from tests.models.generate import model_path

FAMILY = "qwen35moe-mtp"
N_TOKEN = 20


def _mtp_scenario() -> Scenario:
    """Prefill and two single tokens through the MTP layer, with given hidden states."""
    tokens = token_stream(N_TOKEN + 2)
    steps = (
        decode(tokens[:N_TOKEN]),
        decode(tokens[N_TOKEN : N_TOKEN + 1], start=N_TOKEN),
        decode(tokens[N_TOKEN + 1 :], start=N_TOKEN + 1),
    )
    seeded = tuple(dataclasses.replace(step, hidden_seed=11 + index) for index, step in enumerate(steps))
    return Scenario("mtp", seeded, is_mtp=True)


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("type_name", ["F32", "Q4_0", "Q4_K+Q6_K"])
def test_mtp_layer(build: Build, type_name: str, capacity: str) -> None:
    """A trunk context, then an MTP context: each knows the layers of its own graphs only."""
    path = str(model_path(FAMILY, type_name, build.llama_bin))
    plan = Plan(ModelOptions(path), (prefill_and_decode(7), _mtp_scenario()))
    stock = run_reference(build, plan, capacity=capacity).logits()
    result = run_moecache(build, plan, capacity=capacity)
    difference = compare(stock, result.logits())
    assert difference.equal, str(difference)
    assert np.std(stock["mtp/0"]) > 0.1

    assert result.status is not None
    trunk, mtp = (context for context in result.status["contexts"] if context["state"] == "active")
    geometry = FAMILIES[FAMILY].geometry
    assert (trunk["n_layers"], trunk["n_experts"]) == (geometry.n_layer, geometry.n_layer * geometry.n_expert)
    assert (mtp["n_layers"], mtp["n_experts"]) == (1, geometry.n_expert)
    assert geometry.n_expert == 16
    assert mtp["n_resident"] == {"0": 0, "40%": 6, "all": 16}[capacity]  # 40 % of 16 to the nearest whole one
    assert mtp["n_hits"] + mtp["n_misses"] == (N_TOKEN + 2) * geometry.top_k


def test_model_without_its_mtp_layer(build: Build) -> None:
    """load_mtp off: the MTP layer's experts do not enter the store."""
    path = str(model_path(FAMILY, "Q4_0"))
    stores = []
    for load_mtp in (True, False):
        plan = Plan(ModelOptions(path, load_mtp=load_mtp), (prefill_and_decode(7),))
        status = run_moecache(build, plan, capacity="0").status
        assert status is not None
        stores.append(next(c["store_bytes"] for c in status["contexts"] if c["state"] == "active"))
    # 3 layers of experts against 2.
    assert stores[0] == pytest.approx(1.5 * stores[1], rel=1e-3)
