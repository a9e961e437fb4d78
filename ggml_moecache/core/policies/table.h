// The policies: one line each in table.cpp. Help, documentation, the bindings and the conformance tests follow from it.
#pragma once

#include "core/policies/future.h"
#include "core/policies/spec.h"
#include "core/policy.h"
#include "core/sim/engine.h"

#include <memory>
#include <string>
#include <vector>

namespace moecache {

// What a policy is made from. The referenced objects must outlive it.
struct policy_inputs {
    const policy_spec &    spec;
    const cache_geometry & geometry;
    const future *         ahead; // NULL at run time; REQUIRES: set if info.needs_future
};

struct policy_entry {
    policy_info info;
    // Returns "" or why it cannot be made (a file that is not there).
    std::string (*make)(const policy_inputs & in, std::unique_ptr<policy> & out);
    // The counts of copies that are complete at once, for so many capacities, of which the geometry has the largest
    // (optional). NULL: the simulator is as fast, or the specification has no such engine.
    std::unique_ptr<engine> (*make_engine)(const policy_inputs & in, size_t n_capacities);
};

const std::vector<policy_entry> & policy_table();
const policy_entry *              find_policy_entry(const std::string & name); // NULL: no such policy
const policy_info *               find_policy(const std::string & name);
std::string                       policy_names();                            // separated by commas
std::string                       parameter_names(const policy_info & info); // likewise; "none"

// The parameters that every admitting policy has, behind its own.
std::vector<parameter_info> with_admission_options(std::vector<parameter_info> own);

// Makes `spec`'s policy. Returns "" or why not.
std::string make_policy(const policy_inputs & in, std::unique_ptr<policy> & out);

} // namespace moecache
