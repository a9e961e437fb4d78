// The order of a graph's nodes, before its memory is laid out: the operations of an MoE block side by side, so that the
// block can be shared between the device and the CPU (missed-rows.h). llama.cpp puts the look-up of per-expert scales
// between them.
#pragma once

#include "backend/graph-walk.h"

namespace moecache {

// Move what lies between a block's operations, and neither depends on them nor writes to memory of others, in front of
// the block. Part of graph_optimize. `in_store` as for walk_graph().
void bring_blocks_together(ggml_cgraph * graph, const std::function<bool(const ggml_tensor *)> & in_store);

} // namespace moecache
