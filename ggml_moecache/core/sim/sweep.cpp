#include "core/sim/sweep.h"

#include "core/policies/table.h"
#include "core/sim/content-replay.h"

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

static std::string simulate_one(const event_stream & events, const cache_geometry & geometry, const policy_spec & spec,
                                const sim_options & options, sim_result & result) {
    if (options.clocked || options.log) {
        std::unique_ptr<simulator> made;
        const std::string          error = simulator::make(events, geometry, spec, options, made);
        if (error.empty()) {
            made->run(events.n_events());
            result = made->result();
        }
        return error;
    }
    const future *          ahead = spec.info->needs_future || options.victim_agreement ? &events.ahead() : nullptr;
    std::unique_ptr<policy> rules;
    const std::string       error = make_policy({ spec, geometry, ahead }, rules);
    if (error.empty()) {
        std::unique_ptr<victim_agreement> meter;
        if (options.victim_agreement) {
            meter = std::make_unique<victim_agreement>(*ahead, geometry);
        }
        result = content_replay(geometry, std::move(rules), meter.get()).run(events, {}).front();
    }
    return error;
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
        sim_result        result;
        const std::string error = simulate_one(events, sized, spec, options, result);
        if (!error.empty()) {
            return error;
        }
        out.push_back(std::move(result));
    }
    return "";
}

} // namespace moecache
