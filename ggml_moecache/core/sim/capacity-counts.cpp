#include "core/sim/capacity-counts.h"

#include <algorithm>

namespace moecache {

capacity_counts::capacity_counts(const cache_geometry & g) :
    n_distinct(g.n_budgets(), 0), geometry(g), decode_events(g.n_budgets()) {
    for (uint32_t budget = 0; budget < g.n_budgets(); budget++) {
        admissions.emplace_back(g.slots_of_budget[budget] + 2);
    }
    for (uint32_t column = 0; column < g.columns.size(); column++) {
        const size_t n = g.slots_of_budget[g.budget_of_column[column]] + 2;
        hits.emplace_back(n);
        decode_hits.emplace_back(n);
    }
}

void capacity_counts::hits_at(const cache_event & event, bool decode, const std::vector<uint32_t> & depths) {
    for (const uint32_t depth : depths) {
        hits[event.column][depth]++;
        decode_hits[event.column][depth] += decode ? 1 : 0;
    }
    if (!decode) {
        return;
    }
    const uint32_t budget  = geometry.budget_of_column[event.column];
    auto &         by_size = decode_events[budget];
    if (by_size.size() <= event.n_items) {
        by_size.resize(event.n_items + 1);
    }
    auto & by_hits = by_size[event.n_items];
    if (by_hits.empty()) {
        by_hits.assign(event.n_items + 1, std::vector<uint64_t>(geometry.slots_of_budget[budget] + 2));
    }
    sorted = depths;
    std::sort(sorted.begin(), sorted.end());
    by_hits[0][0]++;
    for (size_t h = 0; h < sorted.size(); h++) {
        by_hits[h][sorted[h]]--;
        by_hits[h + 1][sorted[h]]++;
    }
}

static void accumulate(std::vector<uint64_t> & line) {
    line.pop_back(); // of depths beyond the largest capacity
    for (size_t capacity = 1; capacity < line.size(); capacity++) {
        line[capacity] += line[capacity - 1];
    }
}

std::vector<sim_result> capacity_counts::results(const event_stream &                       events,
                                                 const std::vector<std::vector<uint32_t>> & slots) {
    for (auto * table : { &hits, &decode_hits, &admissions }) {
        std::for_each(table->begin(), table->end(), accumulate);
    }
    for (auto & by_size : decode_events) {
        for (auto & by_hits : by_size) {
            std::for_each(by_hits.begin(), by_hits.end(), accumulate);
        }
    }
    const sim_result        common = common_result(events, geometry);
    std::vector<sim_result> results;
    for (const std::vector<uint32_t> & one : slots) {
        results.push_back(at(one, common));
    }
    return results;
}

sim_result capacity_counts::at(const std::vector<uint32_t> & slots, const sim_result & common) const {
    sim_result result = common;
    for (size_t column = 0; column < geometry.columns.size(); column++) {
        const uint32_t n           = slots[geometry.budget_of_column[column]];
        result.column_hits[column] = hits[column][n];
        result.counters.hits += hits[column][n];
        result.decode_hits += decode_hits[column][n];
    }
    for (uint32_t budget = 0; budget < geometry.n_budgets(); budget++) {
        const uint32_t n = slots[budget];
        add_admissions(result, geometry, budget, admissions[budget][n], std::min<uint64_t>(n, n_distinct[budget]));
        const auto & by_size = decode_events[budget];
        result.decode_events.resize(std::max(result.decode_events.size(), by_size.size()));
        for (size_t size = 0; size < by_size.size(); size++) {
            auto & by_hits = result.decode_events[size];
            by_hits.resize(std::max(by_hits.size(), by_size[size].size()));
            for (size_t h = 0; h < by_size[size].size(); h++) {
                by_hits[h] += by_size[size][h][n];
            }
        }
    }
    return result;
}

} // namespace moecache
