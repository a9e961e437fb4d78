"""llama4: the router's sigmoid weights multiply the experts' input instead of their output; a shared expert too."""

from __future__ import annotations

from tests.models.builder import ModelBuilder
from tests.models.families.parts import dense_expert, grouped_query_attention, grouped_query_keys, routed_experts


def write(builder: ModelBuilder) -> None:
    """Experts in every layer; attention in chunks of 8192 tokens but in every fourth layer, as stock requires."""
    geometry, keys = builder.geometry, builder.keys
    grouped_query_keys(builder)
    keys.add_feed_forward_length(geometry.n_ff_expert)
    keys.add_expert_feed_forward_length(geometry.n_ff_expert)
    keys.add_interleave_moe_layer_step(1)
    builder.embeddings()
    for layer in range(geometry.n_layer):
        builder.norm(f"blk.{layer}.attn_norm.weight", geometry.n_embd)
        grouped_query_attention(builder, layer, head_norms=False)
        builder.norm(f"blk.{layer}.ffn_norm.weight", geometry.n_embd)
        routed_experts(builder, layer)
        dense_expert(builder, layer, geometry.n_ff_expert, "_shexp")
