"""The assertion of the exactness tests: the same bits as stock, where stock itself has the same bits twice."""

from __future__ import annotations

import pytest

from tests.harness.difference import LogitsByStep, compare
from tests.harness.environment import Build, reference_device
from tests.harness.plan import Plan
from tests.harness.runner import reference_is_reproducible, run_reference

# Between the two a GPU rounds otherwise than the CPU, which computes the misses: tests/backend/test_mixed.py.
CAPACITIES = ("0", "all") if reference_device() else ("0", "40%", "all")

N_REPEATS = 4  # pairs of runs of stock before its result counts as reproducible


def assert_as_stock(build: Build, stock_plan: Plan, actual: LogitsByStep, *, capacity: str) -> None:
    """Compare with stock's logits bit for bit.

    On a GPU stock is not always reproducible: GGML's CUDA kernels for batches assume that a token selects an expert
    once, and GroveMoE's second family breaks that. Then there is nothing to compare with, and the test says so.
    """
    difference = compare(run_reference(build, stock_plan, capacity=capacity).logits(), actual)
    if difference.equal:
        return
    if reference_device() is not None:
        for _ in range(N_REPEATS):
            if not reference_is_reproducible(build, stock_plan, capacity=capacity):
                pytest.skip(f"stock on {reference_device()} gives other bits when it is run twice on this plan")
    pytest.fail(str(difference))
