// belady: the optimum. Keeps the experts whose next use is nearest; a newcomer may be left out (bypass).
//
// Why it is optimal under the contract: an expert admitted at one event and hit at its next use needs a slot between
// the two. Choosing as many such intervals as C slots can hold is interval scheduling, solved by keeping those that end
// first.
#include "core/policies/ranked.h"
#include "core/policies/table.h"

namespace moecache {

namespace {

class belady_ranker {
public:
    static constexpr bool never_falls = false;

    belady_ranker(uint32_t n_items, const future & f, int64_t tokens) :
        ahead(f), next(n_items, no_event), horizon_tokens(tokens) {
        if (horizon_tokens > 0) {
            is_near.assign(n_items, 0);
            last_use.assign(n_items, 0);
        }
    }

    // With a horizon: experts whose next use it has reached rise.
    template <class Changed>
    bool begin(const cache_event & event, Changed changed) {
        if (horizon_tokens == 0) {
            return false;
        }
        now = event.token;
        for (; seen < ahead.n_events && ahead.token[seen] <= now + horizon_tokens; seen++) {
            for (uint64_t access = ahead.offsets[seen]; access < ahead.offsets[seen + 1]; access++) {
                const uint32_t item = ahead.items[access];
                if (next[item] == seen) {
                    is_near[item] = 1;
                    changed(item);
                }
            }
        }
        return false;
    }

    void use(uint32_t item, const cache_event & event, uint32_t position) {
        next[item] = ahead.next_use[event.first_access + position];
        if (horizon_tokens > 0) {
            last_use[item] = ++n_uses;
            is_near[item]  = next[item] != no_event && ahead.token[next[item]] <= now + horizon_tokens;
        }
    }

    rank of(uint32_t item) const {
        if (horizon_tokens > 0 && !is_near[item]) {
            return { INT64_MIN, last_use[item] };
        }
        return { -static_cast<int64_t>(next[item]), 0 };
    }

    bool worthwhile(uint32_t item) const { return horizon_tokens > 0 || next[item] != no_event; }

    void save(session_state & state) const {
        state.put("next_use", { next.begin(), next.end() });
        if (horizon_tokens > 0) {
            state.put("last_use", last_use);
            state.put("horizon", { now, static_cast<int64_t>(seen) });
        }
    }

    std::string load(const session_state & state) {
        std::vector<int64_t> values;
        const auto           most  = static_cast<int64_t>(ahead.n_events);
        std::string          error = state.get("next_use", values, next.size(), 0, no_event);
        for (size_t item = 0; error.empty() && item < values.size(); item++) {
            if (values[item] >= most && values[item] != no_event) {
                return "the session state's array next_use must name events of this trace. Got " +
                       std::to_string(values[item]) + " instead.";
            }
            next[item] = static_cast<uint32_t>(values[item]);
        }
        if (!error.empty() || horizon_tokens == 0) {
            return error;
        }
        error = state.get("last_use", last_use, last_use.size(), 0);
        error = error.empty() ? state.get("horizon", values, 2, 0) : error;
        if (error.empty()) {
            now    = values[0];
            seen   = static_cast<uint64_t>(values[1]);
            n_uses = *std::max_element(last_use.begin(), last_use.end());
            for (size_t item = 0; item < next.size(); item++) {
                is_near[item] = next[item] != no_event && ahead.token[next[item]] <= now + horizon_tokens;
            }
        }
        return error;
    }

private:
    const future &        ahead;
    std::vector<uint32_t> next;           // [items] event of the next use, no_event: none
    int64_t               horizon_tokens; // 0: the whole trace
    std::vector<uint8_t>  is_near;        // [items] the next use is within the horizon
    std::vector<int64_t>  last_use;       // [items] number of the use, from 1
    int64_t               n_uses = 0;
    int64_t               now    = 0; // token number of the last event
    uint64_t              seen   = 0; // events that the horizon has reached
};

} // namespace

static belady_ranker make_ranker(const policy_inputs & in) {
    return { in.geometry.n_items(), *in.ahead, in.spec.whole("horizon") };
}

policy_entry belady_entry() {
    return { { "belady", "the optimum: keeps the experts whose next use is nearest, newcomers may be left out",
               with_admission_options(
                   { { "horizon", value_kind::whole, "tokens", "0", "a whole number of tokens, 0 to 1000000000", 0, 1e9,
                       "how far ahead it sees, last use decides beyond; 0: the whole trace" } }),
               true },
             [](const policy_inputs & in, std::unique_ptr<policy> & out) {
                 return make_ranked(in, make_ranker(in), out);
             },
             [](const policy_inputs & in, size_t n_capacities) {
                 return make_ranked_engine(in, n_capacities, make_ranker(in));
             } };
}

} // namespace moecache
