// decayed-lfu: counts that halve every H tokens.
//
// Instead of decaying every count at every token, a use at token t adds 2^(t / H): all counts then share the factor
// 2^(now / H), which does not change their order. Scores are kept relative to an epoch so that they stay finite.
#include "core/policies/ranked.h"
#include "core/policies/table.h"

#include <cmath>
#include <cstring>

namespace moecache {

namespace {

class decayed_ranker {
public:
    static constexpr bool never_falls = true; // relative to the others; a new epoch rebuilds

    decayed_ranker(uint32_t n_items, int64_t tokens) : scores(n_items, 0.0), half_life_tokens(tokens) {}

    template <class Changed>
    bool begin(const cache_event & event, Changed) {
        bool          new_epoch    = false;
        const int64_t epoch_tokens = epoch_half_lives * half_life_tokens;
        if (event.token - epoch_token >= 6 * epoch_tokens) { // every score falls to 0 below, whatever the number
            epoch_token += ((event.token - epoch_token) / epoch_tokens - 6) * epoch_tokens;
        }
        while (event.token - epoch_token >= epoch_tokens) {
            // A power of two: exact, unless the score falls below the smallest double (uses more than 1,000 half-lives
            // ago), where it becomes 0 and equals never used.
            for (double & score : scores) {
                score = std::ldexp(score, -epoch_half_lives);
            }
            epoch_token += epoch_tokens;
            new_epoch = true;
        }
        if (event.token != increment_token) {
            const int64_t age = event.token - epoch_token;
            increment         = std::ldexp(
                std::exp2(static_cast<double>(age % half_life_tokens) / static_cast<double>(half_life_tokens)),
                static_cast<int>(age / half_life_tokens));
            increment_token = event.token;
        }
        return new_epoch;
    }

    void use(uint32_t item, const cache_event &, uint32_t) { scores[item] += increment; }

    // Doubles that are not negative are ordered like their bits.
    rank of(uint32_t item) const { return { bits(scores[item]), 0 }; }
    bool worthwhile(uint32_t) const { return true; }

    void save(session_state & state) const {
        std::vector<int64_t> as_bits;
        for (const double score : scores) {
            as_bits.push_back(bits(score));
        }
        state.put("score_bits", std::move(as_bits));
        state.put("epoch_token", { epoch_token });
    }

    std::string load(const session_state & state) {
        std::vector<int64_t> as_bits;
        std::string          error = state.get("score_bits", as_bits, scores.size(), 0, bits(std::ldexp(1.0, 1000)));
        error = error.empty() ? state.get("epoch_token", epoch_token, 0, state.most_token()) : error;
        for (size_t item = 0; item < as_bits.size(); item++) {
            std::memcpy(&scores[item], &as_bits[item], sizeof(double));
        }
        return error;
    }

private:
    static constexpr int epoch_half_lives = 512; // half of a double's largest exponent: sums stay far from it

    static int64_t bits(double score) {
        int64_t result;
        std::memcpy(&result, &score, sizeof(result));
        return result;
    }

    std::vector<double> scores; // [items] sum over uses of 2^((token - epoch_token) / half-life)
    int64_t             half_life_tokens;
    int64_t             epoch_token     = 0;
    int64_t             increment_token = -1; // token that `increment` is for
    double              increment       = 0;
};

} // namespace

static decayed_ranker make_ranker(const policy_inputs & in) {
    return { in.geometry.n_items(), in.spec.whole("half-life") };
}

policy_entry decayed_lfu_entry() {
    return { { "decayed-lfu", "keeps the experts with the highest count, all counts halving every so many tokens",
               with_admission_options(
                   { { "half-life", value_kind::whole, "tokens", "256", "a whole number of tokens, 1 to 1000000000", 1,
                       1e9, "tokens after which a use counts half" } }),
               false },
             [](const policy_inputs & in, std::unique_ptr<policy> & out) {
                 return make_ranked(in, make_ranker(in), out);
             },
             [](const policy_inputs & in, size_t n_capacities) {
                 return make_ranked_engine(in, n_capacities, make_ranker(in));
             } };
}

} // namespace moecache
