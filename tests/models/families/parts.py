"""Tensor groups that several architectures share: grouped-query attention, routed experts, shared and dense experts."""

from __future__ import annotations

from tests.models.builder import ModelBuilder


def grouped_query_keys(builder: ModelBuilder) -> None:
    """Head counts and head lengths of ordinary attention."""
    geometry, keys = builder.geometry, builder.keys
    keys.add_head_count_kv(geometry.n_head_kv)
    keys.add_key_length(geometry.head_dim)
    keys.add_value_length(geometry.head_dim)
    keys.add_rope_dimension_count(geometry.head_dim)


def grouped_query_attention(builder: ModelBuilder, layer: int, *, gated: bool = False, head_norms: bool = True) -> None:
    """attn_q, attn_k, attn_v, attn_output; `gated` doubles attn_q, `head_norms` adds the norms of q and k per head."""
    geometry = builder.geometry
    block = f"blk.{layer}."
    n_query = geometry.n_head * geometry.head_dim
    n_key = geometry.n_head_kv * geometry.head_dim
    builder.matrix(block + "attn_q.weight", 2 * n_query if gated else n_query, geometry.n_embd)
    builder.matrix(block + "attn_k.weight", n_key, geometry.n_embd)
    builder.matrix(block + "attn_v.weight", n_key, geometry.n_embd)
    builder.matrix(block + "attn_output.weight", geometry.n_embd, n_query, residual=True)
    if head_norms:
        builder.norm(block + "attn_q_norm.weight", geometry.head_dim)
        builder.norm(block + "attn_k_norm.weight", geometry.head_dim)


def routed_experts(builder: ModelBuilder, layer: int, *, fused: bool = False, gated: bool = True) -> None:
    """Router, and gate, up and down of all experts; `fused` writes gate and up as one tensor, not `gated` up alone."""
    builder.router(layer)
    geometry = builder.geometry
    expert_matrices(builder, layer, "exps", geometry.n_expert, geometry.n_ff_expert, fused=fused, gated=gated)


def expert_matrices(
    builder: ModelBuilder,
    layer: int,
    suffix: str,
    n_expert: int,
    n_ff: int,
    *,
    fused: bool = False,
    gated: bool = True,
) -> None:
    """The matrices of one expert family of a layer: blk.N.ffn_{gate,up,down}_<suffix>.weight."""
    n_embd = builder.geometry.n_embd
    block = f"blk.{layer}.ffn_"
    if fused:
        builder.matrix(f"{block}gate_up_{suffix}.weight", n_expert, 2 * n_ff, n_embd)
    else:
        if gated:
            builder.matrix(f"{block}gate_{suffix}.weight", n_expert, n_ff, n_embd)
        builder.matrix(f"{block}up_{suffix}.weight", n_expert, n_ff, n_embd)
    builder.matrix(f"{block}down_{suffix}.weight", n_expert, n_embd, n_ff, residual=True, gain=2.0)


def dense_expert(builder: ModelBuilder, layer: int, n_ff: int, suffix: str = "") -> None:
    """A feed-forward network every token uses: blk.N.ffn_{gate,up,down}<suffix>.weight."""
    n_embd = builder.geometry.n_embd
    block = f"blk.{layer}.ffn_"
    builder.matrix(f"{block}gate{suffix}.weight", n_ff, n_embd)
    builder.matrix(f"{block}up{suffix}.weight", n_ff, n_embd)
    builder.matrix(f"{block}down{suffix}.weight", n_embd, n_ff, residual=True)
