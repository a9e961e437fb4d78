#include "core/sim/sweep.h"

#include "core/policies/table.h"

#include <algorithm>

namespace moecache {

// The engine of the policy for these options, NULL: it has none. `spec` and `geometry` must outlive it.
static std::unique_ptr<engine> make_engine(const event_stream & events, const cache_geometry & geometry,
                                           const policy_spec & spec, const sim_options & options, size_t n_capacities) {
    const policy_entry & entry = *find_policy_entry(spec.info->name);
    if (entry.make_engine == nullptr || options.clocked || options.victim_agreement || options.log) {
        return nullptr;
    }
    const future * ahead = spec.info->needs_future ? &events.ahead() : nullptr;
    return entry.make_engine({ spec, geometry, ahead }, n_capacities);
}

bool sweeps_in_one_pass(const event_stream & events, const cache_geometry & geometry, const policy_spec & spec,
                        const sim_options & options) {
    return make_engine(events, geometry, spec, options, 2) != nullptr;
}

std::string simulate_capacities(const event_stream & events, const cache_geometry & geometry, const policy_spec & spec,
                                const std::vector<std::vector<uint32_t>> & slots, const sim_options & options,
                                std::vector<sim_result> & out) {
    cache_geometry largest = geometry;
    cache_geometry sized   = geometry;
    out.clear();
    for (const std::vector<uint32_t> & one : slots) {
        const std::string error = sized.set_slots(one);
        if (!error.empty()) {
            return error;
        }
        for (size_t budget = 0; budget < one.size(); budget++) {
            largest.slots_of_budget[budget] = std::max(largest.slots_of_budget[budget], one[budget]);
        }
    }
    const std::unique_ptr<engine> fast = make_engine(events, largest, spec, options, slots.size());
    if (fast != nullptr) {
        out = fast->run(events, slots);
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
