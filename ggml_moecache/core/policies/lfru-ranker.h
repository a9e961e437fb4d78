// The rank of lfru, and the floor that its heaps are ordered by; see lfru.cpp.
#pragma once

#include "core/policies/rank-heap.h"
#include "core/policy.h"

#include <algorithm>
#include <string>
#include <vector>

namespace moecache {

class lfru_ranker {
public:
    static constexpr bool never_falls = false;

    lfru_ranker(uint32_t n_items, int64_t tokens) :
        counts(n_items, 0), last_token(n_items, 0), last_use(n_items, 0), weight_tokens(tokens) {}

    // True: a new epoch has begun.
    template <class Changed>
    bool begin(const cache_event & event, Changed) {
        n_tokens = event.token + 1;
        if (n_tokens <= n_epoch) {
            return false;
        }
        n_epoch = n_tokens + n_tokens / 16 + 16;
        return true;
    }

    void use(uint32_t item, const cache_event & event, uint32_t) {
        counts[item]++;
        last_token[item] = event.token;
        last_use[item]   = ++n_uses;
    }

    // Fits 64 bits up to this number of uses of an expert, and of tokens: weight <= 10^6.
    static constexpr int64_t most_of_session = 1000000000;
    rank                     of(uint32_t item) const { return { ranks_at(item, n_tokens), last_use[item] }; }
    bool                     worthwhile(uint32_t) const { return true; }

    // The rank at the end of the epoch: rank / n there is the floor of rank / n before it.
    rank    at_epoch_end(uint32_t item) const { return { ranks_at(item, n_epoch), last_use[item] }; }
    int64_t tokens() const { return n_tokens; }
    int64_t epoch_tokens() const { return n_epoch; }

    void save(session_state & state) const {
        state.put("counts", counts);
        state.put("last_token", last_token);
        state.put("last_use", last_use);
        state.put("n_tokens", { n_tokens });
    }

    std::string load(const session_state & state) {
        const size_t n     = counts.size();
        const auto   most  = std::min(most_of_session, state.most_token());
        std::string  error = state.get("counts", counts, n, 0, most);
        error              = error.empty() ? state.get("last_token", last_token, n, 0, most) : error;
        error              = error.empty() ? state.get("last_use", last_use, n) : error;
        error              = error.empty() ? state.get("n_tokens", n_tokens, 0, most) : error;
        n_epoch            = n_tokens;
        if (error.empty() && n > 0) {
            n_uses = *std::max_element(last_use.begin(), last_use.end());
        }
        return error;
    }

private:
    int64_t ranks_at(uint32_t item, int64_t n) const { return weight_tokens * counts[item] + last_token[item] * n; }

    std::vector<int64_t> counts;     // [items] uses of the session
    std::vector<int64_t> last_token; // [items] token number of the last use
    std::vector<int64_t> last_use;   // [items] number of the use, from 1; 0: never used
    int64_t              weight_tokens;
    int64_t              n_uses   = 0;
    int64_t              n_tokens = 0; // of the session so far
    int64_t              n_epoch  = 0; // n_tokens at the end of the epoch
};

} // namespace moecache
