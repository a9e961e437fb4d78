// Faster ways than the simulator to the same counts, for copies that are complete at the next token. A policy may have
// one: core/policies/table.h.
#pragma once

#include "core/sim/event-stream.h"
#include "core/sim/result.h"

#include <cstdint>
#include <vector>

namespace moecache {

class engine {
public:
    virtual ~engine() = default;

    // `slots[i]`: the slots of each budget at the i-th capacity. The results of the simulator at these capacities,
    // without log and victim agreement. REQUIRES: called once; no more slots than the engine's geometry has.
    virtual std::vector<sim_result> run(const event_stream &                       events,
                                        const std::vector<std::vector<uint32_t>> & slots) = 0;
};

// What no policy changes: events and accesses.
sim_result common_result(const event_stream & events, const cache_geometry & geometry);

// Count the hits of an event; its accesses are counted elsewhere.
void count_hits(sim_result & result, uint32_t column, uint32_t n_items, uint32_t n_hits, bool decode);

// Count a budget's admissions, and the evictions that follow from `n_held` experts in its slots at the end.
void add_admissions(sim_result & result, const cache_geometry & geometry, uint32_t budget, uint64_t admissions,
                    uint64_t n_held);

} // namespace moecache
