"""The families of test models, one line each. A new one: a `write` function in a file beside this one and a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.models.builder import ModelBuilder
from tests.models.families import (
    deepseek2,
    gpt_oss,
    grovemoe,
    llama,
    llama4,
    olmoe,
    qwen3moe,
    qwen35moe,
    smallthinker,
)
from tests.models.geometry import Geometry


@dataclass(frozen=True)
class Family:
    """One kind of model: its architecture name in GGUF, its lengths and the function that writes its tensors."""

    name: str
    arch: str
    geometry: Geometry
    write: Callable[[ModelBuilder], None]
    n_expert_tensor_per_layer: int = 3
    n_expert_family: int = 1

    @property
    def n_expert_total(self) -> int:
        """Experts of all layers that decode uses (the MTP layer is not one of them), all expert families counted."""
        geometry = self.geometry
        n_trunk = geometry.n_layer - geometry.n_dense_lead
        adjugate = geometry.n_expert // grovemoe.EXPERTS_PER_GROUP if self.n_expert_family == 2 else 0
        return n_trunk * (geometry.n_expert + adjugate)


_QWEN35 = Geometry(n_expert=16, top_k=4)

FAMILIES = {
    family.name: family
    for family in (
        Family("qwen35moe", "qwen35moe", _QWEN35, qwen35moe.write),
        Family("qwen35moe-mtp", "qwen35moe", Geometry(n_expert=16, top_k=4, n_mtp_layer=1), qwen35moe.write),
        Family("qwen35moe-fused", "qwen35moe", _QWEN35, qwen35moe.write_fused, n_expert_tensor_per_layer=2),
        Family("qwen3moe", "qwen3moe", Geometry(n_layer=3, n_expert=6, top_k=3, n_ff_expert=512), qwen3moe.write),
        Family("qwen3moe-scaled", "qwen3moe", Geometry(n_expert=8, top_k=2), qwen3moe.write_scaled),
        Family("mixtral", "llama", Geometry(n_expert=8, top_k=2), llama.write),
        Family(
            "mixtral-ungated-top1",
            "llama",
            Geometry(n_expert=5, top_k=1),
            llama.write_ungated,
            n_expert_tensor_per_layer=2,
        ),
        Family("llama4", "llama4", Geometry(n_layer=4, n_expert=4, top_k=2), llama4.write),
        Family("smallthinker", "smallthinker", Geometry(n_expert=8, top_k=3), smallthinker.write),
        Family("gpt-oss", "gpt-oss", Geometry(n_expert=8, top_k=4), gpt_oss.write),
        Family(
            "deepseek2",
            "deepseek2",
            Geometry(n_layer=3, n_expert=12, top_k=4, n_dense_lead=1, n_group=3, n_group_used=2),
            deepseek2.write,
        ),
        Family("olmoe", "olmoe", Geometry(n_expert=10, top_k=5, n_head_kv=4), olmoe.write),
        Family(
            "grovemoe", "grovemoe", Geometry(n_expert=8, top_k=3), grovemoe.write, n_expert_tensor_per_layer=6,
            n_expert_family=2,
        ),
        Family("dense", "llama", Geometry(n_expert=0, top_k=0), llama.write, n_expert_tensor_per_layer=0),
    )
}  # fmt: skip

MOE_FAMILIES = tuple(name for name, family in FAMILIES.items() if family.geometry.n_expert)
