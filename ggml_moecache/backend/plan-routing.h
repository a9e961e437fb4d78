// What the routing log reads of one graph; part of its plan, made once per graph.
#pragma once

#include "transfer/gather.h"

#include <cstdint>
#include <vector>

namespace moecache {

// The routing of one block: what is gathered, and whose it is.
struct routing_source {
    const ggml_tensor * ids            = nullptr;
    const ggml_tensor * weights        = nullptr; // nullptr: not found
    size_t              ids_offset     = 0;       // I32 [n_rows][n_used] in the gather's memory
    size_t              weights_offset = 0;       // F32 [n_rows][n_used]
    int32_t             layer          = 0;
    uint8_t             family         = 0;
    uint16_t            n_used         = 0;
    uint32_t            n_rows         = 0;
    int                 column         = -1; // of the cache, -1: none
};

struct plan_routing {
    bool                        made = false;
    std::vector<routing_source> blocks;         // in graph order
    std::vector<gather_run>     runs;           // copies of all blocks' ids and weights
    size_t                      size_bytes = 0; // of gathered memory
};

} // namespace moecache
