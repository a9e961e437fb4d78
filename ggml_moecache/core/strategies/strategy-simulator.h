// The clocked replay of strategies that prefetch. Time, look-ups and demand copies are those of core/sim/simulator.h; a
// strategy without candidates replays as its ranked policy does there (a test compares them).
//
// One copy queue. At an event's look-up the demand copies (misses that are admitted) are enqueued at once, as in the
// simulator. While the queue is idle between two look-ups the task pool's next task begins; it is not broken off, so
// a demand copy that is enqueued meanwhile waits for it, which is counted. A prefetch takes an empty slot, else that of
// the lowest score whose copy is complete. Its own slot is protected until its deadline's event has been looked up.
//
// Every copy takes copy_event_ns from the event in which it is handed over: a demand copy from its own, a prefetch from
// the one that was looked up last, so that the next look-up comes later.
#pragma once

#include "core/sim/event-stream.h"
#include "core/sim/simulator.h"
#include "core/strategies/scorer.h"
#include "core/strategies/task-pool.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace moecache {

struct strategy_options {
    std::string scorer           = "decayed-lfu";
    double      half_life_tokens = 256;  // of decayed-lfu
    bool        demand           = true; // misses may be admitted, by the rule of ranked policies
    task_order  order            = task_order::deadline;
    uint32_t    least_lead       = 1;     // events
    double      least_confidence = 0;     // candidates below it are passed over
    bool        only_better      = false; // a prefetch must have a higher score than its victim
    bool        victim_agreement = false; // of the demand evictions (core/sim/victim-agreement.h)
    sim_costs   costs;
};

// Copies in the order in which they were enqueued.
struct strategy_copies {
    std::vector<int64_t> event;     // after whose look-up it began
    std::vector<uint8_t> prefetch;  // 0: demand
    std::vector<int8_t>  in_time;   // demand: complete at the column's next event; prefetch: at its deadline. 0 no,
                                    // 1 yes, -1: no such event, or evicted before it
    std::vector<uint8_t> asked;     // prefetch: the event of its deadline asked for the expert
    std::vector<uint8_t> used;      // it was a hit before it was evicted
    std::vector<uint8_t> delayed;   // demand: it waited for a prefetch
    std::vector<uint8_t> made_late; // demand: late, and would have been in time without the wait
};

struct strategy_result {
    uint64_t             accesses = 0, hits = 0, evictions = 0, copy_bytes = 0;
    uint64_t             tasks           = 0; // candidates that were sure enough
    uint64_t             expired         = 0; // tasks that the link never came to
    uint64_t             held_already    = 0; // tasks whose expert had a slot when they came, or when their turn did
    uint64_t             without_slot    = 0; // tasks for which no slot could be given up when their turn came
    double               end_ns          = 0; // of the last event: the clock's time for the whole trace
    double               demand_delay_ns = 0; // all waiting of demand copies for prefetches
    uint64_t             demand_victims = 0, agreed = 0;
    std::vector<uint8_t> hit; // [accesses]
    strategy_copies      copies;
};

// `scores` and `candidates` may be NULL: none. Returns "" or why the options cannot be.
std::string replay_strategy(const event_stream & events, const cache_geometry & geometry,
                            const strategy_options & options, const score_table * scores, const forecast * candidates,
                            strategy_result & out);

} // namespace moecache
