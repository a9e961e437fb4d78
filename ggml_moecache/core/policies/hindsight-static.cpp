// hindsight-static: the best content that never changes, known from the trace itself.
#include "core/policies/fixed-content.h"

#include <numeric>

namespace moecache {

policy_entry hindsight_static_entry() {
    return {
        { "hindsight-static", "the experts that the whole trace uses most, placed before the first event", {}, true },
        [](const policy_inputs & in, std::unique_ptr<policy> & out) {
            std::vector<uint64_t> uses(in.geometry.n_items());
            for (uint64_t access = 0; access < in.ahead->offsets[in.ahead->n_events]; access++) {
                uses[in.ahead->items[access]]++;
            }
            std::vector<uint32_t> ranking(uses.size());
            std::iota(ranking.begin(), ranking.end(), 0);
            std::stable_sort(ranking.begin(), ranking.end(), [&](uint32_t a, uint32_t b) { return uses[a] > uses[b]; });
            out = std::make_unique<fixed_content>(in.geometry, ranking);
            return std::string();
        },
        nullptr
    };
}

} // namespace moecache
