// Counts of uses with their tie rule: what cumulative-lfu, windowed-lfu and request-lfu rank by.
#pragma once

#include "core/policies/rank-heap.h"
#include "core/policies/table.h"

#include <algorithm>
#include <string>
#include <vector>

namespace moecache {

// tie=strict: ranks of equal counts are equal. tie=recency: the later use decides.
class use_counts {
public:
    use_counts(uint32_t n_items, bool by_recency) : counts(n_items, 0), last_use(by_recency ? n_items : 0, 0) {}

    void use(uint32_t item) {
        counts[item]++;
        if (!last_use.empty()) {
            last_use[item] = ++n_uses;
        }
    }
    void forget_one(uint32_t item) { counts[item]--; }
    void forget_all() { std::fill(counts.begin(), counts.end(), 0); }

    rank    of(uint32_t item) const { return { counts[item], last_use.empty() ? 0 : last_use[item] }; }
    int64_t n_items() const { return static_cast<int64_t>(counts.size()); }

    // Whether these items are the uses that are counted.
    bool are_of(const std::vector<int64_t> & items) const {
        std::vector<int64_t> counted(counts.size(), 0);
        for (const int64_t item : items) {
            counted[static_cast<size_t>(item)]++;
        }
        return counted == counts;
    }

    void save(session_state & state) const {
        state.put("counts", counts);
        if (!last_use.empty()) {
            state.put("last_use", last_use);
        }
    }

    std::string load(const session_state & state) {
        std::string error = state.get("counts", counts, counts.size());
        if (error.empty() && !last_use.empty()) {
            error  = state.get("last_use", last_use, last_use.size());
            n_uses = *std::max_element(last_use.begin(), last_use.end());
        }
        return error;
    }

private:
    std::vector<int64_t> counts;   // [items]
    std::vector<int64_t> last_use; // [items] number of the use, from 1; empty with tie=strict
    int64_t              n_uses = 0;
};

inline parameter_info tie_parameter() {
    return { "tie",
             value_kind::choice,
             "",
             "strict",
             "strict|recency",
             0,
             0,
             "strict: a newcomer replaces on a strictly higher count; recency: of equal counts the later use wins" };
}

inline use_counts make_use_counts(const policy_inputs & in) {
    return use_counts(in.geometry.n_items(), in.spec.text("tie") == "recency");
}

} // namespace moecache
