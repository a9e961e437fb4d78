"""olmoe: q and k norms over the whole width, router weights that are not normalized."""

from __future__ import annotations

from tests.models.builder import ModelBuilder
from tests.models.families.parts import grouped_query_attention, grouped_query_keys, routed_experts


def write(builder: ModelBuilder) -> None:
    """Needs n_head * head_dim == n_embd and as many key heads as query heads."""
    geometry = builder.geometry
    grouped_query_keys(builder)
    builder.keys.add_feed_forward_length(geometry.n_ff_expert)
    builder.embeddings()
    for layer in range(geometry.n_layer):
        block = f"blk.{layer}."
        builder.norm(block + "attn_norm.weight", geometry.n_embd)
        grouped_query_attention(builder, layer, head_norms=False)
        builder.norm(block + "attn_q_norm.weight", geometry.n_embd)
        builder.norm(block + "attn_k_norm.weight", geometry.n_embd)
        builder.norm(block + "ffn_norm.weight", geometry.n_embd)
        routed_experts(builder, layer)
