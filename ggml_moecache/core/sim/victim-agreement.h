// How often a policy evicts what the optimum could have evicted: the m victims of an event agree as far as their next
// uses are among the m farthest of the content before the decisions (never used again is farthest; ties agree).
#pragma once

#include "core/policies/future.h"
#include "core/policy.h"

#include <cstdint>
#include <vector>

namespace moecache {

class victim_agreement {
public:
    // `f` must outlive it.
    victim_agreement(const future & f, const cache_geometry & geometry);

    // Every event in order, its decisions and the experts that held the first `n_held` slots of its budget before them.
    void count(const cache_event & event, const std::vector<decision> & decisions, const uint32_t * held,
               uint32_t n_held);

    uint64_t agreed() const { return n_agreed; }

    void        save(session_state & state) const;
    std::string load(const session_state & state);

private:
    const future &        ahead;
    std::vector<uint32_t> next_use; // [items] event of the next use, no_event: none
    std::vector<uint32_t> uses;     // next uses of the content at hand
    uint64_t              n_agreed = 0;
};

} // namespace moecache
