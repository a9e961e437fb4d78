"""The operating regime: experts of a decoding step over the slots, by hand and against sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from pyanalysis import simulate
from pyanalysis.simulation import regime
from pyanalysis.simulation.regime import Regime, Steps
from tests.pyanalysis.simulation.small import small_trace, traces

# Two requests decode together: ubatch 0 asks for {0, 1, 2} and {3, 4, 5, 0}, ubatch 1 for {0, 1} twice.
IDS = [[[0, 1], [3, 4]], [[1, 2], [5, 0]], [[0, 1], [0, 1]]]
TOGETHER = small_trace(IDS, 6, request=[0, 1, 0], batch=[0, 0, 1])


def test_a_step_is_a_ubatch_where_they_are_known():
    steps = Steps.of(TOGETHER)
    assert steps.unit == "ubatch"
    assert steps.by_layer.tolist() == [[3, 4], [2, 2]]
    assert steps.total.tolist() == [7, 4]
    alone = Steps.of(small_trace(IDS, 6))
    assert alone.unit == "token"
    assert alone.by_layer.tolist() == [[2, 2]] * 3


def test_prompts_are_no_steps():
    steps = Steps.of(small_trace(IDS, 6, phase=[0, 0, 1], batch=[0, 0, 1]))
    assert steps.by_layer.tolist() == [[2, 2]]
    none = Steps.of(small_trace(IDS, 6, phase=[0, 0, 0]))
    assert none.over([6], per_layer=False) is None


def test_over_slots():
    steps = Steps.of(TOGETHER)
    assert steps.over([6], per_layer=False) == Regime(pytest.approx((7 / 6 + 4 / 6) / 2), 0.5)
    assert steps.over([2, 4], per_layer=False) == steps.over([6], per_layer=False)  # two sizes of expert
    assert steps.over([3, 4], per_layer=True) == Regime(pytest.approx((1 + 1 + 2 / 3 + 1 / 2) / 4), 0.0)
    assert steps.over([0], per_layer=False) is None
    assert steps.over([3, 0], per_layer=True) is None


def test_the_line():
    at = [("0", None), ("25%", Regime(1.25, 0.5)), ("all", Regime(0.06, 0.0))]
    assert regime.line("ubatch", at, per_layer=True) == (
        "different experts that a ubatch uses over the slots of a layer, at 25%: 1.25 (above 1 in 50.0%), all: 0.06"
    )
    assert regime.line("token", [("0", None)], per_layer=False) == ""


@given(traces())
def test_the_union_is_that_of_sets(trace):
    column, layers = trace.columns
    expected: dict[int, list[set]] = {}
    for row in range(trace.n_events):
        token = int(trace.tokens.of_event[row])
        sets = expected.setdefault(token, [set() for _ in layers])
        sets[column[row]] |= set(trace.ids[row].tolist()) - {-1}
    assert Steps.of(trace).by_layer.tolist() == [[len(s) for s in expected[token]] for token in sorted(expected)]


def test_many_steps_are_counted_in_parts(monkeypatch):
    ids = np.random.default_rng(0).permuted(np.tile(np.arange(5), (40, 3, 1)), axis=2)[:, :, :2]
    trace = small_trace(ids, 5, batch=np.arange(40) // 3)
    whole = Steps.of(trace).by_layer
    monkeypatch.setattr(regime, "_MOST_CELLS", 100)  # six steps at once
    assert Steps.of(trace).by_layer.tolist() == whole.tolist()
    assert whole.max() > 2


def test_results_have_it():
    result = simulate(TOGETHER, "lru", "50%", mode="as-run")
    assert (result.step, result.step_experts_over_slots) == ("ubatch", pytest.approx(11 / 12))
    assert result.steps_above_slots == 0.5
    assert result.to_arrow()["steps_above_slots"].to_pylist() == [0.5]
