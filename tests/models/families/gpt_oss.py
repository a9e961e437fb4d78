"""gpt-oss: biases on router and experts, clamped SwiGLU, attention sinks, alternate sliding-window layers."""

from __future__ import annotations

from tests.models.builder import ModelBuilder
from tests.models.families.parts import grouped_query_attention, grouped_query_keys, routed_experts

SLIDING_WINDOW = 128


def write(builder: ModelBuilder) -> None:
    """Router weights are a softmax over the selected experts; the router's bias is too small to change the order."""
    geometry = builder.geometry
    grouped_query_keys(builder)
    builder.keys.add_expert_feed_forward_length(geometry.n_ff_expert)
    builder.keys.add_sliding_window(SLIDING_WINDOW)
    builder.embeddings()
    for layer in range(geometry.n_layer):
        block = f"blk.{layer}."
        builder.norm(block + "attn_norm.weight", geometry.n_embd)
        grouped_query_attention(builder, layer, head_norms=False)
        builder.vector(block + "attn_q.bias", geometry.n_head * geometry.head_dim, scale=0.1)
        builder.vector(block + "attn_k.bias", geometry.n_head_kv * geometry.head_dim, scale=0.1)
        builder.vector(block + "attn_v.bias", geometry.n_head_kv * geometry.head_dim, scale=0.1)
        builder.vector(block + "attn_output.bias", geometry.n_embd, scale=0.1, residual=True)
        builder.vector(block + "attn_sinks.weight", geometry.n_head, scale=1.0)
        builder.norm(block + "post_attention_norm.weight", geometry.n_embd)
        routed_experts(builder, layer)
        builder.vector(block + "ffn_gate_inp.bias", geometry.n_expert, scale=0.02)
        builder.vector(block + "ffn_gate_exps.bias", geometry.n_expert, geometry.n_ff_expert, scale=0.5)
        builder.vector(block + "ffn_up_exps.bias", geometry.n_expert, geometry.n_ff_expert, scale=0.5)
        builder.vector(block + "ffn_down_exps.bias", geometry.n_expert, geometry.n_embd, scale=0.5, residual=True)
