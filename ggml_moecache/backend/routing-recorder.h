// The recorder: reads router ids and weights out of the graphs that run and puts them into the log's ring.
//
// Ids and weights live in memory of the graph that GGML uses again within the same graph, so graph_optimize gives them
// memory of ours (router-memory.h), or has GGML keep them where the device has no room for that. After the graph has
// been handed to the device one gather copies them all to host memory, without waiting; events are made of them when
// the device has been synchronized, at the latest before the memory for gathers runs out.
//
// Owned by one backend; called by the thread that runs the graph. Memory is taken when a graph is new, not per token.
#pragma once

#include "backend/batch-tracker.h"
#include "backend/expert-cache.h"
#include "backend/graph-plan.h"
#include "backend/router-memory.h"
#include "core/event-ring.h"
#include "core/residency-feed.h"
#include "transfer/gather.h"

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

namespace moecache {

class routing_recorder {
public:
    // `batches`: of the context; it must outlive the recorder.
    routing_recorder(ggml_backend_dev_t dev, ggml_backend_t inner, bool wait_when_full, const batch_tracker & batches);
    ~routing_recorder();
    routing_recorder(const routing_recorder &)             = delete;
    routing_recorder & operator=(const routing_recorder &) = delete;

    // Find the router tensors of a graph and keep their memory until its end. Part of graph_optimize.
    void keep_tensors(ggml_cgraph * graph, ggml_backend_graph_optimize_params * params);

    // Where the events go. `in_background`: events are made by a thread of the recorder's own where the device allows
    // it, and not by the thread of the graph; they then appear a fraction of a millisecond later. REQUIRES: before the
    // first record().
    // With a `cache` (a ring made for one) events are held back until its columns' next tokens, when the fate of their
    // copies is known.
    void set_ring(event_ring * target, bool in_background, expert_cache * cache);

    // After `plan` has been handed to the device: gather its routing. Not for warm-up graphs. REQUIRES: the tracker of
    // batches has seen the plan.
    void record(graph_plan & plan, const ggml_cgraph * graph);

    // The device has been synchronized: make events of what was gathered (in the background this is done without
    // asking).
    void synchronized();

    // Make events of everything that was gathered, waiting for the device.
    void land_all();

    // Time that record() and the making of events took so far, without waiting for the device.
    uint64_t spent_ns() const { return ns; }

    // Layers that saw output rows only, so far, in rising order.
    const std::set<int> & output_row_layers() const { return output_layers; }

private:
    // A graph that is on its way.
    struct flight {
        std::vector<routing_source>  blocks;
        std::vector<token_info>      tokens;      // of the ubatch
        std::vector<int32_t>         output_rows; // row -> token of layers that see output rows only
        uint64_t                     batch_id = 0;
        std::vector<cache_record>    records; // [blocks] with a cache
        std::vector<event_report>    reports; // [blocks]
        std::vector<snapshot_change> changes; // of the cache's snapshot, since the flight before
    };

    void make_routing(graph_plan & plan, const ggml_cgraph * graph);
    void add_block(graph_plan & plan, const ggml_cgraph * graph, const moe_block & block);
    void reserve(const plan_routing & routing);
    void lose(const flight & next);
    void land_in_background();
    void land(size_t slot);
    void land_next();
    void land_final();
    void take_records(flight & next);
    void finish(flight & last);
    void finish_last(flight & last);
    void emit_block(const flight & done, size_t block_index, const char * memory, bool in_order);
    void wait_for_room(); // for one slot, where that is what a full ring means
    void emit_decisions(const flight & done, const cache_record & record);
    void emit_cache(const flight & done, size_t block_index, uint32_t row, routing_event * event);

    ggml_backend_dev_t    dev;
    ggml_backend_t        inner;
    const bool            wait_when_full;
    const batch_tracker & batches;
    routing_gather        gather;
    event_ring *          ring  = nullptr;
    expert_cache *        cache = nullptr; // whose records go into the ring

    std::unique_ptr<residency_feed> residency; // with a cache; of the thread that makes events

    router_memory memory;

    std::unordered_map<const ggml_tensor *, ggml_tensor *> weights_of; // router ids -> weights, of the graphs optimized
    std::vector<flight>                                    flights;    // one per slot of the gather, used in turn
    std::atomic<size_t>                                    n_started { 0 };
    std::atomic<size_t>                                    n_final { 0 }; // of those started: may become events
    std::atomic<size_t>                                    n_landed { 0 };
    std::thread       lander; // makes events where the gather allows another thread; else the graph's thread does
    std::atomic<bool> stop { false };

    uint64_t      n_batches = 0;
    uint64_t      ns        = 0;
    std::set<int> output_layers;
    int           last_block = INT32_MAX; // block_order() of the last block recorded: it rises within a ubatch
};

} // namespace moecache
