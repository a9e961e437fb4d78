// cold-static: a content that is fixed without knowing anything: the first experts that are used, or the first by
// number.
#include "core/policies/fixed-content.h"

#include <numeric>

namespace moecache {

namespace {

class first_used final : public policy {
public:
    explicit first_used(const cache_geometry & g) : geometry(g), held(g.n_items(), 0), n_held(g.n_budgets(), 0) {}

    void on_event(const cache_event & event, std::vector<decision> & out) override {
        const uint32_t budget = geometry.budget_of_column[event.column];
        for (uint32_t i = 0; i < event.n_items && n_held[budget] < geometry.slots_of_budget[budget]; i++) {
            if (!held[event.items[i]]) {
                held[event.items[i]] = 1;
                n_held[budget]++;
                out.push_back({ event.items[i], no_item });
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
    }

    std::string load(const session_state & state) override {
        std::vector<int64_t> content;
        const std::string    error = load_content(state, geometry, content);
        for (const int64_t item : content) {
            held[static_cast<size_t>(item)] = 1;
            n_held[geometry.budget_of_item(static_cast<uint32_t>(item))]++;
        }
        return error;
    }

private:
    const cache_geometry & geometry;
    std::vector<uint8_t>   held;   // [items]
    std::vector<uint32_t>  n_held; // [budgets]
};

} // namespace

policy_entry cold_static_entry() {
    return {
        { "cold-static",
          "the first experts in order, for good",
          { { "order", value_kind::choice, "", "use", "use|id", 0, 0,
              "use: the first that are used; id: the lowest (layer, family, expert), placed before the first event" } },
          false },
        [](const policy_inputs & in, std::unique_ptr<policy> & out) {
            if (in.spec.text("order") == "use") {
                out = std::make_unique<first_used>(in.geometry);
            } else {
                std::vector<uint32_t> ranking(in.geometry.n_items());
                std::iota(ranking.begin(), ranking.end(), 0);
                out = std::make_unique<fixed_content>(in.geometry, ranking);
            }
            return std::string();
        },
        nullptr
    };
}

} // namespace moecache
