// A ranked policy at every capacity in one pass over the events, copies complete at the next token.
//
// The contents for C = 1, 2, 3, ... slots are nested: the C best of (content and event) for one total order are among
// the C + 1 best of a content that holds one expert more. So one list per budget says it all: the content of a cache of
// C slots is its first C entries, and the depth of an expert before an event is the smallest capacity that hits it. An
// event's experts are inserted best first, as the policy admits them. Inserting x at depth p (Mattson's priority
// stack): carry x down the entries before p; whichever ranks lower of the carried and the present one is carried on,
// and the last one carried takes entry p. A newcomer that is only equal loses, so the order among equals is the same at
// each capacity that does not hold it. The list is not sorted; ranks may change between events.
//
// Exact for: cumulative-lfu, decayed-lfu, windowed-lfu, lfru, request-lfu and belady, and for lru with admit-after. Not
// for payback, which compares a newcomer with the victim of one capacity.
// Cost per access: the depth of the expert, at most the largest capacity.
#pragma once

#include "core/policies/admission-filter.h"
#include "core/policies/rank-heap.h"
#include "core/sim/capacity-counts.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace moecache {

template <class Ranker>
class one_pass final : public engine {
public:
    // The largest capacity of each budget is what `g` gives it.
    one_pass(const cache_geometry & g, Ranker r, admission_filter f) :
        geometry(g), ranker(std::move(r)), filter(std::move(f)), counts(g), depth(g.n_items(), 0),
        stacks(g.n_budgets()) {
        for (uint32_t budget = 0; budget < g.n_budgets(); budget++) {
            stacks[budget].reserve(g.slots_of_budget[budget]);
        }
    }

    std::vector<sim_result> run(const event_stream &                       events,
                                const std::vector<std::vector<uint32_t>> & slots) override {
        for (size_t index = 0; index < events.n_events(); index++) {
            step(events.event(index), events.decode[index] != 0);
        }
        for (uint32_t budget = 0; budget < geometry.n_budgets(); budget++) {
            counts.n_distinct[budget] = stacks[budget].size();
        }
        return counts.results(events, slots);
    }

private:
    void step(const cache_event & event, bool decode) {
        const uint32_t budget  = geometry.budget_of_column[event.column];
        const uint32_t largest = geometry.slots_of_budget[budget];
        ranker.begin(event, [](uint32_t) {});
        filter.count(event);
        by_rank.clear();
        depths.clear();
        for (uint32_t position = 0; position < event.n_items; position++) {
            const uint32_t item = event.items[position];
            ranker.use(item, event, position);
            depths.push_back(depth[item] != 0 ? depth[item] : largest + 1);
            by_rank.push_back({ {}, item });
        }
        counts.hits_at(event, decode, depths);
        for (ranked_item & entry : by_rank) {
            entry.rank = ranker.of(entry.item);
        }
        std::sort(by_rank.begin(), by_rank.end(),
                  [](const ranked_item & a, const ranked_item & b) { return b.worse_than(a); });
        for (const ranked_item & entry : by_rank) {
            if (ranker.worthwhile(entry.item) && filter.admits(entry.item, no_item)) {
                insert(stacks[budget], entry, largest);
            }
        }
        for (uint32_t position = 0; position < event.n_items; position++) {
            const uint32_t now = depth[event.items[position]];
            counts.admitted(budget, now != 0 ? now : largest + 1, depths[position]);
        }
    }

    void insert(std::vector<uint32_t> & stack, const ranked_item & entry, uint32_t largest) {
        if (largest == 0) {
            return;
        }
        const uint32_t before  = depth[entry.item];
        const uint32_t end     = before != 0 ? before - 1 : static_cast<uint32_t>(stack.size());
        ranked_item    carried = entry;
        bool           own     = true; // the newcomer itself is carried: it loses against equals
        for (uint32_t i = 0; i < end; i++) {
            const ranked_item here = { ranker.of(stack[i]), stack[i] };
            if (own ? here.rank < carried.rank : here.worse_than(carried)) {
                stack[i]            = carried.item;
                depth[carried.item] = i + 1;
                carried             = here;
                own                 = false;
            }
        }
        if (end < stack.size()) {
            stack[end] = carried.item;
        } else if (stack.size() < largest) {
            stack.push_back(carried.item);
        } else {
            depth[carried.item] = 0;
            return;
        }
        depth[carried.item] = end + 1;
    }

    const cache_geometry &             geometry;
    Ranker                             ranker;
    admission_filter                   filter;
    capacity_counts                    counts;
    std::vector<uint32_t>              depth;   // [items] from 1; 0: not in the list
    std::vector<std::vector<uint32_t>> stacks;  // [budgets]
    std::vector<ranked_item>           by_rank; // of the event at hand
    std::vector<uint32_t>              depths;  // [event's items] before the event
};

} // namespace moecache
