// The part of a session's state that every policy has: the content, as the array "content".
#pragma once

#include "core/cache-geometry.h"
#include "core/session-state.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace moecache {

inline void save_content(session_state & state, std::vector<int64_t> items) {
    std::sort(items.begin(), items.end());
    state.put("content", std::move(items));
}

// `items` in rising order. Returns "" or why the array is no content of this geometry.
inline std::string load_content(const session_state & state, const cache_geometry & geometry,
                                std::vector<int64_t> & items) {
    const std::string error = state.get("content", items, SIZE_MAX, 0, static_cast<int64_t>(geometry.n_items()) - 1);
    if (!error.empty()) {
        return error;
    }
    std::vector<uint32_t> used(geometry.n_budgets());
    for (size_t i = 0; i < items.size(); i++) {
        if (i > 0 && items[i - 1] >= items[i]) {
            return "the session state's array content must rise, each expert once";
        }
        const uint32_t budget = geometry.budget_of_item(static_cast<uint32_t>(items[i]));
        if (++used[budget] > geometry.slots_of_budget[budget]) {
            return "the session state's array content has more experts than budget " + std::to_string(budget) +
                   " has slots (" + std::to_string(geometry.slots_of_budget[budget]) + ")";
        }
    }
    return "";
}

} // namespace moecache
