// Policies that rank experts and keep the best: the rule of core/policies/README.md, once for all of them.
//
// A Ranker is what one policy adds:
//   static constexpr bool never_falls   the rank of an expert only rises while it is in the content
//   bool begin(event, changed)          the clock moves to the event; changed(item) for each item whose rank thereby
//                                       fell or rose; true: any rank may have changed
//   void use(item, event, position)     the event uses `item`, its position-th expert
//   rank of(item)                       the present rank
//   bool worthwhile(item)               a newcomer that may be admitted at all
//   void save(state), string load(state)
#pragma once

#include "core/policies/admission-filter.h"
#include "core/policies/rank-heap.h"
#include "core/policies/residency.h"
#include "core/policies/table.h"
#include "core/sim/one-pass.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace moecache {

template <class Ranker>
class ranked_policy final : public policy {
public:
    ranked_policy(const cache_geometry & g, Ranker r, admission_filter f) :
        geometry(g), ranker(std::move(r)), filter(std::move(f)), place_of_item(g.n_items(), rank_heap::absent) {
        heaps.reserve(g.n_budgets());
        for (uint32_t budget = 0; budget < g.n_budgets(); budget++) {
            heaps.emplace_back(g.slots_of_budget[budget], place_of_item);
        }
        newcomers.reserve(g.most_experts());
    }

    void on_event(const cache_event & event, std::vector<decision> & out) override {
        const bool all_moved = ranker.begin(event, [this](uint32_t item) { refresh(item); });
        if (all_moved) {
            for (rank_heap & heap : heaps) {
                heap.rebuild([this](uint32_t item) { return ranker.of(item); });
            }
        }
        filter.count(event);
        const uint32_t budget = geometry.budget_of_column[event.column];
        if (may_admit(event, heaps[budget], geometry.slots_of_budget[budget])) {
            admit(event, heaps[budget], geometry.slots_of_budget[budget], out);
        }
    }

    void save(session_state & state) const override {
        save_content(state, items_of(heaps));
        ranker.save(state);
        filter.save(state);
    }

    std::string load(const session_state & state) override {
        std::vector<int64_t> content;
        std::string          error = load_content(state, geometry, content);
        error                      = error.empty() ? ranker.load(state) : error;
        error                      = error.empty() ? filter.load(state) : error;
        if (error.empty()) {
            for (const int64_t item : content) {
                const auto index = static_cast<uint32_t>(item);
                heaps[geometry.budget_of_item(index)].push({ ranker.of(index), index });
            }
        }
        return error;
    }

private:
    // Counts the event. False if no newcomer can enter, as most events of a warm cache.
    bool may_admit(const cache_event & event, rank_heap & heap, uint32_t n_slots) {
        const auto rank_of = [this](uint32_t item) { return ranker.of(item); };
        rank       best    = { INT64_MIN, INT64_MIN };
        bool       any     = false;
        for (uint32_t position = 0; position < event.n_items; position++) {
            const uint32_t item = event.items[position];
            ranker.use(item, event, position);
            if (place_of_item[item] == rank_heap::absent) {
                const rank now = ranker.of(item);
                best           = best < now ? now : best;
                any            = true;
            } else if (!Ranker::never_falls) {
                heap.update(item, ranker.of(item));
            }
        }
        if (!any || n_slots == 0) {
            return false;
        }
        if (Ranker::never_falls) {
            heap.settle(rank_of);
        }
        return heap.size() < n_slots || heap.worst().rank < best;
    }

    void admit(const cache_event & event, rank_heap & heap, uint32_t n_slots, std::vector<decision> & out) {
        newcomers.clear();
        for (uint32_t position = 0; position < event.n_items; position++) {
            const uint32_t item = event.items[position];
            if (place_of_item[item] == rank_heap::absent && ranker.worthwhile(item)) {
                newcomers.push_back({ ranker.of(item), item });
            }
        }
        std::sort(newcomers.begin(), newcomers.end(),
                  [](const ranked_item & a, const ranked_item & b) { return b.worse_than(a); });
        for (const ranked_item & newcomer : newcomers) {
            if (heap.size() < n_slots) {
                if (filter.admits(newcomer.item, no_item)) {
                    heap.push(newcomer);
                    out.push_back({ newcomer.item, no_item });
                }
                continue;
            }
            if (Ranker::never_falls) {
                heap.settle([this](uint32_t item) { return ranker.of(item); });
            }
            const ranked_item worst = heap.worst();
            if (!(worst.rank < newcomer.rank)) {
                return;
            }
            if (filter.admits(newcomer.item, worst.item)) {
                heap.replace_worst(newcomer);
                out.push_back({ newcomer.item, worst.item });
            }
        }
    }

    void refresh(uint32_t item) {
        if (place_of_item[item] != rank_heap::absent) {
            heaps[geometry.budget_of_item(item)].update(item, ranker.of(item));
        }
    }

    const cache_geometry &   geometry;
    Ranker                   ranker;
    admission_filter         filter;
    std::vector<uint32_t>    place_of_item; // [items] entry in its budget's heap
    std::vector<rank_heap>   heaps;         // [budgets]
    std::vector<ranked_item> newcomers;     // of the event at hand
};

// What a policy's table line calls.
template <class Ranker>
std::string make_ranked(const policy_inputs & in, Ranker ranker, std::unique_ptr<policy> & out) {
    admission_filter filter(in.spec, in.geometry.n_items());
    out = std::make_unique<ranked_policy<Ranker>>(in.geometry, std::move(ranker), std::move(filter));
    return "";
}

// A pass costs up to the depth of each expert, a heap the logarithm of it: measured, see DECISIONS.md.
constexpr uint32_t most_items_in_one_pass = 1024;

template <class Ranker>
std::unique_ptr<engine> make_ranked_engine(const policy_inputs & in, size_t n_capacities, Ranker ranker) {
    const auto & items = in.geometry.items_of_budget;
    const bool small = std::all_of(items.begin(), items.end(), [](uint32_t n) { return n <= most_items_in_one_pass; });
    if (n_capacities < 2 || !small || in.spec.real("payback") > 0) {
        return nullptr;
    }
    admission_filter filter(in.spec, in.geometry.n_items());
    return std::make_unique<one_pass<Ranker>>(in.geometry, std::move(ranker), std::move(filter));
}

} // namespace moecache
