// interval-refresh: elects the content anew every N tokens, by the counts since the last election.
#include "core/policies/admission-filter.h"
#include "core/policies/residency.h"
#include "core/policies/table.h"

namespace moecache {

namespace {

class interval_refresh final : public policy {
public:
    interval_refresh(const cache_geometry & g, admission_filter f, int64_t tokens) :
        geometry(g), filter(std::move(f)), every_tokens(tokens), held(g.n_items(), 0), counts(g.n_items(), 0),
        n_held(g.n_budgets(), 0), next_election(g.n_budgets(), tokens), items_of(g.n_budgets()) {
        for (uint32_t item = 0; item < g.n_items(); item++) {
            items_of[g.budget_of_item(item)].push_back(item);
        }
        newcomers.reserve(g.n_items());
        residents.reserve(g.most_slots());
    }

    void on_event(const cache_event & event, std::vector<decision> & out) override {
        const uint32_t budget  = geometry.budget_of_column[event.column];
        const uint32_t n_slots = geometry.slots_of_budget[budget];
        filter.count(event);
        for (uint32_t i = 0; i < event.n_items; i++) {
            counts[event.items[i]]++;
        }
        if (event.token >= next_election[budget]) {
            next_election[budget] = (event.token / every_tokens + 1) * every_tokens;
            elect(budget, out);
            return;
        }
        for (uint32_t i = 0; i < event.n_items && n_held[budget] < n_slots; i++) {
            const uint32_t item = event.items[i];
            if (!held[item] && filter.admits(item, no_item)) {
                held[item] = 1;
                n_held[budget]++;
                out.push_back({ item, no_item });
            }
        }
    }

    void save(session_state & state) const override {
        std::vector<int64_t> content;
        for (uint32_t item = 0; item < held.size(); item++) {
            if (held[item]) {
                content.push_back(item);
            }
        }
        save_content(state, std::move(content));
        state.put("counts", counts);
        state.put("next_election", next_election);
        filter.save(state);
    }

    std::string load(const session_state & state) override {
        std::vector<int64_t> content;
        std::string          error = load_content(state, geometry, content);
        error                      = error.empty() ? state.get("counts", counts, counts.size()) : error;
        error                      = error.empty() ? state.get("next_election", next_election, next_election.size(), 0,
                                                               state.most_token() + every_tokens) :
                                                     error;
        error                      = error.empty() ? filter.load(state) : error;
        for (const int64_t item : content) {
            held[static_cast<size_t>(item)] = 1;
            n_held[geometry.budget_of_item(static_cast<uint32_t>(item))]++;
        }
        return error;
    }

private:
    // Higher counts first; an equal count keeps its slot, then the lower item.
    bool better(uint32_t a, uint32_t b) const {
        if (counts[a] != counts[b]) {
            return counts[a] > counts[b];
        }
        return held[a] != held[b] ? held[a] > held[b] : a < b;
    }

    // The rule of ranked policies over all experts that were used: newcomers best first against the worst resident.
    void elect(uint32_t budget, std::vector<decision> & out) {
        const size_t n_slots = geometry.slots_of_budget[budget];
        newcomers.clear();
        residents.clear();
        for (const uint32_t item : items_of[budget]) {
            if (held[item]) {
                residents.push_back(item);
            } else if (counts[item] > 0) {
                newcomers.push_back(item);
            }
        }
        std::sort(newcomers.begin(), newcomers.end(), [this](uint32_t a, uint32_t b) { return better(a, b); });
        std::sort(residents.begin(), residents.end(), [this](uint32_t a, uint32_t b) { return better(b, a); });
        size_t worst = 0;
        for (const uint32_t item : newcomers) {
            if (n_held[budget] < n_slots) {
                if (filter.admits(item, no_item)) {
                    n_held[budget]++;
                    held[item] = 1;
                    out.push_back({ item, no_item });
                }
                continue;
            }
            // Newcomers that were elected are no worse than those that follow.
            if (worst == residents.size() || !better(item, residents[worst])) {
                break;
            }
            if (filter.admits(item, residents[worst])) {
                held[residents[worst]] = 0;
                held[item]             = 1;
                out.push_back({ item, residents[worst] });
                worst++;
            }
        }
        for (const uint32_t item : items_of[budget]) {
            counts[item] = 0;
        }
    }

    const cache_geometry &             geometry;
    admission_filter                   filter;
    int64_t                            every_tokens;
    std::vector<uint8_t>               held;          // [items]
    std::vector<int64_t>               counts;        // [items] uses since the budget's last election
    std::vector<uint32_t>              n_held;        // [budgets]
    std::vector<int64_t>               next_election; // [budgets] token number
    std::vector<std::vector<uint32_t>> items_of;      // [budgets] in rising order
    std::vector<uint32_t>              newcomers;     // of the election at hand
    std::vector<uint32_t>              residents;     // likewise, worst first
};

} // namespace

policy_entry interval_refresh_entry() {
    return { { "interval-refresh", "elects the most used experts anew every so many tokens",
               with_admission_options(
                   { { "every", value_kind::whole, "tokens", "256", "a whole number of tokens, 1 to 1000000000", 1, 1e9,
                       "tokens between two elections" } }),
               false },
             [](const policy_inputs & in, std::unique_ptr<policy> & out) {
                 admission_filter filter(in.spec, in.geometry.n_items());
                 out = std::make_unique<interval_refresh>(in.geometry, std::move(filter), in.spec.whole("every"));
                 return std::string();
             },
             nullptr };
}

} // namespace moecache
