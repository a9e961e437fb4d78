// What a replay counts, and the decisions it logs when asked to.
#pragma once

#include "core/cache-manager.h"

#include <cstdint>
#include <vector>

namespace moecache {

// The decisions of every event; a accesses, m admissions.
struct sim_log {
    std::vector<uint8_t>  hit;              // [a]
    std::vector<int64_t>  admitted_event;   // [m] -1: before the first event
    std::vector<uint32_t> admitted;         // [m] item
    std::vector<uint32_t> evicted;          // [m] item, no_item: the slot was empty
    std::vector<double>   copy_enqueued_ns; // [m] clocked only
    std::vector<double>   copy_ready_ns;    // [m] clocked only
    std::vector<int8_t>   copy_ready;       // [m] 1 complete at the column's next event, 0 not, -1 no such event, or
                                            // evicted before it
};

struct sim_result {
    cache_counters        counters;
    uint64_t              decode_accesses   = 0;
    uint64_t              decode_hits       = 0;
    uint64_t              decode_admissions = 0; // only counted where copies are clocked
    std::vector<uint64_t> column_accesses;       // [columns]
    std::vector<uint64_t> column_hits;           // [columns]
    uint64_t              agreed = 0; // evictions whose victim was among the farthest next uses of the content
    // [n][h] decode events of n experts of which h hit: what the time per token follows from
    std::vector<std::vector<uint64_t>> decode_events;
    sim_log                            log;
};

} // namespace moecache
