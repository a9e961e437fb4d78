// The cache of one llama context on one device: geometry from the model's weights, slots on the device, the policy and
// the manager that decide (core/cache-manager.h), the copies.
//
// Owned by one backend, used by the thread that runs its graphs. Made at the first graph that is no warm-up, after the
// KV cache and the compute buffers.
#pragma once

#include "backend/expert-pools.h"
#include "backend/graph-walk.h"
#include "backend/slot-plan.h"
#include "backend/slot-transfer.h"
#include "core/cache-manager.h"
#include "core/policies/spec.h"
#include "core/request-numbers.h"
#include "core/request-tracker.h"
#include "core/snapshot-changes.h"
#include "core/state-file.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace moecache {

// A row (token, k) of a block that the CPU computes.
struct missed_row {
    uint32_t token;
    uint32_t k;
};

// What the cache did with one ubatch of a column, for the routing log.
struct cache_record {
    uint64_t              event = UINT64_MAX; // number of the event in this cache; UINT64_MAX: it passed the cache by
    uint64_t              graph = 0;          // in which graph it was
    std::vector<uint64_t> row_hits;           // [n_tokens] bit k: row (token, k) was the device's
    std::vector<decision> decisions;
    uint64_t              generation  = 0;
    size_t                n_changes   = 0; // of the journal, those that led to this generation
    uint64_t              enqueued_ns = 0;
    uint64_t              copy_bytes  = 0;
    uint64_t              cpu_ns      = 0;
    uint64_t              device_ns   = 0;
};

// What is known of an event at the next token of its column: what became of its copies, how long a GPU took.
struct event_report {
    uint64_t event     = UINT64_MAX;
    int8_t   ready     = -1; // all were complete in time; -1: there were none
    uint64_t ready_ns  = 0;  // the last one, 0: not known
    uint64_t copy_ns   = 0;  // all of them
    uint64_t device_ns = 0;  // 0: not known, or the record has it
};

struct cache_request {
    ggml_backend_dev_t dev;
    ggml_backend_t     inner;
    const config &     settings;
    std::string        model;    // fingerprint of its experts
    uint32_t           n_used;   // the largest top-k
    bool               may_wait; // do not take what others may still need: see make()
};

class expert_cache {
public:
    static constexpr int64_t max_tokens = slot_plan::max_tokens;

    // `weights`: the expert weights of the store that the model graph shows. Returns nullptr and `why` when there is no
    // room for one slot, or a setting does not fit the model; else `why` is "", or says that there are fewer slots than
    // asked for. nullptr and "" where the slots would be whatever is left (`auto`, or fewer than asked for) and the
    // request may wait.
    static std::unique_ptr<expert_cache> make(const cache_request &                    request,
                                              const std::vector<const ggml_tensor *> & weights, std::string & why);
    ~expert_cache();

    // Whether one of the block's weights has slots.
    bool has_slots(const moe_block & block, const graph_walk & walk, const ggml_cgraph * graph) const;

    // The column of a block's experts, or -1: not all of its weights are of one, an adapter's say.
    int column_of(const moe_block & block, const graph_walk & walk, const ggml_cgraph * graph) const;

    // The tensor of slots that takes the place of `weight`. REQUIRES: a weight of a block that has a column.
    ggml_tensor * slots_of(const ggml_tensor * weight) const;

    // Router ids of a column's block as places in the slots, I32 [n_used, n_tokens] on the device, constant address.
    // Filled by upload().
    ggml_tensor make_place_ids(uint32_t column, int64_t n_used, int64_t n_tokens) const;

    // One ubatch of a column: `ids` I32 [n_tokens][n_used]. Publishes copies, decides, enqueues copies; fills `misses`
    // and the places for upload(). Returns the number of rows that the device computes.
    // REQUIRES: the device has finished what was handed to it before.
    uint32_t route(uint32_t column, const int32_t * ids, uint32_t n_used, uint32_t n_tokens,
                   std::vector<missed_row> & misses);
    void     upload(uint32_t column, uint32_t n_used, uint32_t n_tokens); // onto the stream of the graph
    void     launched();                                                  // the device's part has been handed over

    // --- the session (cache-session.cpp) ---

    // Whether the policy looks at requests; begin_batch() then says whose tokens the next ubatch has.
    bool follows_requests() const { return spec.info->by_requests; }
    void begin_batch(const std::vector<token_info> & tokens);

    saved_session export_session() const;

    // Both make another session on the same slots, between two graphs: one that goes on where `saved` was exported, or
    // a new one. Experts that have no slot yet are copied and become visible when their copies are complete; counters()
    // go on. Return "" or why not; then nothing has changed. They wait for the device.
    std::string import_session(const saved_session & saved);
    std::string reset_session();

    // Frozen: nothing is admitted and nothing is counted, the session stands still; copies under way still arrive.
    void freeze(bool on);
    bool is_frozen() const { return frozen; }

