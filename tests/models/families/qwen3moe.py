"""qwen3moe: grouped-query attention with head norms and routed experts; optionally a scale per expert and matrix."""

from __future__ import annotations

from tests.models.builder import ModelBuilder
from tests.models.families.parts import grouped_query_attention, grouped_query_keys, routed_experts


def write(builder: ModelBuilder) -> None:
    """Plain experts."""
    geometry = builder.geometry
    grouped_query_keys(builder)
    builder.keys.add_expert_feed_forward_length(geometry.n_ff_expert)
    builder.embeddings()
    for layer in range(geometry.n_layer):
        builder.norm(f"blk.{layer}.attn_norm.weight", geometry.n_embd)
        grouped_query_attention(builder, layer)
        builder.norm(f"blk.{layer}.ffn_norm.weight", geometry.n_embd)
        routed_experts(builder, layer)


def write_scaled(builder: ModelBuilder) -> None:
    """With ffn_{gate,up,down}_exps.scale, one factor per expert between about 0.4 and 1.6."""
    write(builder)
    for layer in range(builder.geometry.n_layer):
        for part in ("gate", "up", "down"):
            builder.vector(f"blk.{layer}.ffn_{part}_exps.scale", builder.geometry.n_expert, scale=0.3, mean=1.0)
