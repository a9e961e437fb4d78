"""qwen35moe: gated DeltaNet and gated attention, routed experts beside a gated shared expert; optional MTP layer."""

from __future__ import annotations

import numpy as np

from tests.models.builder import ModelBuilder
from tests.models.families.parts import dense_expert, grouped_query_attention, grouped_query_keys, routed_experts

FULL_ATTENTION_INTERVAL = 2
N_STATE_HEAD = 4
N_STATE_GROUP = 2
STATE_DIM = 64
N_CONV = 4


def write(builder: ModelBuilder) -> None:
    """Gate and up as two tensors."""
    _write(builder, fused=False)


def write_fused(builder: ModelBuilder) -> None:
    """Gate and up as one tensor, ffn_gate_up_exps."""
    _write(builder, fused=True)


def _write(builder: ModelBuilder, *, fused: bool) -> None:
    _keys(builder)
    geometry = builder.geometry
    builder.embeddings()
    for layer in range(geometry.n_layer + geometry.n_mtp_layer):
        is_mtp = layer >= geometry.n_layer
        block = f"blk.{layer}."
        builder.norm(block + "attn_norm.weight", geometry.n_embd)
        builder.norm(block + "post_attention_norm.weight", geometry.n_embd)
        if is_mtp or (layer + 1) % FULL_ATTENTION_INTERVAL == 0:
            grouped_query_attention(builder, layer, gated=True)
        else:
            _delta_net(builder, block)
        routed_experts(builder, layer, fused=fused)
        builder.vector(block + "ffn_gate_inp_shexp.weight", geometry.n_embd, scale=0.06)
        dense_expert(builder, layer, geometry.n_ff_shared, "_shexp")
        if is_mtp:
            _mtp_head(builder, block)


def _keys(builder: ModelBuilder) -> None:
    geometry, keys = builder.geometry, builder.keys
    grouped_query_keys(builder)
    keys.add_rope_dimension_sections([8, 8, 8, 8])
    keys.add_expert_feed_forward_length(geometry.n_ff_expert)
    keys.add_expert_shared_feed_forward_length(geometry.n_ff_shared)
    keys.add_ssm_conv_kernel(N_CONV)
    keys.add_ssm_inner_size(N_STATE_HEAD * STATE_DIM)
    keys.add_ssm_state_size(STATE_DIM)
    keys.add_ssm_time_step_rank(N_STATE_HEAD)
    keys.add_ssm_group_count(N_STATE_GROUP)
    keys.add_uint32("qwen35moe.full_attention_interval", FULL_ATTENTION_INTERVAL)
    if geometry.n_mtp_layer:
        keys.add_nextn_predict_layers(geometry.n_mtp_layer)


def _delta_net(builder: ModelBuilder, block: str) -> None:
    """Linear attention with a recurrent state of STATE_DIM x STATE_DIM per head."""
    n_embd = builder.geometry.n_embd
    n_value = N_STATE_HEAD * STATE_DIM
    n_conv_channel = 2 * N_STATE_GROUP * STATE_DIM + n_value
    builder.matrix(block + "attn_qkv.weight", n_conv_channel, n_embd)
    builder.matrix(block + "attn_gate.weight", n_value, n_embd)
    builder.vector(block + "ssm_conv1d.weight", n_conv_channel, N_CONV, scale=0.4)
    builder.vector(block + "ssm_dt.bias", N_STATE_HEAD, scale=0.5)
    builder.values(block + "ssm_a", -np.exp(np.linspace(-1, 1, N_STATE_HEAD)).astype(np.float32))
    builder.matrix(block + "ssm_beta.weight", N_STATE_HEAD, n_embd)
    builder.matrix(block + "ssm_alpha.weight", N_STATE_HEAD, n_embd)
    builder.norm(block + "ssm_norm.weight", STATE_DIM)
    builder.matrix(block + "ssm_out.weight", n_embd, n_value, residual=True)


def _mtp_head(builder: ModelBuilder, block: str) -> None:
    """The tensors that join hidden state and next token's embedding in front of the MTP layer."""
    n_embd = builder.geometry.n_embd
    builder.matrix(block + "nextn.eh_proj.weight", n_embd, 2 * n_embd)
    builder.norm(block + "nextn.enorm.weight", n_embd)
    builder.norm(block + "nextn.hnorm.weight", n_embd)
    builder.norm(block + "nextn.shared_head_norm.weight", n_embd)
