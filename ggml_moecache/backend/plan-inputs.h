// llama.cpp's inputs of one graph that tell its tokens apart; part of its plan, found once per graph.
#pragma once

#include "backend/ggml-internal.h"

#include <cstddef>

namespace moecache {

struct plan_inputs {
    bool                made        = false;
    int                 first_block = -1; // block_order() of the MoE blocks, -1: none has rows
    int                 last_block  = -1;
    size_t              n_tokens    = 0;       // of the ubatch
    const ggml_tensor * positions   = nullptr; // I32 [n_tokens * n], in host memory; nullptr = none
    const ggml_tensor * output_ids  = nullptr; // I32 [n_outputs], in host memory; nullptr = none
    const ggml_tensor * mask  = nullptr; // F32 or F16 [n_cells, n_tokens(, streams)], in host memory; nullptr = none
    const ggml_tensor * cells = nullptr; // I64 [n_tokens], in host memory; set with `mask`
};

} // namespace moecache
