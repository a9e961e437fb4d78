// The walk on graphs made by hand: which nodes the CPU must compute is derived in the comment of each test.
#include "backend/graph-walk.h"

#include "check.h"

#include <string>

using namespace moecache;

namespace {

struct graph_builder {
    ggml_context * ctx   = ggml_init({ 16 << 20, nullptr, true });
    ggml_cgraph *  graph = ggml_new_graph(ctx);

    ~graph_builder() { ggml_free(ctx); }

    ggml_tensor * weight(const char * name, int64_t n_in, int64_t n_out, int64_t n_expert = 4) {
        ggml_tensor * tensor = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, n_in, n_out, n_expert);
        ggml_set_name(tensor, name);
        return tensor;
    }

    ggml_tensor * ids(int64_t n_used = 2, int64_t n_tokens = 3) {
        return ggml_new_tensor_2d(ctx, GGML_TYPE_I32, n_used, n_tokens);
    }

    ggml_tensor * input(int64_t n_in, int64_t n_tokens = 3) {
        return ggml_new_tensor_3d(ctx, GGML_TYPE_F32, n_in, 1, n_tokens);
    }
};

bool stored(const ggml_tensor * tensor) {
    return std::string(tensor->name).find("exps") != std::string::npos;
}

bool never(const ggml_tensor *) {
    return false;
}

// "1" per node that the CPU computes
std::string host_nodes(const graph_walk & walk) {
    std::string text;
    for (const char host : walk.host_node) {
        text += host ? '1' : '0';
    }
    return text;
}

} // namespace

TEST(gate_up_activation_down) {
    graph_builder b;
    ggml_tensor * ids  = b.ids();
    ggml_tensor * x    = b.input(8);
    ggml_tensor * gate = ggml_mul_mat_id(b.ctx, b.weight("blk.2.ffn_gate_exps.weight", 8, 16), x, ids);
    ggml_tensor * up   = ggml_mul_mat_id(b.ctx, b.weight("blk.2.ffn_up_exps.weight", 8, 16), x, ids);
    ggml_tensor * act  = ggml_swiglu_split(b.ctx, gate, up);
    ggml_tensor * down = ggml_mul_mat_id(b.ctx, b.weight("blk.2.ffn_down_exps.weight", 16, 8), act, ids);
    ggml_tensor * out  = ggml_scale(b.ctx, down, 2.0f);
    ggml_build_forward_expand(b.graph, out);

    // gate, up, swiglu, down are the CPU's; the scale after the last expert operation is the device's
    const graph_walk walk = walk_graph(b.graph, stored, never);
    CHECK_EQ(host_nodes(walk), "11110");
    CHECK_EQ(walk.blocks.size(), 1u);
    CHECK_EQ(walk.blocks[0].layer, 2);
    CHECK_EQ(walk.blocks[0].n_tokens, 3);
    CHECK_EQ(walk.blocks[0].n_rows, 6);
    CHECK_EQ(walk.blocks[0].n_expert, 4);
    CHECK(walk.blocks[0].complete);
    CHECK(walk.blocks[0].known);
    CHECK(!walk.is_warmup());
}

TEST(biases_between_are_the_cpus_shared_expert_is_not) {
    graph_builder b;
    ggml_tensor * ids    = b.ids();
    ggml_tensor * x      = b.input(8);
    ggml_tensor * up     = ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_up_exps.weight", 8, 16), x, ids);
    ggml_tensor * bias   = ggml_new_tensor_2d(b.ctx, GGML_TYPE_F32, 16, 4);
    ggml_tensor * biased = ggml_add_id(b.ctx, up, bias, ids);
    ggml_build_forward_expand(b.graph, biased);
    ggml_tensor * shared = ggml_scale(b.ctx, x, 3.0f); // between, but on no path to `down`
    ggml_build_forward_expand(b.graph, shared);
    ggml_tensor * down =
        ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_down_exps.weight", 16, 8), ggml_relu(b.ctx, biased), ids);
    ggml_build_forward_expand(b.graph, down);

    // up, add_id, (shared), relu, down
    CHECK_EQ(host_nodes(walk_graph(b.graph, stored, never)), "11011");
}

TEST(views_of_a_fused_gate_up_are_the_cpus) {
    graph_builder b;
    ggml_tensor * ids  = b.ids();
    ggml_tensor * both = ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_gate_up_exps.weight", 8, 32), b.input(8), ids);
    ggml_tensor * gate = ggml_view_3d(b.ctx, both, 16, both->ne[1], both->ne[2], both->nb[1], both->nb[2], 0);
    ggml_tensor * up =
        ggml_view_3d(b.ctx, both, 16, both->ne[1], both->ne[2], both->nb[1], both->nb[2], 16 * both->nb[0]);
    ggml_tensor * down =
        ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_down_exps.weight", 16, 8), ggml_swiglu_split(b.ctx, gate, up), ids);
    ggml_build_forward_expand(b.graph, down);

    const graph_walk walk = walk_graph(b.graph, stored, never);
    CHECK_EQ(host_nodes(walk), "11111"); // gate_up, two views, swiglu, down
    CHECK(walk.blocks[0].complete);
}

