// belady-forced: the optimum of a cache that must hold the experts of an event after it.
//
// Admission alone cannot be what is forced: if hits of the event might leave while its misses must stay, a miss would
// be worth more than a hit wherever the slot is wanted, and the farthest next use would not be the best victim.
#include "core/policies/rank-heap.h"
#include "core/policies/residency.h"
#include "core/policies/table.h"

#include <algorithm>

namespace moecache {

namespace {

class belady_forced final : public policy {
public:
    belady_forced(const cache_geometry & g, const future & f) :
        geometry(g), ahead(f), next(g.n_items(), no_event), place_of_item(g.n_items(), rank_heap::absent) {
        heaps.reserve(g.n_budgets());
        for (const uint32_t n_slots : g.slots_of_budget) {
            heaps.emplace_back(n_slots, place_of_item);
        }
        kept.reserve(g.most_experts());
        victims.reserve(g.most_slots());
    }

    void on_event(const cache_event & event, std::vector<decision> & out) override {
        const uint32_t budget  = geometry.budget_of_column[event.column];
        const uint32_t n_slots = geometry.slots_of_budget[budget];
        rank_heap &    heap    = heaps[budget];
        kept.clear();
        for (uint32_t position = 0; position < event.n_items; position++) {
            const uint32_t item = event.items[position];
            next[item]          = ahead.next_use[event.first_access + position];
            kept.push_back(ranked(item));
            if (place_of_item[item] != rank_heap::absent) {
                heap.update(item, kept.back().rank);
            }
        }
        std::sort(kept.begin(), kept.end(),
                  [](const ranked_item & a, const ranked_item & b) { return b.worse_than(a); });
        kept.resize(std::min<size_t>(kept.size(), n_slots));
        size_t n_newcomers = 0;
        for (const ranked_item & entry : kept) {
            if (place_of_item[entry.item] == rank_heap::absent) {
                n_newcomers++;
            } else {
                heap.update(entry.item, { INT64_MAX, 0 }); // no victim
            }
        }
        victims.clear();
        while (heap.size() + n_newcomers > n_slots) {
            victims.push_back(heap.worst().item);
            heap.pop_worst();
        }
        const size_t n_empty = n_newcomers - victims.size();
        size_t       n_done  = 0;
        for (const ranked_item & entry : kept) {
            if (place_of_item[entry.item] != rank_heap::absent) {
                heap.update(entry.item, entry.rank);
                continue;
            }
            heap.push(entry);
            out.push_back({ entry.item, n_done < n_empty ? no_item : victims[n_done - n_empty] });
            n_done++;
        }
    }

    void save(session_state & state) const override {
        save_content(state, items_of(heaps));
        state.put("next_use", { next.begin(), next.end() });
    }

    std::string load(const session_state & state) override {
        std::vector<int64_t> content;
        std::vector<int64_t> values;
        std::string          error = load_content(state, geometry, content);
        error                      = error.empty() ? state.get("next_use", values, next.size(), 0, no_event) : error;
        if (error.empty()) {
            std::transform(values.begin(), values.end(), next.begin(),
                           [](int64_t value) { return static_cast<uint32_t>(value); });
            for (const int64_t item : content) {
                const auto index = static_cast<uint32_t>(item);
                heaps[geometry.budget_of_item(index)].push(ranked(index));
            }
        }
        return error;
    }

private:
    ranked_item ranked(uint32_t item) const { return { { -static_cast<int64_t>(next[item]), 0 }, item }; }

    const cache_geometry &   geometry;
    const future &           ahead;
    std::vector<uint32_t>    next;          // [items] event of the next use, no_event: none
    std::vector<uint32_t>    place_of_item; // [items] entry in its budget's heap
    std::vector<rank_heap>   heaps;         // [budgets]
    std::vector<ranked_item> kept;          // the event's experts that stay, nearest next use first
    std::vector<uint32_t>    victims;       // of the event at hand, farthest next use first
};

} // namespace

policy_entry belady_forced_entry() {
    return {
        { "belady-forced", "the optimum of a cache that must admit every miss and keep the event's experts", {}, true },
        [](const policy_inputs & in, std::unique_ptr<policy> & out) {
            out = std::make_unique<belady_forced>(in.geometry, *in.ahead);
            return std::string();
        },
        nullptr
    };
}

} // namespace moecache