    // Imports, resets and beginnings of a freeze: a log of the events alone does not replay to the same decisions.
    uint64_t n_session_changes() const { return n_changes; }

    void finish_copies(); // wait for all copies and make them visible

    // --- for the routing log ---
    void     begin_graph();
    uint64_t n_graphs() const { return graphs; }
    // Returns "", or why the device's times will not be known.
    std::string keep_records();
    bool        keeps_records() const { return recording; }
    // Changes of the snapshot since the last call, or keep_records(). Records count them from the same call on.
    void take_changes(std::vector<snapshot_change> & out) { journal->take(out); }
    void add_cpu_time(uint32_t column, uint64_t ns) { records[column].cpu_ns += ns; }
    // Around the device's part of the event, and around a wait for the stream of the graph.
    void device_begins(uint32_t column);
    void device_ends(uint32_t column);
    void before_wait();
    void after_wait();
    // Of the column's last event, when the device has finished it; then 0 until the next one.
    uint64_t                              take_device_ns(uint32_t column);
    const cache_record &                  record(uint32_t column) const { return records[column]; } // of the last event
    const event_report &                  report(uint32_t column) const { return reports[column]; } // of the one before
    int                                   column_index(int layer, int family) const;                // -1: none
    std::shared_ptr<const cache_geometry> geometry_copy() const { return std::make_shared<cache_geometry>(geometry); }

    // --- figures ---
    const cache_counters & counters() const { return manager->counters(); }
    uint64_t               size_bytes() const { return pools.size_bytes(); }
    uint64_t               n_slots() const { return manager->n_slots(); }
    uint32_t               n_experts() const { return geometry.n_items(); }
    std::string            policy_name() const { return spec.canonical(); }

private:
    explicit expert_cache(const cache_request & request) :
        dev(request.dev), inner(request.inner), model(request.model), pools(request.dev), sync(request.settings.sync),
        per_layer(request.settings.per_layer) {}

    void                          take(slot_plan plan);
    void                          begin_session(std::unique_ptr<policy> other, const std::vector<int64_t> & content);
    std::string                   start(const config & settings);
    void                          make_event(uint32_t column, const int32_t * ids, uint32_t n_rows);
    const std::vector<decision> & decide(const cache_event & seen);
    void                          report_copies(uint32_t column, const std::vector<copy_outcome> & outcomes);
    void make_record(uint32_t column, uint64_t event, uint64_t generation, uint32_t n_used, uint32_t n_tokens,
                     const std::vector<missed_row> & misses, const std::vector<decision> & decisions);
    void fill_places(uint32_t column, const int32_t * ids, uint32_t n_used, uint32_t n_tokens,
                     std::vector<missed_row> & misses);

    size_t place_offset(uint32_t column) const { return column * place_bytes_of_column; }

    ggml_backend_dev_t                                       dev;
    ggml_backend_t                                           inner;
    std::string                                              model; // fingerprint
    cache_geometry                                           geometry;
    std::vector<column_weights>                              columns;          // [columns]
    std::map<const void *, std::pair<uint32_t, expert_role>> column_of_weight; // by address of the canonical data
    policy_spec                                              spec;
    std::unique_ptr<policy>                                  rules;
    expert_pools                                             pools;
    slot_map                                                 map;
    std::unique_ptr<device_timer>                            timer; // while recording, where the device has one
    std::unique_ptr<slot_transfer>                           copies;
    std::unique_ptr<snapshot_journal>                        journal; // while recording
    std::unique_ptr<cache_manager>                           manager;
    uint32_t                                                 n_spare = 0; // places per layout, the largest top-k
    size_t                                                   place_bytes_of_column = 0;
    ggml_backend_buffer_t place_buffer = nullptr; // on the device: [columns][max_tokens * n_spare]
    ggml_backend_buffer_t host_buffer  = nullptr; // the same on the host, pinned if possible
    bool                  sync;
    bool                  per_layer; // every column has a budget of its own

    bool                      recording = false;
    std::vector<cache_record> records; // [columns]
    std::vector<event_report> reports; // [columns]

    std::vector<uint32_t> event_items;
    std::vector<uint32_t> last_row; // [experts of a column] 1 + the last row that used it, 0: none
    std::vector<uint8_t>  event_hits;
    std::vector<uint8_t>  is_hit; // [experts of a column]
    uint64_t              graphs      = 0;
    uint64_t              n_looked_up = 0;         // of all sessions, events while frozen included
    int                   last_column = INT32_MAX; // a ubatch goes up through the columns

    session_clock   clock; // of the session; its requests are those of `requests`
    request_numbers requests;
    int64_t         request   = 0;     // the newest of the ubatch
    bool            continues = false; // the next ubatch may go on with the request that came last before the import
    bool            frozen    = false;
    uint64_t        n_changes = 0;
};

} // namespace moecache
