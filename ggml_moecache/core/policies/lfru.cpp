// lfru: frequency plus recency. count - age / U orders experts like count * U + token of the last use, which no passing
// token changes.
#include "core/policies/ranked.h"
#include "core/policies/table.h"

namespace moecache {

namespace {

class lfru_ranker {
public:
    static constexpr bool never_falls = true;

    lfru_ranker(uint32_t n_items, int64_t tokens) :
        counts(n_items, 0), last_token(n_items, 0), last_use(n_items, 0), use_tokens(tokens) {}

    template <class Changed>
    bool begin(const cache_event &, Changed) {
        return false;
    }

    void use(uint32_t item, const cache_event & event, uint32_t) {
        counts[item]++;
        last_token[item] = event.token;
        last_use[item]   = ++n_uses;
    }

    rank of(uint32_t item) const { return { counts[item] * use_tokens + last_token[item], last_use[item] }; }
    bool worthwhile(uint32_t) const { return true; }

    void save(session_state & state) const {
        state.put("counts", counts);
        state.put("last_token", last_token);
        state.put("last_use", last_use);
    }

    std::string load(const session_state & state) {
        const size_t n     = counts.size();
        std::string  error = state.get("counts", counts, n, 0);
        error              = error.empty() ? state.get("last_token", last_token, n, 0) : error;
        error              = error.empty() ? state.get("last_use", last_use, n, 0) : error;
        if (error.empty() && n > 0) {
            n_uses = *std::max_element(last_use.begin(), last_use.end());
        }
        return error;
    }

private:
    std::vector<int64_t> counts;     // [items] uses of the session
    std::vector<int64_t> last_token; // [items] token number of the last use
    std::vector<int64_t> last_use;   // [items] number of the use, from 1; 0: never used
    int64_t              use_tokens;
    int64_t              n_uses = 0;
};

} // namespace

static lfru_ranker make_ranker(const policy_inputs & in) {
    return { in.geometry.n_items(), in.spec.whole("use") };
}

policy_entry lfru_entry() {
    return {
        { "lfru", "frequency plus recency: keeps the experts with the highest count minus age / U",
          with_admission_options({ { "use", value_kind::whole, "tokens", "64", "a whole number of tokens, 1 to 1000000",
                                     1, 1e6, "U: one use outweighs so many tokens of age" } }),
          false },
        [](const policy_inputs & in, std::unique_ptr<policy> & out) { return make_ranked(in, make_ranker(in), out); },
        [](const policy_inputs & in) { return make_ranked_one_pass(in, make_ranker(in)); }
    };
}

} // namespace moecache
