#include "small-moe.h"

#include "ggml-cpu.h"

#include <cmath>
#include <cstring>

namespace small_moe {

// --- weights --------------------------------------------------------------------------------------------------------------------

// Odd layers have one fused tensor and another type, so there are two layouts of experts, two pools.
weights::weights(ggml_backend_buffer_type_t type, uint32_t seed) {
    ctx = ggml_init({ 64 * ggml_tensor_overhead(), nullptr, /* no_alloc = */ true });
    std::vector<ggml_tensor *> all;
    const auto                 add = [&](int index, const char * role, ggml_type t, int64_t n_in, int64_t n_out) {
        ggml_tensor * tensor = ggml_new_tensor_3d(ctx, t, n_in, n_out, n_expert);
        ggml_format_name(tensor, "blk.%d.ffn_%s_exps.weight", index, role);
        all.push_back(tensor);
        return tensor;
    };
    for (int index = 0; index < n_layers; index++) {
        layer made;
        if (index % 2 == 0) {
            made.gate = add(index, "gate", GGML_TYPE_Q4_0, n_embd, n_ff);
            made.up   = add(index, "up", GGML_TYPE_Q4_0, n_embd, n_ff);
            made.down = add(index, "down", GGML_TYPE_Q8_0, n_ff, n_embd);
        } else {
            made.gate_up = add(index, "gate_up", GGML_TYPE_Q8_0, n_embd, 2 * n_ff);
            made.down    = add(index, "down", GGML_TYPE_Q4_0, n_ff, n_embd);
        }
        layers.push_back(made);
    }
    buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, type);
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    std::mt19937                    random(seed);
    std::normal_distribution<float> normal(0.0f, 0.2f);
    for (ggml_tensor * tensor : all) {
        std::vector<float>   values(static_cast<size_t>(ggml_nelements(tensor)));
        std::vector<uint8_t> bytes(ggml_nbytes(tensor));
        for (float & value : values) {
            value = normal(random);
        }
        ggml_quantize_chunk(tensor->type, values.data(), bytes.data(), 0, tensor->ne[1] * tensor->ne[2], tensor->ne[0],
                            nullptr);
        ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
    }
}

weights::~weights() {
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

uint64_t weights::checksum() const {
    uint64_t hash = 0xcbf29ce484222325u;
    for (ggml_tensor * tensor = ggml_get_first_tensor(ctx); tensor != nullptr;
         tensor               = ggml_get_next_tensor(ctx, tensor)) {
        std::vector<uint8_t> bytes(ggml_nbytes(tensor));
        ggml_backend_tensor_get(tensor, bytes.data(), 0, bytes.size());
        for (const uint8_t byte : bytes) {
            hash = (hash ^ byte) * 0x100000001b3u;
        }
    }
    return hash;
}

// --- batches --------------------------------------------------------------------------------------------------------------------

batch random_batch(std::mt19937 & random, int64_t n_tokens, int phase) {
    std::normal_distribution<float> normal(0.0f, 1.0f);
    batch                           made;
    made.n_tokens = n_tokens;
    for (int64_t i = 0; i < n_tokens * n_embd; i++) {
        made.hidden.push_back(normal(random));
    }
    for (int layer = 0; layer < n_layers; layer++) {
        for (int64_t i = 0; i < n_tokens * n_expert; i++) {
            const bool liked = (i + layer + phase) % n_expert < n_used + 2;
            made.router.push_back(normal(random) + (liked ? 2.0f : 0.0f));
        }
    }
    return made;
}

// --- sessions -------------------------------------------------------------------------------------------------------------------

static void set_one_thread(ggml_backend_t backend) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    const auto         set = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"));
    set(backend, 1);
}

session::session(ggml_backend_dev_t device, const weights & experts) : experts(experts) {
    if (device != nullptr) {
        backends.push_back(ggml_backend_dev_init(device, nullptr));
    }
    backends.push_back(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    for (ggml_backend_t backend : backends) {
        if (backend == nullptr) {
            return;
        }
        set_one_thread(backend);
    }
    sched = ggml_backend_sched_new(backends.data(), nullptr, static_cast<int>(backends.size()), 1024, false, true);
}

session::~session() {
    ggml_backend_sched_free(sched);
    for (ggml_backend_t backend : backends) {
        ggml_backend_free(backend);
    }
}

static ggml_tensor * moe_layer(ggml_context * ctx, const weights::layer & layer, ggml_tensor * hidden,
                               ggml_tensor * logits) {
    const int64_t n_tokens = hidden->ne[1];
    ggml_tensor * probs    = ggml_soft_max(ctx, logits);
    ggml_tensor * ids      = ggml_argsort_top_k(ctx, probs, static_cast<int>(n_used));
    ggml_tensor * scores   = ggml_get_rows(ctx, ggml_reshape_3d(ctx, probs, 1, n_expert, n_tokens), ids);
    ggml_tensor * input    = ggml_reshape_3d(ctx, ggml_rms_norm(ctx, hidden, 1e-5f), n_embd, 1, n_tokens);
    ggml_tensor * active   = nullptr;
    if (layer.gate_up != nullptr) {
        active = ggml_swiglu(ctx, ggml_mul_mat_id(ctx, layer.gate_up, input, ids));
    } else {
        ggml_tensor * up = ggml_mul_mat_id(ctx, layer.up, input, ids);
        active           = ggml_swiglu_split(ctx, ggml_mul_mat_id(ctx, layer.gate, input, ids), up);
    }
    ggml_tensor * rows = ggml_mul(ctx, ggml_mul_mat_id(ctx, layer.down, active, ids), scores);
    for (int64_t k = 0; k < n_used; k++) {
        hidden = ggml_add(ctx, hidden,
                          ggml_view_2d(ctx, rows, n_embd, n_tokens, rows->nb[2], static_cast<size_t>(k) * rows->nb[1]));
    }
    return hidden;
}

std::vector<float> session::run(const batch & input) {
    ggml_context * ctx =
        ggml_init({ 512 * ggml_tensor_overhead() + ggml_graph_overhead_custom(1024, false), nullptr, true });
    ggml_tensor * hidden = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_embd, input.n_tokens);
    ggml_set_input(hidden);
    std::vector<ggml_tensor *> logits;
    ggml_tensor *              result = hidden;
    for (const weights::layer & layer : experts.layers) {
        logits.push_back(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_expert, input.n_tokens));
        ggml_set_input(logits.back());
        result = moe_layer(ctx, layer, result, logits.back());
    }
    ggml_set_output(result);
    ggml_cgraph * graph = ggml_new_graph_custom(ctx, 1024, false);
    ggml_build_forward_expand(graph, result);

    std::vector<float> values;
    ggml_backend_sched_reset(sched);
    if (ggml_backend_sched_alloc_graph(sched, graph)) {
        const size_t per_layer = static_cast<size_t>(input.n_tokens * n_expert);
        ggml_backend_tensor_set(hidden, input.hidden.data(), 0, input.hidden.size() * sizeof(float));
        for (size_t layer = 0; layer < logits.size(); layer++) {
            ggml_backend_tensor_set(logits[layer], input.router.data() + layer * per_layer, 0,
                                    per_layer * sizeof(float));
        }
        if (ggml_backend_sched_graph_compute(sched, graph) == GGML_STATUS_SUCCESS) {
            values.resize(static_cast<size_t>(n_embd * input.n_tokens));
            ggml_backend_tensor_get(result, values.data(), 0, values.size() * sizeof(float));
        }
    }
    ggml_free(ctx);
    return values;
}

} // namespace small_moe
