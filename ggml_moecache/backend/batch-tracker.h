// Which requests the tokens of a ubatch belong to: reads llama.cpp's inputs out of the graphs for the request tracker.
// One per context, for the routing log and for policies that count by request.
//
// Owned by one backend; called by the thread that runs the graph. A ubatch may come in several graphs.
#pragma once

#include "backend/graph-plan.h"
#include "core/request-tracker.h"

#include <atomic>
#include <climits>
#include <cstdint>
#include <vector>

namespace moecache {

class batch_tracker {
public:
    // `request_id` is read at every ubatch: request_tracker::automatic, or an id that was set by hand.
    explicit batch_tracker(const std::atomic<uint64_t> & request_id) : request_id(request_id) {}

    // Keep the memory of llama.cpp's inputs until the end of the graph: where the CPU computes a part before this one,
    // GGML would use it again by the time they are read. Part of graph_optimize.
    static void keep_inputs(ggml_cgraph * graph, ggml_backend_graph_optimize_params * params);

    // The graph of `plan` is computed, or is about to be: reads its inputs if it begins a ubatch. llama.cpp writes them
    // anew for the next one. Returns whether it begins one. Not for warm-up graphs.
    bool see(graph_plan & plan, const ggml_cgraph * graph);

    // Of the ubatch seen last.
    const std::vector<token_info> & tokens() const { return batch_tokens; }
    const std::vector<int32_t> &    output_rows() const { return batch_output_rows; } // rows whose logits are wanted

private:
    void read(const plan_inputs & inputs);

    const std::atomic<uint64_t> & request_id;
    request_tracker               requests;
    std::vector<token_info>       batch_tokens;
    std::vector<int32_t>          batch_output_rows;
    bool several_streams = false;   // a ubatch has shown more than one KV stream: cells count through all of them
    bool said_cells      = false;   // that they could not be read, once
    int  last_block      = INT_MAX; // block_order() of the last block seen: it rises within a ubatch
};

} // namespace moecache
