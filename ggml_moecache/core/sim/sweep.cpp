#include "core/sim/sweep.h"

#include "core/policies/table.h"

#include <algorithm>

namespace moecache {

// A pass costs up to the depth of each expert, a heap the logarithm: measured, see DECISIONS.md.
constexpr uint32_t most_items_in_one_pass = 1024;

bool sweeps_in_one_pass(const cache_geometry & geometry, const policy_spec & spec, const sim_options & options) {
    const policy_entry & entry = *find_policy_entry(spec.info->name);
    if (entry.make_one_pass == nullptr || options.clocked || options.victim_agreement || options.log ||
        spec.real("payback") > 0) {
        return false;
    }
    const auto & items = geometry.items_of_budget;
    return std::all_of(items.begin(), items.end(), [](uint32_t n) { return n <= most_items_in_one_pass; });
}

static sim_result at_capacity(const cache_geometry & geometry, const one_pass_counts & counts,
                              const std::vector<uint32_t> & slots, const sim_result & common) {
    sim_result result = common;
    for (size_t column = 0; column < geometry.columns.size(); column++) {
        const uint32_t n           = slots[geometry.budget_of_column[column]];
        result.column_hits[column] = counts.hits[column][n];
        result.counters.hits += counts.hits[column][n];
        result.decode_hits += counts.decode_hits[column][n];
    }
    for (uint32_t budget = 0; budget < geometry.n_budgets(); budget++) {
        const uint32_t n          = slots[budget];
        const uint64_t admissions = counts.admissions[budget][n];
        const auto     column =
            static_cast<size_t>(std::find(geometry.budget_of_column.begin(), geometry.budget_of_column.end(), budget) -
                                geometry.budget_of_column.begin());
        result.counters.admissions += admissions;
        result.counters.evictions += admissions - std::min<uint64_t>(n, counts.n_distinct[budget]);
        result.counters.copy_bytes += admissions * geometry.columns[column].expert_bytes;
        const auto & by_size = counts.decode_events[budget];
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

static void one_pass_over(const event_stream & events, const policy_spec & spec, const cache_geometry & empty,
                          const std::vector<std::vector<uint32_t>> & slots, std::vector<sim_result> & out) {
    cache_geometry geometry = empty;
    for (const std::vector<uint32_t> & one : slots) {
        for (size_t budget = 0; budget < one.size(); budget++) {
            geometry.slots_of_budget[budget] = std::max(geometry.slots_of_budget[budget], one[budget]);
        }
    }
    const future *                  ahead = spec.info->needs_future ? &events.ahead() : nullptr;
    const std::unique_ptr<one_pass> pass = find_policy_entry(spec.info->name)->make_one_pass({ spec, geometry, ahead });
    sim_result                      common;
    common.column_accesses.assign(geometry.columns.size(), 0);
    common.column_hits.assign(geometry.columns.size(), 0);
    for (size_t index = 0; index < events.n_events(); index++) {
        const cache_event event  = events.event(index);
        const bool        decode = events.decode[index] != 0;
        pass->on_event(event, decode);
        common.column_accesses[event.column] += event.n_items;
        common.decode_accesses += decode ? event.n_items : 0;
    }
    common.counters.n_events     = events.n_events();
    common.counters.accesses     = events.items.size();
    const one_pass_counts counts = pass->finish();
    for (const std::vector<uint32_t> & one : slots) {
        out.push_back(at_capacity(geometry, counts, one, common));
    }
}

std::string simulate_capacities(const event_stream & events, const cache_geometry & geometry, const policy_spec & spec,
                                const std::vector<std::vector<uint32_t>> & slots, const sim_options & options,
                                std::vector<sim_result> & out) {
    cache_geometry sized = geometry;
    out.clear();
    for (const std::vector<uint32_t> & one : slots) {
        const std::string error = sized.set_slots(one);
        if (!error.empty()) {
            return error;
        }
    }
    if (sweeps_in_one_pass(geometry, spec, options)) {
        one_pass_over(events, spec, geometry, slots, out);
        return "";
    }
    for (const std::vector<uint32_t> & one : slots) {
        sized.set_slots(one);
        std::unique_ptr<simulator> made;
        const std::string          error = simulator::make(events, sized, spec, options, made);
        if (!error.empty()) {
            return error;
        }
        made->run(events.n_events());
        out.push_back(made->result());
    }
    return "";
}

} // namespace moecache
