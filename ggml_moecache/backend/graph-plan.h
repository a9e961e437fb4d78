// The plan of one graph: which runs of nodes go to the inner device and which the CPU computes, in the graph's own
// order.
//
// The order is never changed: GGML's allocator has laid out the memory of the graph for it. A run for the CPU copies
// its inputs from the device to host memory, computes shadow nodes there and copies back what nodes outside the run
// need. Weights are read where they are: experts in the store, others (biases) in a mirror that is read from the device
// once.
#pragma once

#include "backend/graph-walk.h"
#include "backend/plan-inputs.h"
#include "backend/plan-routing.h"
#include "backend/resident.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace moecache {

// A copy between a tensor of the graph and its shadow. Rows that lie apart on the device (router ids are a view of a
// sorted row of all experts) lie together on the host.
struct host_transfer {
    ggml_tensor * tensor       = nullptr;
    char *        host         = nullptr;
    size_t        size_bytes   = 0; // of one row when n_rows > 1
    size_t        n_rows       = 1;
    size_t        stride_bytes = 0; // between rows on the device
};

class expert_cache;
class missed_rows;

// A run of nodes: for the device, for the CPU, or (`rows` is set) an MoE block of which the device computes the rows
// whose experts are in its slots and the CPU the others.
struct plan_segment {
    bool                         host  = false;
    ggml_cgraph                  graph = {};   // device: view of the graph; host: shadow nodes
    std::vector<host_transfer>   inputs;       // host only, device -> host before the computation
    std::vector<host_transfer>   outputs;      // host only, host -> device after it
    std::unique_ptr<missed_rows> rows;         // the CPU's part of a shared block
    uint32_t                     column   = 0; // of a shared block
    uint32_t                     n_used   = 0;
    uint32_t                     n_tokens = 0;

    plan_segment();
    ~plan_segment();
    plan_segment(plan_segment &&) noexcept;
    plan_segment & operator=(plan_segment &&) noexcept;
};

// An operand of a node that is replaced while the graph runs: weights by copies on the device, router ids by places.
struct plan_swap {
    ggml_tensor * node        = nullptr;
    int           src         = 0;
    ggml_tensor * original    = nullptr;
    ggml_tensor * replacement = nullptr;
};

// What one run of the plan adds to the counters.
struct plan_counts {
    int      first_block      = -1; // block_order() of the blocks whose rows are counted here, -1 = none
    int      last_block       = -1;
    uint64_t n_events         = 0;
    uint64_t n_hits           = 0;
    uint64_t n_misses         = 0;
    uint64_t n_partial_blocks = 0;
    uint64_t n_unknown_blocks = 0;
    uint64_t n_whole_blocks   = 0; // computed by the CPU as a whole although the cache has slots for their experts
};

struct graph_plan {
    graph_walk                walk;
    std::vector<plan_segment> segments; // empty when the whole graph goes to the device as it is
    std::vector<plan_swap>    swaps;
    plan_counts               counts;
    plan_inputs               inputs;  // for the tracker of requests
    plan_routing              routing; // for the routing log
    bool                      warmup      = false;
    size_t                    arena_bytes = 0;       // host memory the shadows need, from the start of the arena
    ggml_context *            shadows     = nullptr; // owns the shadow tensors
    uint64_t                  last_use    = 0;       // of the cache of plans
    std::vector<ggml_tensor>  places;                // of shared blocks: the tensors that replace their router ids

    graph_plan() = default;
    ~graph_plan();
    graph_plan(const graph_plan &)             = delete;
    graph_plan & operator=(const graph_plan &) = delete;
};

// Host copy of a weight that is on the device, made at the first call; lives as long as the context.
using weight_mirror = std::function<void *(const ggml_tensor * weight)>;

// Fill plan.counts, .swaps and .warmup, and .segments up to their shadows. `cache`: nullptr = no slots.
void plan_build(graph_plan & plan, ggml_cgraph * graph, const resident_set & residents, const expert_cache * cache,
                const device_context * device, const weight_mirror & mirror);

// Lay the shadows out. First call with `arena` nullptr to learn plan.arena_bytes, then with memory of that size.
void plan_layout(graph_plan & plan, ggml_cgraph * graph, char * arena, const weight_mirror & mirror);

} // namespace moecache
