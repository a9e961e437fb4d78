// lfu: the textbook's, for per-access replay only, where it can be compared with other simulators: counts begin at 1
// when an expert is admitted and are lost when it is evicted; every miss is admitted; of equal counts the least
// recently used goes.
#include "core/policies/rank-heap.h"
#include "core/policies/residency.h"
#include "core/policies/table.h"

namespace moecache {

namespace {

class textbook_lfu final : public policy {
public:
    explicit textbook_lfu(const cache_geometry & g) :
        geometry(g), ranks(g.n_items()), place_of_item(g.n_items(), rank_heap::absent) {
        heaps.reserve(g.n_budgets());
        for (const uint32_t n_slots : g.slots_of_budget) {
            heaps.emplace_back(n_slots, place_of_item);
        }
    }

    void on_event(const cache_event & event, std::vector<decision> & out) override {
        const uint32_t budget = geometry.budget_of_column[event.column];
        rank_heap &    heap   = heaps[budget];
        for (uint32_t i = 0; i < event.n_items && geometry.slots_of_budget[budget] > 0; i++) {
            const uint32_t item = event.items[i];
            n_uses++;
            if (place_of_item[item] != rank_heap::absent) {
                ranks[item] = { ranks[item].first + 1, n_uses };
                heap.update(item, ranks[item]);
                continue;
            }
            ranks[item] = { 1, n_uses };
            if (heap.size() < geometry.slots_of_budget[budget]) {
                heap.push({ ranks[item], item });
                out.push_back({ item, no_item });
            } else {
                out.push_back({ item, heap.worst().item });
                heap.replace_worst({ ranks[item], item });
            }
        }
    }

    void save(session_state & state) const override {
        std::vector<int64_t> content;
        std::vector<int64_t> counts;
        std::vector<int64_t> last_use;
        for (uint32_t item = 0; item < ranks.size(); item++) {
            if (place_of_item[item] != rank_heap::absent) {
                content.push_back(item);
            }
            counts.push_back(ranks[item].first);
            last_use.push_back(ranks[item].second);
        }
        save_content(state, std::move(content));
        state.put("counts", std::move(counts));
        state.put("last_use", std::move(last_use));
        state.put("n_uses", { n_uses });
    }

    std::string load(const session_state & state) override {
        std::vector<int64_t> content;
        std::vector<int64_t> counts;
        std::vector<int64_t> last_use;
        std::string          error = load_content(state, geometry, content);
        error                      = error.empty() ? state.get("counts", counts, ranks.size()) : error;
        error                      = error.empty() ? state.get("last_use", last_use, ranks.size()) : error;
        error                      = error.empty() ? state.get("n_uses", n_uses) : error;
        if (!error.empty()) {
            return error;
        }
        for (size_t item = 0; item < ranks.size(); item++) {
            ranks[item] = { counts[item], last_use[item] };
        }
        for (const int64_t item : content) {
            const auto index = static_cast<uint32_t>(item);
            heaps[geometry.budget_of_item(index)].push({ ranks[index], index });
        }
        return "";
    }

private:
    const cache_geometry & geometry;
    std::vector<rank>      ranks;         // [items] count since admission, number of the last use
    std::vector<uint32_t>  place_of_item; // [items] entry in its budget's heap
    std::vector<rank_heap> heaps;         // [budgets]
    int64_t                n_uses = 0;
};

} // namespace

policy_entry lfu_entry() {
    return { { "lfu", "the textbook's LFU, for per-access replay only: counts are lost at eviction", {}, false, true },
             [](const policy_inputs & in, std::unique_ptr<policy> & out) {
                 out = std::make_unique<textbook_lfu>(in.geometry);
                 return std::string();
             },
             nullptr };
}

} // namespace moecache
