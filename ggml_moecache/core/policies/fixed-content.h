// A content that is placed before the first event and never changes: the static policies.
#pragma once

#include "core/policies/residency.h"
#include "core/policies/table.h"

#include <utility>
#include <vector>

namespace moecache {

class fixed_content final : public policy {
public:
    // `ranking`: items, best first, each at most once; every budget takes the first that fit.
    fixed_content(const cache_geometry & g, const std::vector<uint32_t> & ranking) : geometry(g) {
        std::vector<uint32_t> n_placed(g.n_budgets());
        for (const uint32_t item : ranking) {
            const uint32_t budget = g.budget_of_item(item);
            if (n_placed[budget] < g.slots_of_budget[budget]) {
                n_placed[budget]++;
                content.push_back(item);
            }
        }
    }

    void place(std::vector<decision> & out) override {
        for (const uint32_t item : content) {
            out.push_back({ item, no_item });
        }
    }

    void on_event(const cache_event &, std::vector<decision> &) override {}

    void save(session_state & state) const override { save_content(state, { content.begin(), content.end() }); }

    std::string load(const session_state & state) override {
        std::vector<int64_t> items;
        const std::string    error = load_content(state, geometry, items);
        content.assign(items.begin(), items.end());
        return error;
    }

private:
    const cache_geometry & geometry;
    std::vector<uint32_t>  content;
};

} // namespace moecache
