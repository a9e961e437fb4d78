// The options of every admitting policy: admit-after and payback, as core/policies/README.md defines them.
#pragma once

#include "core/policies/spec.h"
#include "core/policy.h"

#include <cstdint>
#include <string>
#include <vector>

namespace moecache {

class admission_filter {
public:
    // Reads the options of `spec`.
    admission_filter(const policy_spec & spec, uint32_t n_items);

    bool on() const { return !uses.empty(); }

    void count(const cache_event & event) {
        if (on()) {
            now = event.token;
            for (uint32_t i = 0; i < event.n_items; i++) {
                uses[event.items[i]]++;
            }
        }
    }

    // Whether `item` may take the slot of `victim` (no_item: an empty one). REQUIRES: its event has been counted.
    bool admits(uint32_t item, uint32_t victim) const {
        return !on() || (uses[item] >= admit_after && pays_back(item, victim));
    }

    void        save(session_state & state) const;
    std::string load(const session_state & state);

private:
    bool pays_back(uint32_t item, uint32_t victim) const;

    int64_t              admit_after;
    double               payback;
    int64_t              horizon_tokens;
    int64_t              now = 0; // token number of the last event
    std::vector<int64_t> uses;    // [items] of the session; empty: no option is set, nothing is counted
};

} // namespace moecache
