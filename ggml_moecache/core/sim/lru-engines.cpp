#include "core/sim/lru-engines.h"

#include "core/sim/capacity-counts.h"

#include <algorithm>
#include <vector>

namespace moecache {

namespace {

// The uses of one budget in order. Use numbers begin at 1; `last_use[item]` says whether a use is its item's last.
//
// One capacity: an expert is in the content exactly if its last use is at or after `oldest`, the least last use of the
// content. Hits need one comparison; experts leave by moving `oldest` over uses that are no longer anyone's last.
// Exact for the contract of lru: the content after an event is the C experts used last, which does not depend on the
// content before it.
class lru_threshold final : public engine {
public:
    explicit lru_threshold(const cache_geometry & g) : geometry(g) {}

    std::vector<sim_result> run(const event_stream &                       events,
                                const std::vector<std::vector<uint32_t>> & slots) override {
        result = common_result(events, geometry);
        last_use.assign(geometry.n_items(), 0);
        budgets.assign(geometry.n_budgets(), {});
        for (uint32_t b = 0; b < budgets.size(); b++) {
            budgets[b].n_slots = slots[0][b];
            budgets[b].item_of_use.resize(1024);
        }
        for (size_t index = 0; index < events.n_events(); index++) {
            step(events, index);
        }
        for (uint32_t b = 0; b < budgets.size(); b++) {
            add_admissions(result, geometry, b, budgets[b].admissions, budgets[b].n_held);
        }
        return { std::move(result) };
    }

private:
    struct budget_state {
        uint64_t              n_slots    = 0;
        uint64_t              n_held     = 0;
        uint64_t              oldest     = 1; // least last use of the content
        uint64_t              n_uses     = 0;
        uint64_t              admissions = 0;
        std::vector<uint32_t> item_of_use; // ring of the uses oldest .. n_uses; its length is a power of two
    };

    void step(const event_stream & events, size_t index) {
        const uint32_t   column = events.column[index];
        budget_state &   b      = budgets[geometry.budget_of_column[column]];
        const uint64_t   begin  = events.offsets[index];
        const auto       n      = static_cast<uint32_t>(events.offsets[index + 1] - begin);
        const uint32_t * items  = events.items.data() + begin;
        if (b.n_uses + n - b.oldest >= b.item_of_use.size()) {
            compact(b, items, n);
        }
        const uint64_t mask       = b.item_of_use.size() - 1;
        uint32_t       n_hits     = 0;
        uint64_t       n_admitted = 0;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t hit = last_use[items[i]] >= b.oldest ? 1 : 0;
            n_hits += hit;
            n_admitted += n - i <= b.n_slots ? 1 - hit : 0; // an event keeps its last n_slots experts
            b.n_uses++;
            last_use[items[i]]             = b.n_uses;
            b.item_of_use[b.n_uses & mask] = items[i];
        }
        b.n_held += n - n_hits;
        b.admissions += n_admitted;
        while (b.n_held > b.n_slots) {
            b.n_held -= last_use[b.item_of_use[b.oldest & mask]] == b.oldest ? 1 : 0;
            b.oldest++;
        }
        count_hits(result, column, n, n_hits, events.decode[index] != 0);
    }

    // Make room for n more uses: renumber the uses that are still someone's last. An expert of this event that is not
    // in the content must not look as if it were.
    void compact(budget_state & b, const uint32_t * items, uint32_t n) {
        const uint64_t        mask = b.item_of_use.size() - 1;
        std::vector<uint32_t> kept;
        for (uint64_t use = b.oldest; use <= b.n_uses; use++) {
            const uint32_t item = b.item_of_use[use & mask];
            if (last_use[item] == use) {
                kept.push_back(item);
            }
        }
        for (uint32_t i = 0; i < n; i++) {
            last_use[items[i]] = last_use[items[i]] >= b.oldest ? last_use[items[i]] : 0;
        }
        size_t length = b.item_of_use.size();
        while (length < 4 * (kept.size() + n)) {
            length *= 2;
        }
        b.item_of_use.resize(length);
        const uint64_t first = b.n_uses + 1; // numbers only rise, so that last uses of others stay below `oldest`
        for (size_t i = 0; i < kept.size(); i++) {
            last_use[kept[i]]                         = first + i;
            b.item_of_use[(first + i) & (length - 1)] = kept[i];
        }
        b.oldest = first;
        b.n_uses = first + kept.size() - 1;
    }

