// hindsight-static: the best content that never changes, known from the trace itself.
#include "core/policies/fixed-content.h"
#include "core/sim/fixed-ranking.h"

#include <numeric>

namespace moecache {

static std::vector<uint32_t> ranking_of(const policy_inputs & in) {
    std::vector<uint64_t> uses(in.geometry.n_items());
    for (uint64_t access = 0; access < in.ahead->offsets[in.ahead->n_events]; access++) {
        uses[in.ahead->items[access]]++;
    }
    std::vector<uint32_t> ranking(uses.size());
    std::iota(ranking.begin(), ranking.end(), 0);
    std::stable_sort(ranking.begin(), ranking.end(), [&](uint32_t a, uint32_t b) { return uses[a] > uses[b]; });
    return ranking;
}

policy_entry hindsight_static_entry() {
    return {
        { "hindsight-static", "the experts that the whole trace uses most, placed before the first event", {}, true },
        [](const policy_inputs & in, std::unique_ptr<policy> & out) {
            out = std::make_unique<fixed_content>(in.geometry, ranking_of(in));
            return std::string();
        },
        [](const policy_inputs & in, size_t) { return make_fixed_ranking_engine(in.geometry, ranking_of(in)); }
    };
}

} // namespace moecache
