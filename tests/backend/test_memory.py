"""Sequence memory, saved state and several contexts: as stock, step for step."""

from __future__ import annotations

import numpy as np
import pytest

from tests.harness.environment import Build
from tests.harness.exact import CAPACITIES, assert_as_stock
from tests.harness.plan import ModelOptions, Plan, Scenario, Step, decode
from tests.harness.runner import run_moecache
from tests.harness.scenarios import token_stream
from tests.models.families.table import MOE_FAMILIES
from tests.models.generate import model_path


def _equal_to_stock(build: Build, family: str, scenario: Scenario, capacity: str) -> dict[str, np.ndarray]:
    plan = Plan(ModelOptions(str(model_path(family, "Q4_0"))), (scenario,))
    actual = run_moecache(build, plan, capacity=capacity).logits()
    assert_as_stock(build, plan, actual, capacity=capacity)
    return actual


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("family", ["qwen3moe", "gpt-oss", "deepseek2"])
def test_kv_shift(build: Build, family: str, capacity: str) -> None:
    """Positions 4 to 11 are removed and the rest moves up, as a full context does: the K cache is rotated in place."""
    tokens = token_stream(30)
    steps = (
        decode(tokens[:24]),
        Step("remove", start=4, end=12),
        Step("shift", start=12, end=-1, delta=-8),
        decode(tokens[24:27], start=16),
        decode(tokens[27:28], start=19),
    )
    _equal_to_stock(build, family, Scenario("shift", steps), capacity)


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("family", ["qwen3moe", "qwen35moe"])
def test_sequence_copy(build: Build, family: str, capacity: str) -> None:
    """A second sequence starts from a copy of the first one and goes its own way."""
    tokens = token_stream(16)
    steps = (
        decode(tokens[:10]),
        Step("copy", sequence=0, target=1),
        decode(tokens[10:12], start=10),
        decode(tokens[12:16], start=10, sequence=1),
    )
    logits = _equal_to_stock(build, family, Scenario("copy", steps, n_seq_max=2), capacity)
    assert (logits["copy/2"][0] != logits["copy/3"][0]).any()


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_state_save_and_restore(build: Build, family: str, capacity: str) -> None:
    """Decoding after a restored state repeats the logits of decoding after the state was saved, in the same context
    and in a new one."""
    tokens = token_stream(13)
    steps = (
        decode(tokens[:9]),
        Step("save"),
        decode(tokens[9:11], start=9),
        Step("load"),
        decode(tokens[9:11], start=9),
        Step("load", context=1),
        decode(tokens[9:11], start=9, context=1),
    )
    logits = _equal_to_stock(build, family, Scenario("state", steps), capacity)
    np.testing.assert_array_equal(logits["state/2"], logits["state/4"])
    np.testing.assert_array_equal(logits["state/2"], logits["state/6"])


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("family", ["qwen35moe", "grovemoe"])
def test_two_contexts_on_one_model(build: Build, family: str, capacity: str) -> None:
    """Two contexts decode in turns; each gives what it gives alone."""
    one, two = token_stream(14, seed=1), token_stream(14, seed=2)
    steps = (
        decode(one[:8]),
        decode(two[:11], context=1),
        decode(one[8:9], start=8),
        decode(two[11:12], start=11, context=1),
        decode(one[9:14], start=9),
        decode(two[12:14], start=12, context=1),
    )
    joint = _equal_to_stock(build, family, Scenario("joint", steps), capacity)
    own_steps = (decode(one[:8]), decode(one[8:9], start=8), decode(one[9:14], start=9))
    alone = _equal_to_stock(build, family, Scenario("alone", own_steps), capacity)
    for index, joint_index in enumerate((0, 2, 4)):
        np.testing.assert_array_equal(joint[f"joint/{joint_index}"], alone[f"alone/{index}"])
