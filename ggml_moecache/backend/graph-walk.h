// The walk: which nodes of a graph belong to MoE blocks, and which of them the CPU computes.
//
// A block is the operations of one layer that read expert weights of the store with the same router ids. The walk does
// not look for the pattern gate, up, activation, down: it takes the MUL_MAT_ID operations on the store ("expert
// operations") and every operation on a path between two of them (biases, scales, clamps, activations, adapters). So a
// form nobody has seen yet is computed correctly, and what comes after the last expert operation stays on the device.
//
// The walk allocates; it is done once per graph of the scheduler (see moe-op.cpp), not per token.
#pragma once

#include "backend/ggml-internal.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace moecache {

struct expert_op {
    int  node       = 0;     // index in the graph
    int  layer      = -1;    // -1: not known from the name of the weight
    bool is_expert  = false; // false: an adapter (LoRA) or an unknown weight in the store
    bool is_adapter = false;
    bool on_host    = false; // the CPU computes it: no copy of its weight on the device
};

struct moe_block {
    const ggml_tensor * ids   = nullptr; // router ids, I32 [n_expert_used, n_tokens], often a strided view
    int                 layer = -1;
    std::vector<int>    ops; // indices in graph_walk::ops, in graph order
    bool                has_down = false;
    bool                complete = false; // from the first projection to `down`: an eval callback may have cut it
    bool                known    = true;  // every weight is an expert weight or an adapter
    int64_t             n_expert = 0;     // ne[2] of the weights
    int64_t             n_rows   = 0;     // (token, k) pairs
    int64_t             n_tokens = 0;
    bool                on_host  = false;    // at least one expert operation is computed by the CPU
    int                 first = 0, last = 0; // nodes of the first and last expert operation
};

struct graph_walk {
    std::vector<expert_op> ops;
    std::vector<moe_block> blocks;
    std::vector<char>      host_node; // per node: 1 = computed by the CPU

    // Every block routes each token to all experts: llama.cpp's warm-up, computed but never counted.
    bool is_warmup() const;
};

// Walk `graph`. `in_store` tells the store's tensors, `on_device` those of them that have a copy on the device.
graph_walk walk_graph(const ggml_cgraph * graph, const std::function<bool(const ggml_tensor *)> & in_store,
                      const std::function<bool(const ggml_tensor *)> & on_device);

// Where the experts of a whole model graph are, read from the graph's hash set, which every split and view of it
// shares.
struct expert_placement {
    std::vector<const ggml_tensor *> stored; // expert weights of the store (and adapters there), each once

    uint64_t n_experts   = 0;     // (layer, family, expert) in the store
    uint64_t n_resident  = 0;     // of these, those with all their weights on the device
    uint64_t n_layers    = 0;     // MoE layers in the store
    uint64_t n_elsewhere = 0;     // MoE layers elsewhere: user's choice, another device
    bool     whole       = false; // the graph knows the whole model graph; a part of one of `-sm tensor` does not
};
expert_placement place_experts(const ggml_cgraph * graph, const std::function<bool(const ggml_tensor *)> & in_store,
                               const std::function<bool(const ggml_tensor *)> & on_device);

} // namespace moecache
