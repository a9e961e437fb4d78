"""llama: Mixtral when it has experts, a dense Llama when it has none; experts without a gate are allowed."""

from __future__ import annotations

from tests.models.builder import ModelBuilder
from tests.models.families.parts import dense_expert, grouped_query_attention, grouped_query_keys, routed_experts


def write(builder: ModelBuilder) -> None:
    """Attention without head norms; experts as wide as feed_forward_length."""
    _write(builder, gated=True)


def write_ungated(builder: ModelBuilder) -> None:
    """Experts of two matrices: down(silu(up(x)))."""
    _write(builder, gated=False)


def _write(builder: ModelBuilder, *, gated: bool) -> None:
    geometry = builder.geometry
    grouped_query_keys(builder)
    builder.keys.add_feed_forward_length(geometry.n_ff_expert)
    builder.embeddings()
    for layer in range(geometry.n_layer):
        builder.norm(f"blk.{layer}.attn_norm.weight", geometry.n_embd)
        grouped_query_attention(builder, layer, head_norms=False)
        builder.norm(f"blk.{layer}.ffn_norm.weight", geometry.n_embd)
        if geometry.n_expert:
            routed_experts(builder, layer, gated=gated)
        else:
            dense_expert(builder, layer, geometry.n_ff_expert)
