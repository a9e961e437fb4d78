// Status: what each llama context of the process caches, where, or why nothing - as one log line, one exit line and
// JSON.
//
// A context_status belongs to one llama context and lives from the context's creation to the end of the process, so
// that the JSON also tells what contexts that are gone did (one that never computed a graph is forgotten). Its counters
// are atomic: the thread that runs the graph adds to them without locking, any thread may read. Everything else is set
// by update() under the lock of the status.
#pragma once

#include "core/config.h"
#include "core/reasons.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace moecache {

enum class context_state {
    idle,     // no graph with an MoE block was computed yet
    active,   // MoE blocks are computed by this library
    inactive, // they are not, `why` says for what reason
};

struct context_facts {
    context_state state = context_state::idle;
    reason        why   = reason::none;
    std::string   detail;            // figures that belong to `why`, for people
    std::string   device;            // such as "MoECache0"
    std::string   inner;             // the device below, such as "CUDA0 (NVIDIA H200)"
    std::string   capacity;          // as the user wrote it
    bool          per_layer = false; // every layer has slots of its own
    std::string   policy;            // "" = none
    uint64_t      n_experts  = 0;    // experts (layer, family, expert) in the store of this device
    uint64_t      n_resident = 0;    // of these, those with a slot on the device
    uint64_t      n_layers   = 0;    // MoE layers in the store of this device
    uint64_t      n_layers_elsewhere =
        0; // MoE layers of the same graph whose experts are elsewhere (user's choice, other device)
    uint64_t resident_bytes     = 0;
    uint64_t store_bytes        = 0; // canonical copies in host memory, of all models on this device
    uint64_t store_pinned_bytes = 0;
};

// A row is one expert computed for one token: (token, k). Warm-up graphs count nowhere but in n_warmup_graphs.
struct context_counters {
    std::atomic<uint64_t> n_graphs { 0 };        // graphs computed, without warm-up
    std::atomic<uint64_t> n_warmup_graphs { 0 }; // graphs that route every token to all experts
    std::atomic<uint64_t> n_events { 0 };        // routing decisions: tokens times MoE layers
    std::atomic<uint64_t> n_hits { 0 };          // rows computed on the device
    std::atomic<uint64_t> n_misses { 0 };        // rows computed on the CPU
    std::atomic<uint64_t> n_copies { 0 };        // expert copies host -> device
    std::atomic<uint64_t> copy_bytes { 0 };
    std::atomic<uint64_t> n_partial_blocks { 0 }; // MoE blocks that an eval callback had cut
    std::atomic<uint64_t> n_unknown_blocks { 0 }; // MoE blocks of unknown form
    std::atomic<uint64_t> n_whole_blocks { 0 };   // MoE blocks that the CPU computed although their experts have slots
    std::atomic<uint64_t> n_evictions { 0 };
    std::atomic<uint64_t> n_copies_late { 0 }; // copies that were not complete when their layer's next token came
    // Of the routing log, brought up to date with every graph. On a GPU the events of the last graph may be missing.
    std::atomic<uint64_t> n_log_events { 0 }; // events taken into its ring, but for those the file system has refused
    std::atomic<uint64_t> n_log_lost { 0 };   // events lost: ring full, or refused by the file system
    std::atomic<bool>     frozen { false };   // nothing is admitted to the cache and nothing counted by its policy
    std::atomic<uint64_t> log_ns { 0 }; // time that the thread of the graph spent on it, without waiting for the device
};

class context_status {
public:
    context_counters counters;

    // Request that the routing log gives the next tokens; request_tracker::automatic: told by their positions.
    std::atomic<uint64_t> request_id { UINT64_MAX };

    uint64_t      context_id() const { return id; }
    context_facts facts() const;
    bool          is_closed() const;
    void          update(const context_facts & facts);
    bool          add_fallback(reason why); // remembered once each, in order; true: it is new
    void          close(); // the context is being freed; one that never computed (--fit's) is forgotten

    std::string status_line() const; // "moecache: active: ..." or "moecache: inactive: ..."
    std::string exit_line() const;

    // The context with this id, also after it was closed; nullptr when there is none.
    static std::shared_ptr<context_status> find(uint64_t context_id);

    // A new context, known to status_json() from now on.
    static std::shared_ptr<context_status> create(const context_facts & facts);

private:
    friend std::string status_json();
    friend bool        status_any_known();

    uint64_t            id = 0;
    context_facts       current;
    std::vector<reason> fallbacks;
    bool                closed = false;
};

std::string status_json();        // all contexts in order of creation
bool        status_any_created(); // there was a context, of --fit's or one that never computed maybe
bool        status_any_known();   // some context of the process has written its status line

// Why no context can have a device of ours: the library refused to be used, or was never used. none: neither.
void status_set_reason(reason why, const std::string & detail);

// Write status_json() to `path`, replacing the file as a whole. Returns "" or what went wrong.
std::string status_write(const std::string & path);

} // namespace moecache
