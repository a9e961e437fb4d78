#include "core/sim/victim-agreement.h"

#include <algorithm>
#include <functional>

namespace moecache {

victim_agreement::victim_agreement(const future & f, const cache_geometry & geometry) :
    ahead(f), next_use(geometry.n_items(), no_event) {
    uses.reserve(geometry.most_slots());
}

void victim_agreement::count(const cache_event & event, const std::vector<decision> & decisions, const uint32_t * held,
                             uint32_t n_held) {
    for (uint32_t i = 0; i < event.n_items; i++) {
        next_use[event.items[i]] = ahead.next_use[event.first_access + i];
    }
    size_t n_victims = 0;
    for (const decision & d : decisions) {
        n_victims += d.evicted != no_item ? 1 : 0;
    }
    if (n_victims == 0) {
        return;
    }
    uint32_t bar = 0; // the m-th farthest next use
    if (n_victims == 1) {
        for (uint32_t i = 0; i < n_held; i++) {
            bar = std::max(bar, next_use[held[i]]);
        }
    } else {
        uses.clear();
        for (uint32_t i = 0; i < n_held; i++) {
            uses.push_back(next_use[held[i]]);
        }
        const auto last = uses.begin() + static_cast<std::ptrdiff_t>(n_victims - 1);
        std::nth_element(uses.begin(), last, uses.end(), std::greater<uint32_t>());
        bar = *last;
    }
    for (const decision & d : decisions) {
        n_agreed += d.evicted != no_item && next_use[d.evicted] >= bar ? 1 : 0;
    }
}

void victim_agreement::save(session_state & state) const {
    state.put("agreement_next_use", { next_use.begin(), next_use.end() });
}

std::string victim_agreement::load(const session_state & state) {
    std::vector<int64_t> values;
    const std::string    error = state.get("agreement_next_use", values, next_use.size(), 0, no_event);
    if (error.empty()) {
        next_use.assign(values.begin(), values.end());
    }
    return error;
}

} // namespace moecache
