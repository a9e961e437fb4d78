"""The generated models are what the tests take them for."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.harness.environment import Build
from tests.models.builder import ModelBuilder
from tests.models.families.table import FAMILIES, MOE_FAMILIES
from tests.models.generate import TYPES, model_path, planted_routing
from tests.models.geometry import Geometry
from tests.models.routing import PlantedRouting


@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_planted_choice_is_distinct_and_skewed(family: str) -> None:
    """No expert twice in a token; all are used; the most popular at least twice as often as the rarest."""
    geometry = FAMILIES[family].geometry
    routing = planted_routing(family)
    for layer in geometry.moe_layers:
        ids = routing.expert_ids(layer, np.arange(geometry.n_vocab))
        assert ids.shape == (geometry.n_vocab, geometry.top_k)
        assert all(len(set(row)) == geometry.top_k for row in ids.tolist())
        uses = np.bincount(ids.ravel(), minlength=geometry.n_expert)
        assert uses.min() > 0
        # When more than half of the experts are in every top-k their counts cannot differ as much.
        assert uses.max() > uses.min() * (2 if 2 * geometry.top_k < geometry.n_expert else 1.2)


def test_groups_hold_two_experts_each() -> None:
    """deepseek2: top-4 of 12 experts in 3 groups, two of which are used: two experts from each of two groups."""
    ids = planted_routing("deepseek2").expert_ids(1, np.arange(4096))
    groups = np.sort(ids // 4, axis=1)
    assert (groups[:, 0] == groups[:, 1]).all()
    assert (groups[:, 2] == groups[:, 3]).all()
    assert (groups[:, 1] < groups[:, 2]).all()


def test_levels_give_the_planted_order() -> None:
    """Router times embedding, computed here, ranks the experts as `expert_ids` says."""
    geometry = Geometry(n_vocab=50, n_expert=8, top_k=3)
    routing = PlantedRouting(geometry, seed=5)
    embedding = np.random.default_rng(0).standard_normal((50, geometry.n_embd)).astype(np.float32)
    routing.write_levels(embedding)
    for layer in geometry.moe_layers:
        scores = embedding @ routing.router(layer).T
        order = np.argsort(-scores, axis=1)[:, :3]
        np.testing.assert_array_equal(order, routing.expert_ids(layer, np.arange(50)))


def test_tensors_do_not_depend_on_their_company(tmp_path: Path) -> None:
    """The same name and seed give the same values, whatever is written before; another seed gives others."""

    def values(seed: int, *, company: bool) -> np.ndarray:
        path = tmp_path / f"{seed}-{company}.gguf"
        builder = ModelBuilder(path, "llama", Geometry(), gguf.GGMLQuantizationType.F32, seed)
        if company:
            builder.matrix("blk.0.attn_q.weight", 256, 256)
        builder.matrix("blk.0.attn_k.weight", 128, 256)
        builder.close()
        return np.array(next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_k.weight").data)

    np.testing.assert_array_equal(values(1, company=False), values(1, company=True))
    assert (values(1, company=False) != values(2, company=False)).any()


@pytest.mark.parametrize(
    ("type_name", "expected"),
    [
        ("Q4_0", {"Q4_0"}),
        ("Q8_0", {"Q8_0"}),
        ("F16", {"F16"}),
        ("F32", {"F32"}),
        ("Q4_K", {"Q4_K"}),
        ("Q4_K+Q6_K", {"Q4_K", "Q6_K"}),
        ("MXFP4", {"MXFP4"}),
    ],
)
def test_expert_types(build: Build, type_name: str, expected: set[str]) -> None:
    """grovemoe has both expert families; in the mixed type only down of odd layers is Q6_K."""
    tensors = gguf.GGUFReader(model_path("grovemoe", type_name, build.llama_bin)).tensors
    experts = {tensor.name: tensor.tensor_type.name for tensor in tensors if "exps.weight" in tensor.name}
    assert len(experts) == 12
    assert set(experts.values()) == expected
    if type_name == "Q4_K+Q6_K":
        six_bit = {name for name, kind in experts.items() if kind == "Q6_K"}
        assert six_bit == {"blk.1.ffn_down_exps.weight", "blk.1.ffn_down_chexps.weight"}


def test_types_are_complete() -> None:
    assert TYPES == ("F32", "F16", "Q8_0", "Q4_0", "Q4_K", "Q4_K+Q6_K", "MXFP4")


@pytest.mark.parametrize(("family", "type_name"), [("qwen", "Q4_0"), ("qwen3moe", "Q3_K")])
def test_unknown_names_are_refused(family: str, type_name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown (family|type) .*, known are: "):
        model_path(family, type_name)
