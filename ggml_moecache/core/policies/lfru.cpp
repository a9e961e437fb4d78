// lfru: frequency plus recency, W * (uses per token of the session) - age in tokens.
//
// Decisions compare experts at one moment, so W * count / n - (now - last) orders them like W * count + last * n, n the
// tokens so far: whole numbers. The order of two experts that are not used may turn as n grows, so content is ranked
// anew at each decision.
#include "core/policies/ranked.h"
#include "core/policies/table.h"

namespace moecache {

namespace {

class lfru_ranker {
public:
    static constexpr bool never_falls = false;
    static constexpr bool drifts      = true;

    lfru_ranker(uint32_t n_items, int64_t tokens) :
        counts(n_items, 0), last_token(n_items, 0), last_use(n_items, 0), weight_tokens(tokens) {}

    template <class Changed>
    bool begin(const cache_event & event, Changed) {
        n_tokens = event.token + 1;
        return false;
    }

    void use(uint32_t item, const cache_event & event, uint32_t) {
        counts[item]++;
        last_token[item] = event.token;
        last_use[item]   = ++n_uses;
    }

    // Fits 64 bits up to 10^9 uses and tokens: weight <= 10^6.
    rank of(uint32_t item) const {
        return { weight_tokens * counts[item] + last_token[item] * n_tokens, last_use[item] };
    }
    bool worthwhile(uint32_t) const { return true; }

    void save(session_state & state) const {
        state.put("counts", counts);
        state.put("last_token", last_token);
        state.put("last_use", last_use);
        state.put("n_tokens", { n_tokens });
    }

    std::string load(const session_state & state) {
        const size_t n     = counts.size();
        std::string  error = state.get("counts", counts, n, 0);
        error              = error.empty() ? state.get("last_token", last_token, n, 0) : error;
        error              = error.empty() ? state.get("last_use", last_use, n, 0) : error;
        error              = error.empty() ? state.get("n_tokens", n_tokens, 0) : error;
        if (error.empty() && n > 0) {
            n_uses = *std::max_element(last_use.begin(), last_use.end());
        }
        return error;
    }

private:
    std::vector<int64_t> counts;     // [items] uses of the session
    std::vector<int64_t> last_token; // [items] token number of the last use
    std::vector<int64_t> last_use;   // [items] number of the use, from 1; 0: never used
    int64_t              weight_tokens;
    int64_t              n_uses   = 0;
    int64_t              n_tokens = 0; // of the session so far
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
                 return make_ranked(in, make_ranker(in), out);
             },
             [](const policy_inputs & in, size_t n_capacities) {
                 return make_ranked_engine(in, n_capacities, make_ranker(in));
             } };
}

} // namespace moecache