TEST(two_families_in_a_layer_are_two_blocks) {
    graph_builder b;
    ggml_tensor * x      = b.input(8);
    ggml_tensor * first  = ggml_mul_mat_id(b.ctx, b.weight("blk.1.ffn_up_exps.weight", 8, 8), x, b.ids());
    ggml_tensor * second = ggml_mul_mat_id(b.ctx, b.weight("blk.1.ffn_up_chexps.weight", 8, 8, 2), x, b.ids());
    ggml_build_forward_expand(b.graph, ggml_add(b.ctx, first, second));

    const graph_walk walk = walk_graph(b.graph, stored, never);
    CHECK_EQ(walk.blocks.size(), 2u);
    CHECK_EQ(host_nodes(walk), "110");
}

TEST(what_is_on_the_device_stays_there) {
    graph_builder b;
    ggml_tensor * ids = b.ids();
    ggml_tensor * up  = ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_up_exps.weight", 8, 16), b.input(8), ids);
    ggml_tensor * down =
        ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_down_exps.weight", 16, 8), ggml_relu(b.ctx, up), ids);
    ggml_build_forward_expand(b.graph, down);

    CHECK_EQ(host_nodes(walk_graph(b.graph, stored, stored)), "000");
    // only `down` is missing on the device: nothing lies between two operations of the CPU
    const auto not_down = [](const ggml_tensor * tensor) {
        return std::string(tensor->name).find("down") == std::string::npos;
    };
    CHECK_EQ(host_nodes(walk_graph(b.graph, stored, not_down)), "001");
}

TEST(a_cut_block_is_not_complete) {
    graph_builder b;
    ggml_tensor * ids = b.ids();
    ggml_tensor * up  = ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_up_exps.weight", 8, 16), b.input(8), ids);
    ggml_tensor * down =
        ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_down_exps.weight", 16, 8), ggml_relu(b.ctx, up), ids);
    ggml_build_forward_expand(b.graph, down);

    ggml_cgraph first = ggml_graph_view(b.graph, 0, 1);
    ggml_cgraph rest  = ggml_graph_view(b.graph, 1, 3);
    CHECK(!walk_graph(&first, stored, never).blocks[0].complete);
    CHECK_EQ(host_nodes(walk_graph(&rest, stored, never)), "01"); // the activation is the device's now
}

TEST(adapters_belong_to_the_block_but_are_no_experts) {
    graph_builder b;
    ggml_tensor * ids   = b.ids();
    ggml_tensor * x     = b.input(8);
    ggml_tensor * up    = ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_up_exps.weight", 8, 16), x, ids);
    ggml_tensor * lo    = ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_up_exps.weight.lora_a", 8, 2), x, ids);
    ggml_tensor * delta = ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_up_exps.weight.lora_b", 2, 16), lo, ids);
    ggml_tensor * sum   = ggml_add(b.ctx, up, delta);
    ggml_tensor * down =
        ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_down_exps.weight", 16, 8), ggml_relu(b.ctx, sum), ids);
    ggml_build_forward_expand(b.graph, down);

    const graph_walk walk = walk_graph(b.graph, stored, never);
    CHECK_EQ(host_nodes(walk), "111111");
    CHECK_EQ(walk.blocks.size(), 1u);
    CHECK(walk.blocks[0].known);
    CHECK(walk.blocks[0].complete);
    CHECK_EQ(walk.ops.size(), 4u);
}

TEST(an_unknown_weight_of_the_store_is_said_to_be_unknown) {
    graph_builder b;
    ggml_build_forward_expand(b.graph,
                              ggml_mul_mat_id(b.ctx, b.weight("blk.0.attn_exps.weight", 8, 8), b.input(8), b.ids()));
    const graph_walk walk = walk_graph(b.graph, stored, never);
    CHECK(!walk.blocks[0].known);
    CHECK_EQ(host_nodes(walk), "1");
}

TEST(routing_to_all_experts_is_a_warm_up) {
    graph_builder b;
    ggml_build_forward_expand(b.graph, ggml_mul_mat_id(b.ctx, b.weight("blk.0.ffn_down_exps.weight", 8, 8),
                                                       ggml_new_tensor_3d(b.ctx, GGML_TYPE_F32, 8, 4, 2), b.ids(4, 2)));
    CHECK(walk_graph(b.graph, stored, never).is_warmup());
}

TEST(placement_counts_experts_and_layers_once) {
    graph_builder b;
    ggml_tensor * ids = b.ids();
    ggml_tensor * x   = b.input(8);
    for (const char * name : { "blk.0.ffn_up_exps.weight", "blk.0.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight",
                               "blk.1.ffn_up_chexps.weight", "blk.5.ffn_up_exps.weight" }) {
        ggml_build_forward_expand(b.graph, ggml_mul_mat_id(b.ctx, b.weight(name, 8, 8), x, ids));
    }
    const auto not_layer_5 = [](const ggml_tensor * tensor) {
        return std::string(tensor->name).find("blk.5") == std::string::npos;
    };
    const auto layer_0 = [](const ggml_tensor * tensor) {
        return std::string(tensor->name).find("blk.0") != std::string::npos;
    };
    const expert_placement placement = place_experts(b.graph, not_layer_5, layer_0);
    CHECK_EQ(placement.n_experts, 12u); // layer 0: 4, layer 1: two families of 4
    CHECK_EQ(placement.n_resident, 4u);
    CHECK_EQ(placement.stored.size(), 4u);
    CHECK_EQ(placement.n_layers, 2u);
    CHECK_EQ(placement.n_elsewhere, 1u);
}
