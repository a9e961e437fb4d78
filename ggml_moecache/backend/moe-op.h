// The MoE operation at run time: runs a plan. Everything that is on the device goes to the inner backend; the experts
// that are not are computed by the CPU from the canonical weights.
//
// Owned by one backend (one llama context and device); one thread at a time.
#pragma once

#include "backend/expert-cache.h"
#include "backend/graph-plan.h"
#include "backend/host-compute.h"

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace moecache {

class moe_op {
public:
    moe_op(ggml_backend_dev_t dev, ggml_backend_t inner) : dev(dev), inner(inner) {}
    ~moe_op();
    moe_op(const moe_op &)             = delete;
    moe_op & operator=(const moe_op &) = delete;

    // The plan of `graph`, from the cache when the scheduler has given it the same identity before. nullptr when host
    // memory for the shadows cannot be had. Valid until the next call of plan() or forget_plans().
    graph_plan * plan(ggml_cgraph * graph);
    void         forget_plans(); // when residents have changed

    enum ggml_status run(graph_plan & plan, ggml_cgraph * graph);

    resident_set                  residents;
    host_compute                  host;
    std::unique_ptr<expert_cache> cache; // nullptr: no slots

    // Rows of shared blocks in all runs so far.
    uint64_t n_shared_hits   = 0;
    uint64_t n_shared_misses = 0;

private:
    void             drop_old_plans();
    bool             reserve_arena(size_t size_bytes);
    void *           mirror(const ggml_tensor * weight);
    void             fetch(const host_transfer & transfer);
    void             send(const host_transfer & transfer);
    enum ggml_status run_on_host(plan_segment & segment);
    enum ggml_status run_shared(plan_segment & segment);
    void             send_rows(const plan_segment & segment);

    ggml_backend_dev_t    dev;
    ggml_backend_t        inner;
    ggml_backend_buffer_t arena       = nullptr; // host memory of the shadows, pinned when possible
    size_t                arena_bytes = 0;

    std::unordered_map<uint64_t, std::unique_ptr<graph_plan>>    plans;   // by the graph's uid
    std::unique_ptr<graph_plan>                                  unnamed; // of the last graph without one
    std::map<std::pair<const void *, size_t>, std::vector<char>> mirrors; // by address on the device and size
    uint64_t                                                     n_uses = 0;
    std::vector<missed_row>                                      misses; // of the block at hand
};

} // namespace moecache
