"""deepseek2 as DeepSeek-V3: latent attention, dense first layer, sigmoid router with selection bias and groups."""

from __future__ import annotations

from gguf.constants import ExpertGatingFuncType

from tests.models.builder import ModelBuilder
from tests.models.families.parts import dense_expert, routed_experts

N_LORA_Q = 64
N_LORA_KV = 64
NOPE_DIM = 32
ROPE_DIM = 32
VALUE_DIM = 64
N_SHARED_EXPERT = 1
N_FF_DENSE = 512


def write(builder: ModelBuilder) -> None:
    """The selection bias is too small to change which experts are selected, their order it may change."""
    _keys(builder)
    geometry = builder.geometry
    builder.embeddings()
    for layer in range(geometry.n_layer):
        block = f"blk.{layer}."
        builder.norm(block + "attn_norm.weight", geometry.n_embd)
        _latent_attention(builder, block)
        builder.norm(block + "ffn_norm.weight", geometry.n_embd)
        if layer < geometry.n_dense_lead:
            dense_expert(builder, layer, N_FF_DENSE)
        else:
            routed_experts(builder, layer)
            builder.vector(block + "exp_probs_b.bias", geometry.n_expert, scale=0.005)
            dense_expert(builder, layer, geometry.n_ff_expert * N_SHARED_EXPERT, "_shexp")


def _keys(builder: ModelBuilder) -> None:
    geometry, keys = builder.geometry, builder.keys
    keys.add_head_count_kv(1)
    keys.add_key_length(N_LORA_KV + ROPE_DIM)
    keys.add_value_length(N_LORA_KV)
    keys.add_key_length_mla(NOPE_DIM + ROPE_DIM)
    keys.add_value_length_mla(VALUE_DIM)
    keys.add_q_lora_rank(N_LORA_Q)
    keys.add_kv_lora_rank(N_LORA_KV)
    keys.add_rope_dimension_count(ROPE_DIM)
    keys.add_feed_forward_length(N_FF_DENSE)
    keys.add_leading_dense_block_count(geometry.n_dense_lead)
    keys.add_expert_feed_forward_length(geometry.n_ff_expert)
    keys.add_expert_shared_count(N_SHARED_EXPERT)
    keys.add_expert_group_count(geometry.n_group)
    keys.add_expert_group_used_count(geometry.n_group_used)
    keys.add_expert_weights_scale(2.5)
    keys.add_expert_weights_norm(True)
    keys.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)


def _latent_attention(builder: ModelBuilder, block: str) -> None:
    geometry = builder.geometry
    n_embd, n_head = geometry.n_embd, geometry.n_head
    builder.matrix(block + "attn_q_a.weight", N_LORA_Q, n_embd)
    builder.norm(block + "attn_q_a_norm.weight", N_LORA_Q)
    builder.matrix(block + "attn_q_b.weight", n_head * (NOPE_DIM + ROPE_DIM), N_LORA_Q)
    builder.matrix(block + "attn_kv_a_mqa.weight", N_LORA_KV + ROPE_DIM, n_embd)
    builder.norm(block + "attn_kv_a_norm.weight", N_LORA_KV)
    builder.matrix(block + "attn_k_b.weight", n_head, N_LORA_KV, NOPE_DIM)
    builder.matrix(block + "attn_v_b.weight", n_head, VALUE_DIM, N_LORA_KV)
    builder.matrix(block + "attn_output.weight", n_embd, n_head * VALUE_DIM, residual=True)
