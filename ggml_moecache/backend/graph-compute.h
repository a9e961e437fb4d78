// graph_compute of a MoECache backend: the cache or the copies are made when it is time for them, the plan of the graph
// is run, and the status and the log are told.
#pragma once

#include "backend/batch-tracker.h"
#include "backend/context-log.h"
#include "backend/moe-op.h"
#include "backend/session-control.h"
#include "core/config.h"
#include "core/numbered-name.h"
#include "core/status.h"

#include <climits>
#include <memory>
#include <set>

namespace moecache {

// What one backend (llama context and device) owns. Used by the thread that runs its graphs.
struct backend_context {
    ggml_backend_dev_t               dev   = nullptr;
    ggml_backend_t                   inner = nullptr;
    config                           settings;
    std::shared_ptr<context_status>  status;
    std::unique_ptr<moe_op>          moe;
    std::unique_ptr<batch_tracker>   batches;
    std::shared_ptr<session_control> control;
    std::unique_ptr<numbered_name>   state_name; // of the files of session states; nullptr: none, or no cache yet
    bool                             by_requests      = false; // the policy asks for requests
    bool                             state_in_refused = false; // a file that was read, and is not to be replaced
    std::unique_ptr<context_log>     log;                      // nullptr: not asked for
    std::set<const void *>           refused; // weights that the inner device cannot multiply, by address
    int           last_block  = INT_MAX;      // block_order() of the last block computed: it rises within a ubatch
    bool          announced   = false;        // the status line was written
    bool          all_refused = false;        // capacity `all`, but there was no room: not tried again
    bool          cache_tried = false;        // a capacity in between: the cache was made, or could not be
    bool          waiting     = false;        // the cache waits for the second graph
    context_facts waiting_facts;              // the status line, should there be none
    bool          failed      = false;        // a fallback under MOECACHE_REQUIRE=1: nothing is computed any more
    bool          file_failed = false;        // the status file could not be written: said once, not tried again
    bool          loss_said   = false;        // the log has lost events, for whatever reason
};

enum ggml_status compute_graph(backend_context * context, ggml_cgraph * graph);

// What a context leaves behind: the end of its log, its status line if it has none yet, the session state where
// GGML_MOECACHE_STATE_OUT says. REQUIRES: nothing is computed any more.
void finish(backend_context * context);

} // namespace moecache
