"""The test-bed notices a wrong expert: the rows change whose tokens are routed to the swapped experts, no others."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.harness.difference import compare
from tests.harness.environment import Build
from tests.harness.plan import ModelOptions, Plan
from tests.harness.runner import run_stock
from tests.harness.scenarios import prefill_and_decode
from tests.models.families.table import FAMILIES
from tests.models.generate import model_path, planted_routing

FAMILY = "qwen3moe"
SWAPPED = (1, 4)


@pytest.mark.parametrize("part", ["gate", "up", "down"])
def test_swapped_experts_change_their_rows_only(build: Build, tmp_path: Path, part: str) -> None:
    """Two experts of the last layer change places: attention does not carry it to other rows any more."""
    original = model_path(FAMILY, "Q4_0")
    last_layer = FAMILIES[FAMILY].geometry.n_layer - 1
    swapped = tmp_path / "swapped.gguf"
    _swap(original, swapped, f"blk.{last_layer}.ffn_{part}_exps.weight")
    scenario = prefill_and_decode(96, 0)

    expected = run_stock(build, Plan(ModelOptions(str(original)), (scenario,))).logits()
    actual = run_stock(build, Plan(ModelOptions(str(swapped)), (scenario,))).logits()

    difference = compare(expected, actual)
    assert difference.max_relative > 1e-2
    key = f"{scenario.name}/0"
    changed = np.flatnonzero((expected[key] != actual[key]).any(axis=1))
    ids = planted_routing(FAMILY).expert_ids(last_layer, scenario.steps[0].tokens)
    np.testing.assert_array_equal(changed, np.flatnonzero(np.isin(ids, SWAPPED).any(axis=1)))
    assert 0 < len(changed) < 96


def _swap(source: Path, target: Path, tensor_name: str) -> None:
    """Copy a model with the bytes of two experts of one tensor exchanged."""
    shutil.copyfile(source, target)
    tensor = next(t for t in gguf.GGUFReader(source).tensors if t.name == tensor_name)
    experts = np.array(tensor.data)
    experts[list(SWAPPED)] = experts[list(reversed(SWAPPED))]
    with target.open("r+b") as file:
        file.seek(int(tensor.data_offset))
        file.write(experts.tobytes())
