#include "backend/batch-tracker.h"

#include "backend/fallbacks.h"
#include "core/expert-name.h"

#include <cstring>
#include <utility>

namespace moecache {

// llama.cpp's names of what is read.
static const char * const positions_name = "inp_pos";
static const char * const outputs_name   = "out_ids";
static const char * const mask_name      = "attn_inp_kq_mask";
static const char * const cells_name     = "attn_inp_k_idxs";

static ggml_tensor * input_of(const ggml_cgraph * graph, const char * name) {
    for (size_t i = 0; i < graph->visited_hash_set.size; i++) {
        ggml_tensor * tensor =
            ggml_bitset_get(graph->visited_hash_set.used, i) ? graph->visited_hash_set.keys[i] : nullptr;
        if (tensor != nullptr && (tensor->flags & GGML_TENSOR_FLAG_INPUT) != 0 &&
            std::strcmp(tensor->name, name) == 0) {
            return tensor;
        }
    }
    return nullptr;
}

// An input of the model graph when its values lie in host memory.
static const ggml_tensor * find_input(const ggml_cgraph * graph, const char * name) {
    const ggml_tensor * tensor = input_of(graph, name);
    return tensor != nullptr && tensor->buffer != nullptr && ggml_backend_buffer_is_host(tensor->buffer) ? tensor :
                                                                                                           nullptr;
}

void batch_tracker::keep_inputs(ggml_cgraph * graph, ggml_backend_graph_optimize_params * params) {
    for (const char * name : { positions_name, outputs_name, mask_name, cells_name }) {
        ggml_tensor * input = graph->n_nodes > 0 ? input_of(graph, name) : nullptr;
        if (input != nullptr) {
            params->add_alloc_dep(params->user_data, input, graph->nodes[graph->n_nodes - 1]);
        }
    }
}

// What tells sequences apart. With several KV streams the mask is cut by stream, but the cells count through all of
// them.
static void find_attention(plan_inputs & inputs, const ggml_cgraph * graph) {
    const ggml_tensor * mask  = find_input(graph, mask_name);
    const ggml_tensor * cells = find_input(graph, cells_name);
    const bool          known = mask != nullptr && cells != nullptr && cells->type == GGML_TYPE_I64 &&
                       (mask->type == GGML_TYPE_F32 || mask->type == GGML_TYPE_F16) &&
                       cells->ne[0] == static_cast<int64_t>(inputs.n_tokens) &&
                       (mask->ne[3] > 1 || mask->ne[1] >= cells->ne[0]) && ggml_is_contiguous(mask);
    inputs.mask  = known ? mask : nullptr;
    inputs.cells = known ? cells : nullptr;
}

static void find_inputs(graph_plan & plan, const ggml_cgraph * graph) {
    plan_inputs & inputs = plan.inputs;
    inputs.made          = true;
    for (const moe_block & block : plan.walk.blocks) {
        for (const int index : block.ops) {
            expert_name name;
            const bool  down = expert_name_parse(graph->nodes[plan.walk.ops[index].node]->src[0]->name, name) &&
                              name.role == expert_role::down; // once per block, also when it comes in pieces
            if (!down || block.n_rows == 0) {
                continue;
            }
            if (inputs.first_block < 0) {
                inputs.first_block = block_order(name.layer, name.family);
                inputs.n_tokens    = static_cast<size_t>(block.n_tokens);
            }
            inputs.last_block = block_order(name.layer, name.family);
        }
    }
    if (inputs.first_block < 0) {
        return;
    }
    inputs.positions           = find_input(graph, positions_name);
    inputs.output_ids          = find_input(graph, outputs_name);
    const ggml_tensor * tokens = find_input(graph, "inp_tokens");
    if (tokens != nullptr) {
        inputs.n_tokens = static_cast<size_t>(tokens->ne[0]);
    }
    find_attention(inputs, graph);
}

void batch_tracker::read(const plan_inputs & inputs) {
    requests.set_request_id(request_id);
    const int32_t * positions =
        inputs.positions != nullptr ? static_cast<const int32_t *>(inputs.positions->data) : nullptr;
    attention_view attention;
    bool           known = inputs.mask != nullptr;
    if (known) {
        attention.cells    = static_cast<const int64_t *>(inputs.cells->data);
        attention.mask     = inputs.mask->data;
        attention.mask_f16 = inputs.mask->type == GGML_TYPE_F16;
        attention.n_cells  = static_cast<size_t>(inputs.mask->ne[0]);
        attention.n_tokens = inputs.n_tokens;
        known              = attention.plausible();
    }
    if (inputs.mask != nullptr && !known && !std::exchange(said_cells, true)) {
        complain("the KV cells of a ubatch could not be read: its requests are told apart by positions alone");
    }
    if (known) {
        attention.streams = inputs.mask->ne[3] > 1 || several_streams;
        several_streams   = attention.streams;
    }
    if (known && !attention.consistent()) { // one stream of several, alone in this ubatch
        attention.streams = several_streams = true;
    }
    batch_output_rows.clear();
    if (inputs.output_ids != nullptr) {
        const int32_t * rows = static_cast<const int32_t *>(inputs.output_ids->data);
        batch_output_rows.assign(rows, rows + inputs.output_ids->ne[0]);
    }
    requests.assign(positions, inputs.n_tokens, batch_tokens, known ? &attention : nullptr,
                    inputs.output_ids != nullptr ? &batch_output_rows : nullptr);
}

bool batch_tracker::see(graph_plan & plan, const ggml_cgraph * graph) {
    if (!plan.inputs.made) {
        find_inputs(plan, graph);
    }
    if (plan.inputs.first_block < 0) {
        return false;
    }
    const bool begins = plan.inputs.first_block <= last_block;
    if (begins) {
        read(plan.inputs);
    }
    last_block = plan.inputs.last_block;
    return begins;
}

} // namespace moecache
