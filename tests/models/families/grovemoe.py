"""grovemoe: two expert families per layer; the adjugate experts ("chexps") are shared by the experts of a group.

A token that selects two experts of one group selects the same adjugate expert twice.
"""

from __future__ import annotations

from tests.models.builder import ModelBuilder
from tests.models.families.parts import (
    expert_matrices,
    grouped_query_attention,
    grouped_query_keys,
    routed_experts,
)

EXPERTS_PER_GROUP = 2
N_FF_ADJUGATE = 256


def write(builder: ModelBuilder) -> None:
    """n_expert / EXPERTS_PER_GROUP adjugate experts beside the n_expert ordinary ones."""
    geometry, keys = builder.geometry, builder.keys
    grouped_query_keys(builder)
    keys.add_expert_feed_forward_length(geometry.n_ff_expert)
    keys.add_expert_chunk_feed_forward_length(N_FF_ADJUGATE)
    keys.add_experts_per_group(EXPERTS_PER_GROUP)
    keys.add_expert_group_scale(0.05)
    builder.embeddings()
    for layer in range(geometry.n_layer):
        builder.norm(f"blk.{layer}.attn_norm.weight", geometry.n_embd)
        grouped_query_attention(builder, layer)
        builder.norm(f"blk.{layer}.ffn_norm.weight", geometry.n_embd)
        routed_experts(builder, layer)
        expert_matrices(builder, layer, "chexps", geometry.n_expert // EXPERTS_PER_GROUP, N_FF_ADJUGATE)
