#include "core/sim/engine.h"

#include <algorithm>

namespace moecache {

sim_result common_result(const event_stream & events, const cache_geometry & geometry) {
    sim_result result;
    result.column_accesses.assign(geometry.columns.size(), 0);
    result.column_hits.assign(geometry.columns.size(), 0);
    for (size_t index = 0; index < events.n_events(); index++) {
        const uint64_t n = events.offsets[index + 1] - events.offsets[index];
        result.column_accesses[events.column[index]] += n;
        result.decode_accesses += events.decode[index] ? n : 0;
    }
    result.counters.n_events = events.n_events();
    result.counters.accesses = events.items.size();
    return result;
}

void count_hits(sim_result & result, uint32_t column, uint32_t n_items, uint32_t n_hits, bool decode) {
    result.column_hits[column] += n_hits;
    result.counters.hits += n_hits;
    if (!decode) {
        return;
    }
    result.decode_hits += n_hits;
    if (result.decode_events.size() <= n_items) {
        result.decode_events.resize(n_items + 1);
    }
    auto & by_hits = result.decode_events[n_items];
    by_hits.resize(n_items + 1);
    by_hits[n_hits]++;
}

void add_admissions(sim_result & result, const cache_geometry & geometry, uint32_t budget, uint64_t admissions,
                    uint64_t n_held) {
    // All experts of a budget have the same size.
    const auto & budgets = geometry.budget_of_column;
    const auto   column  = static_cast<size_t>(std::find(budgets.begin(), budgets.end(), budget) - budgets.begin());
    result.counters.admissions += admissions;
    result.counters.evictions += admissions - n_held;
    result.counters.copy_bytes += admissions * geometry.columns[column].expert_bytes;
}

} // namespace moecache
