#include "core/sim/fixed-ranking.h"

#include "core/sim/capacity-counts.h"

#include <algorithm>

namespace moecache {

namespace {

class fixed_ranking final : public engine {
public:
    fixed_ranking(const cache_geometry & g, const std::vector<uint32_t> & ranking) :
        geometry(g), counts(g), depth(g.n_items(), UINT32_MAX) {
        for (const uint32_t item : ranking) {
            const uint32_t budget  = g.budget_of_item(item);
            const uint32_t largest = g.slots_of_budget[budget];
            if (counts.n_distinct[budget] < largest) {
                depth[item] = static_cast<uint32_t>(++counts.n_distinct[budget]);
                counts.admitted(budget, depth[item], largest + 1);
            }
        }
    }

    std::vector<sim_result> run(const event_stream &                       events,
                                const std::vector<std::vector<uint32_t>> & slots) override {
        std::vector<uint32_t> depths;
        for (size_t index = 0; index < events.n_events(); index++) {
            const cache_event event   = events.event(index);
            const uint32_t    largest = geometry.slots_of_budget[geometry.budget_of_column[event.column]];
            depths.clear();
            for (uint32_t i = 0; i < event.n_items; i++) {
                depths.push_back(std::min(depth[event.items[i]], largest + 1));
            }
            counts.hits_at(event, events.decode[index] != 0, depths);
        }
        return counts.results(events, slots);
    }

private:
    const cache_geometry & geometry;
    capacity_counts        counts;
    std::vector<uint32_t>  depth; // [items] from 1; UINT32_MAX: never placed
};

} // namespace

std::unique_ptr<engine> make_fixed_ranking_engine(const cache_geometry &        geometry,
                                                  const std::vector<uint32_t> & ranking) {
    return std::make_unique<fixed_ranking>(geometry, ranking);
}

} // namespace moecache
