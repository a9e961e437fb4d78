// One policy at several capacities over one event stream: in one pass where the policy can, else capacity by capacity.
// The results are the same.
#pragma once

#include "core/sim/simulator.h"

#include <string>
#include <vector>

namespace moecache {

// Whether simulate_capacities() takes one pass for all of several capacities.
bool sweeps_in_one_pass(const event_stream & events, const cache_geometry & geometry, const policy_spec & spec,
                        const sim_options & options);

// `slots[i]`: the slots of each budget at the i-th capacity. Results in this order. Returns "" or why not.
std::string simulate_capacities(const event_stream & events, const cache_geometry & geometry, const policy_spec & spec,
                                const std::vector<std::vector<uint32_t>> & slots, const sim_options & options,
                                std::vector<sim_result> & out);

} // namespace moecache
