// The routing log of one backend: opens it at the first graph with an MoE block, feeds it, closes it, and keeps
// run.json. Owned by one backend, used by the thread that runs its graphs.
#pragma once

#include "backend/routing-recorder.h"
#include "core/config.h"
#include "core/live-ring.h"
#include "core/routing-log.h"
#include "core/run-metadata.h"
#include "core/status.h"

#include <memory>

namespace moecache {

class context_log {
public:
    // `batches`: of the context; it must outlive the log.
    context_log(ggml_backend_dev_t dev, ggml_backend_t inner, const config & settings,
                std::shared_ptr<context_status> status, const batch_tracker & batches);
    ~context_log();
    context_log(const context_log &)             = delete;
    context_log & operator=(const context_log &) = delete;

    static bool wanted(const config & settings) { return settings.log_live || !settings.log_folder.empty(); }

    void graph_optimize(ggml_cgraph * graph, ggml_backend_graph_optimize_params * params) {
        recorder.keep_tensors(graph, params);
    }

    // A plan with MoE blocks, known to the tracker of batches, has been handed to the device. Returns "" or, once, why
    // the log could not be opened. `cache`: of the context, nullptr = none; the same at every call after the first
    // graph with MoE blocks.
    std::string computed(graph_plan & plan, const ggml_cgraph * graph, expert_cache * cache);

    void synchronized() {
        recorder.synchronized();
        count();
    }

    // Everything to the file. Returns "" or what could not be written. REQUIRES: the inner backend still exists,
    // nothing is computed any more.
    std::string close();

private:
    std::string open(const graph_plan & plan, const ggml_cgraph * graph, expert_cache * cache);
    void        count(); // bring the counters of the status up to date
    void        announce(const graph_plan & plan, const ggml_cgraph * graph);
    void        describe(const graph_plan & plan, const ggml_cgraph * graph);

    ggml_backend_dev_t              dev;
    const config                    settings;
    std::shared_ptr<context_status> status;
    routing_recorder                recorder;
    std::shared_ptr<live_channel>   channel; // nullptr: not asked for
    std::shared_ptr<event_ring>     live;
    std::unique_ptr<routing_log>    log;
    run_context                     facts;
    bool                            opened     = false; // or tried to
    bool                            said_error = false; // of a file that fails while it is written
};

} // namespace moecache
