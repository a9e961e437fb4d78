// lfru: frequency plus recency, W * (uses per token of the session) - age in tokens.
//
// Decisions compare experts at one moment, so W * count / n - (now - last) orders them like W * count + last * n, n the
// tokens so far: whole numbers. The order of two experts that are not used may turn as n grows, so a heap by rank does
// not stay one. But last + W * count / n only falls between uses, so its value for a later n, the end of an epoch, is a
// floor that stays: heaps are ordered by floors, and the worst of the content is searched among the few whose floor is
// not above the worst rank found. An epoch ends when the tokens have grown by a sixteenth; then the heaps are rebuilt.
#include "core/policies/lfru-ranker.h"
#include "core/policies/ranked.h"

namespace moecache {

namespace {

class lfru final : public policy {
public:
    lfru(const cache_geometry & g, lfru_ranker r, admission_filter f) :
        geometry(g), ranker(std::move(r)), filter(std::move(f)), place_of_item(g.n_items(), rank_heap::absent) {
        heaps.reserve(g.n_budgets());
        for (const uint32_t n_slots : g.slots_of_budget) {
            heaps.emplace_back(n_slots, place_of_item);
        }
        newcomers.reserve(g.most_experts());
    }

    void on_event(const cache_event & event, std::vector<decision> & out) override {
        const uint32_t budget  = geometry.budget_of_column[event.column];
        const uint32_t n_slots = geometry.slots_of_budget[budget];
        rank_heap &    heap    = heaps[budget];
        if (ranker.begin(event, [](uint32_t) {})) {
            for (rank_heap & one : heaps) {
                one.rebuild([this](uint32_t item) { return ranker.at_epoch_end(item); });
            }
        }
        filter.count(event);
        newcomers.clear();
        for (uint32_t position = 0; position < event.n_items; position++) {
            const uint32_t item = event.items[position];
            ranker.use(item, event, position);
            if (place_of_item[item] == rank_heap::absent) {
                newcomers.push_back({ ranker.of(item), item });
            } else {
                heap.update(item, ranker.at_epoch_end(item));
            }
        }
        std::sort(newcomers.begin(), newcomers.end(),
                  [](const ranked_item & a, const ranked_item & b) { return b.worse_than(a); });
        for (size_t i = 0; i < newcomers.size() && n_slots > 0; i++) {
            const uint32_t    item  = newcomers[i].item;
            const bool        full  = heap.size() == n_slots;
            const ranked_item worst = full ? worst_of(heap) : ranked_item();
            if (full && !(worst.rank < newcomers[i].rank)) {
                return;
            }
            if (!filter.admits(item, worst.item)) {
                continue;
            }
            const ranked_item entry = { ranker.at_epoch_end(item), item };
            full ? heap.replace(worst.item, entry) : heap.push(entry);
            out.push_back({ item, worst.item });
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
                heaps[geometry.budget_of_item(index)].push({ ranker.at_epoch_end(index), index });
            }
        }
        return error;
    }

private:
    ranked_item worst_of(const rank_heap & heap) const {
        const uint32_t top   = heap.worst().item;
        ranked_item    worst = { ranker.of(top), top };
        search(heap, 1, worst);
        search(heap, 2, worst);
        return worst;
    }

    // Below an entry whose floor is above the worst rank all floors are. In double: a rounding error costs a look more.
    void search(const rank_heap & heap, size_t index, ranked_item & worst) const {
        if (index >= heap.size()) {
            return;
        }
        const ranked_item & entry = heap.all()[index];
        const double        floor = static_cast<double>(entry.rank.first) * static_cast<double>(ranker.tokens());
        const double        bar   = static_cast<double>(worst.rank.first) * static_cast<double>(ranker.epoch_tokens());
        if (floor > bar * (1 + 1e-12)) {
            return;
        }
        const ranked_item here = { ranker.of(entry.item), entry.item };
        worst                  = here.worse_than(worst) ? here : worst;
        search(heap, 2 * index + 1, worst);
        search(heap, 2 * index + 2, worst);
    }

    const cache_geometry &   geometry;
    lfru_ranker              ranker;
    admission_filter         filter;
    std::vector<uint32_t>    place_of_item; // [items] entry in its budget's heap
    std::vector<rank_heap>   heaps;         // [budgets] by rank at the end of the epoch
    std::vector<ranked_item> newcomers;     // of the event at hand
};

} // namespace

static lfru_ranker make_ranker(const policy_inputs & in) {
    return { in.geometry.n_items(), in.spec.whole("weight") };
}

policy_entry lfru_entry() {
    return { { "lfru", "frequency plus recency: W times the uses per token, minus the age in tokens",
               with_admission_options(
                   { { "weight", value_kind::whole, "tokens", "64", "a whole number of tokens, 1 to 1000000", 1, 1e6,
                       "W: an expert that every token uses outweighs so many tokens of age" } }),
               false },
             [](const policy_inputs & in, std::unique_ptr<policy> & out) {
                 admission_filter filter(in.spec, in.geometry.n_items());
                 out = std::make_unique<lfru>(in.geometry, make_ranker(in), std::move(filter));
                 return std::string();
             },
             [](const policy_inputs & in, size_t n_capacities) {
                 return make_ranked_engine(in, n_capacities, make_ranker(in));
             } };
}

} // namespace moecache
