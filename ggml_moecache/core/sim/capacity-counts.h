// Counts of one pass for every capacity at once. While events come in the tables hold differences between neighbouring
// capacities: "from depth d on" is one addition.
#pragma once

#include "core/policy.h"
#include "core/sim/engine.h"

#include <cstdint>
#include <vector>

namespace moecache {

class capacity_counts {
public:
    // Capacities from 0 to the slots that `g` gives each budget; deeper is that plus 1. `g` must outlive it.
    explicit capacity_counts(const cache_geometry & g);

    std::vector<uint64_t>
        n_distinct; // [budgets] experts ever admitted: a cache of C slots holds min(C, this) at the end

    // depths[i]: the smallest capacity at which item i of the event hits.
    void hits_at(const cache_event & event, bool decode, const std::vector<uint32_t> & depths);

    // An item is in the content of capacities from `now` on, and was before the event from `before` on.
    void admitted(uint32_t budget, uint32_t now, uint32_t before) {
        if (now < before) {
            admissions[budget][now]++;
            admissions[budget][before]--;
        }
    }

    // REQUIRES: called once, after the last event.
    std::vector<sim_result> results(const event_stream & events, const std::vector<std::vector<uint32_t>> & slots);

private:
    sim_result at(const std::vector<uint32_t> & slots, const sim_result & common) const;

    const cache_geometry &             geometry;
    std::vector<std::vector<uint64_t>> hits;        // [columns][capacity]
    std::vector<std::vector<uint64_t>> decode_hits; // [columns][capacity]
    std::vector<std::vector<uint64_t>> admissions;  // [budgets][capacity]
    // [budgets][n][h][capacity] decode events of n experts of which h hit
    std::vector<std::vector<std::vector<std::vector<uint64_t>>>> decode_events;
    std::vector<uint32_t>                                        sorted; // depths of the event at hand
};

} // namespace moecache
