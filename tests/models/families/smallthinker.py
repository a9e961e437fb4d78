"""smallthinker: the router reads the layer's input before attention; ReLU instead of SiLU in the experts."""

from __future__ import annotations

from gguf.constants import ExpertGatingFuncType

from tests.models.builder import ModelBuilder
from tests.models.families.parts import grouped_query_attention, grouped_query_keys, routed_experts


def write(builder: ModelBuilder) -> None:
    """Softmax router, no sliding window."""
    geometry, keys = builder.geometry, builder.keys
    grouped_query_keys(builder)
    keys.add_expert_feed_forward_length(geometry.n_ff_expert)
    keys.add_expert_gating_func(ExpertGatingFuncType.SOFTMAX)
    builder.embeddings()
    for layer in range(geometry.n_layer):
        builder.norm(f"blk.{layer}.attn_norm.weight", geometry.n_embd)
        grouped_query_attention(builder, layer, head_norms=False)
        builder.norm(f"blk.{layer}.ffn_norm.weight", geometry.n_embd)
        routed_experts(builder, layer)
