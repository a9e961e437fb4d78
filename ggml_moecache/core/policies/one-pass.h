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
// Exact for: lru, cumulative-lfu, decayed-lfu, windowed-lfu, lfru, request-lfu and belady, admit-after included, ideal
// timing. Not for payback, which compares a newcomer with the victim of one capacity.
// Cost per access: the depth of the expert, at most the largest capacity.
#pragma once

#include "core/policies/admission-filter.h"
#include "core/policies/rank-heap.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace moecache {

// Counts for all capacities 0 .. largest of one budget.
struct one_pass_counts {
    std::vector<std::vector<uint64_t>> hits;        // [columns][largest + 1]; empty for columns of other budgets
    std::vector<std::vector<uint64_t>> decode_hits; // likewise
    std::vector<std::vector<uint64_t>> admissions;  // [budgets][largest + 1]
    std::vector<uint64_t>              n_distinct;  // [budgets] experts ever admitted; a cache of C holds min(C, this)
    // [budgets][n][h][largest + 1] decode events of n experts of which h hit
    std::vector<std::vector<std::vector<std::vector<uint64_t>>>> decode_events;
};

class one_pass {
public:
    virtual ~one_pass() = default;

    // REQUIRES: events of rising index.
    virtual void on_event(const cache_event & event, bool decode) = 0;

    // The counts so far. REQUIRES: called once, at the end.
    virtual one_pass_counts finish() = 0;
};

template <class Ranker>
class ranked_one_pass final : public one_pass {
public:
    // The largest capacity of each budget is what `g` gives it.
    ranked_one_pass(const cache_geometry & g, Ranker r, admission_filter f) :
        geometry(g), ranker(std::move(r)), filter(std::move(f)), depth(g.n_items(), 0), stacks(g.n_budgets()) {
        for (uint32_t budget = 0; budget < g.n_budgets(); budget++) {
            stacks[budget].reserve(g.slots_of_budget[budget]);
            counts.admissions.emplace_back(g.slots_of_budget[budget] + 2);
        }
        for (uint32_t column = 0; column < g.columns.size(); column++) {
            const size_t n = g.slots_of_budget[g.budget_of_column[column]] + 2;
            counts.hits.emplace_back(n);
            counts.decode_hits.emplace_back(n);
        }
        counts.decode_events.resize(g.n_budgets());
    }

    void on_event(const cache_event & event, bool decode) override {
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
        count_hits(event, decode, largest);
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
            if (now != 0 && now < depths[position]) {
                counts.admissions[budget][now]++;
                counts.admissions[budget][depths[position]]--;
            }
        }
    }

    one_pass_counts finish() override {
        for (auto * table : { &counts.hits, &counts.decode_hits, &counts.admissions }) {
            for (std::vector<uint64_t> & line : *table) {
                accumulate(line);
            }
        }
        for (auto & by_size : counts.decode_events) {
            for (auto & by_hits : by_size) {
                for (std::vector<uint64_t> & line : by_hits) {
                    accumulate(line);
                }
            }
        }
        for (const std::vector<uint32_t> & stack : stacks) {
            counts.n_distinct.push_back(stack.size());
        }
        return std::move(counts);
    }

private:
    // Tables hold differences between neighbouring capacities while events come in.
    static void accumulate(std::vector<uint64_t> & line) {
        line.pop_back(); // of depths beyond the largest capacity
        for (size_t capacity = 1; capacity < line.size(); capacity++) {
            line[capacity] += line[capacity - 1];
        }
    }

    void count_hits(const cache_event & event, bool decode, uint32_t largest) {
        for (const uint32_t at : depths) {
            counts.hits[event.column][at]++;
            counts.decode_hits[event.column][at] += decode ? 1 : 0;
        }
        if (!decode) {
            return;
        }
        auto & by_size = counts.decode_events[geometry.budget_of_column[event.column]];
        if (by_size.size() <= event.n_items) {
            by_size.resize(event.n_items + 1);
        }
        auto & by_hits = by_size[event.n_items];
        if (by_hits.empty()) {
            by_hits.assign(event.n_items + 1, std::vector<uint64_t>(largest + 2));
        }
        sorted = depths;
        std::sort(sorted.begin(), sorted.end());
        by_hits[0][0]++;
        for (size_t h = 0; h < sorted.size(); h++) {
            by_hits[h][sorted[h]]--;
            by_hits[h + 1][sorted[h]]++;
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
    std::vector<uint32_t>              depth;  // [items] from 1; 0: not in the list
    std::vector<std::vector<uint32_t>> stacks; // [budgets]
    one_pass_counts                    counts;
    std::vector<ranked_item>           by_rank; // of the event at hand
    std::vector<uint32_t>              depths;  // [event's items] before the event
    std::vector<uint32_t>              sorted;
};

} // namespace moecache