    const cache_geometry &    geometry;
    sim_result                result;
    std::vector<uint64_t>     last_use; // [items] number of the last use in its budget, 0: none
    std::vector<budget_state> budgets;
};

// All capacities: the smallest one that hits an expert is the number of experts whose last use is at or after its own,
// counted in a Fenwick tree over the budget's uses, before the event. Uses are renumbered when the tree is full.
class lru_stack_distances final : public engine {
public:
    explicit lru_stack_distances(const cache_geometry & g) : geometry(g), counts(g), last_use(g.n_items(), 0) {
        for (uint32_t b = 0; b < g.n_budgets(); b++) {
            budgets.push_back({ 0, 0, {}, {} });
            resize(budgets.back(), 4 * (g.items_of_budget[b] + 1));
        }
    }

    std::vector<sim_result> run(const event_stream &                       events,
                                const std::vector<std::vector<uint32_t>> & slots) override {
        for (size_t index = 0; index < events.n_events(); index++) {
            step(events.event(index), events.decode[index] != 0);
        }
        for (uint32_t b = 0; b < budgets.size(); b++) {
            counts.n_distinct[b] = std::min<uint64_t>(budgets[b].n_distinct, geometry.slots_of_budget[b]);
        }
        return counts.results(events, slots);
    }

private:
    struct budget_state {
        uint32_t              n_uses;     // since the last renumbering; uses count from 1
        uint32_t              n_distinct; // experts ever used
        std::vector<uint32_t> tree;       // Fenwick: how many uses are someone's last
        std::vector<uint32_t> item_of_use;
    };

    static void resize(budget_state & b, size_t n_uses) {
        b.tree.assign(n_uses + 1, 0);
        b.item_of_use.assign(n_uses + 1, no_item);
    }

    static void add(std::vector<uint32_t> & tree, uint32_t use, uint32_t what) {
        for (; use < tree.size(); use += use & (~use + 1)) {
            tree[use] += what;
        }
    }

    static uint32_t sum(const std::vector<uint32_t> & tree, uint32_t use) {
        uint32_t result = 0;
        for (; use > 0; use -= use & (~use + 1)) {
            result += tree[use];
        }
        return result;
    }

    void step(const cache_event & event, bool decode) {
        const uint32_t budget  = geometry.budget_of_column[event.column];
        const uint32_t largest = geometry.slots_of_budget[budget];
        budget_state & b       = budgets[budget];
        depths.clear();
        for (uint32_t i = 0; i < event.n_items; i++) {
            const uint32_t use = last_use[event.items[i]];
            const uint32_t at  = use == 0 ? largest + 1 : b.n_distinct - sum(b.tree, use - 1);
            depths.push_back(std::min(at, largest + 1));
        }
        counts.hits_at(event, decode, depths);
        if (b.n_uses + event.n_items >= b.tree.size()) {
            renumber(b);
        }
        for (uint32_t i = 0; i < event.n_items; i++) {
            const uint32_t item = event.items[i];
            if (last_use[item] != 0) {
                add(b.tree, last_use[item], UINT32_MAX); // minus 1
            } else {
                b.n_distinct++;
            }
            last_use[item]          = ++b.n_uses;
            b.item_of_use[b.n_uses] = item;
            add(b.tree, b.n_uses, 1);
            counts.admitted(budget, std::min(event.n_items - i, largest + 1), depths[i]);
        }
    }

    // Keeps the order of last uses. There are at most as many as experts, a quarter of the tree.
    void renumber(budget_state & b) {
        std::vector<uint32_t> kept;
        for (uint32_t use = 1; use <= b.n_uses; use++) {
            if (last_use[b.item_of_use[use]] == use) {
                kept.push_back(b.item_of_use[use]);
            }
        }
        resize(b, b.tree.size() - 1);
        b.n_uses = 0;
        for (const uint32_t item : kept) {
            last_use[item]          = ++b.n_uses;
            b.item_of_use[b.n_uses] = item;
            add(b.tree, b.n_uses, 1);
        }
    }

    const cache_geometry &    geometry;
    capacity_counts           counts;
    std::vector<uint32_t>     last_use; // [items] number of the last use in its budget, 0: none
    std::vector<budget_state> budgets;
    std::vector<uint32_t>     depths; // of the event at hand
};

} // namespace

std::unique_ptr<engine> make_lru_engine(const cache_geometry & geometry, size_t n_capacities) {
    if (n_capacities == 1) {
        return std::make_unique<lru_threshold>(geometry);
    }
    return std::make_unique<lru_stack_distances>(geometry);
}

} // namespace moecache
