// request-lfu: cumulative-lfu whose counts begin at 0 with each request.
#include "core/policies/count-ranker.h"
#include "core/policies/ranked.h"

namespace moecache {

namespace {

class request_ranker {
public:
    static constexpr bool never_falls = true; // within a request; a new one rebuilds

    explicit request_ranker(use_counts c) : counts(std::move(c)) {}

    // Requests of parallel sequences alternate, so only a number above all before is a new one.
    template <class Changed>
    bool begin(const cache_event & event, Changed) {
        if (event.request <= newest_request) {
            return false;
        }
        newest_request = event.request;
        counts.forget_all();
        return true;
    }
    void use(uint32_t item, const cache_event &, uint32_t) { counts.use(item); }
    rank of(uint32_t item) const { return counts.of(item); }
    bool worthwhile(uint32_t) const { return true; }

    void save(session_state & state) const {
        counts.save(state);
        state.put("newest_request", { newest_request });
    }

    std::string load(const session_state & state) {
        const std::string error = counts.load(state);
        return error.empty() ? state.get("newest_request", newest_request, -1) : error;
    }

private:
    use_counts counts;
    int64_t    newest_request = -1;
};

} // namespace

policy_entry request_lfu_entry() {
    return { { "request-lfu", "keeps the experts used most since the newest request began",
               with_admission_options({ tie_parameter() }), false, false, /* by_requests = */ true },
             [](const policy_inputs & in, std::unique_ptr<policy> & out) {
                 return make_ranked(in, request_ranker(make_use_counts(in)), out);
             },
             [](const policy_inputs & in, size_t n_capacities) {
                 return make_ranked_engine(in, n_capacities, request_ranker(make_use_counts(in)));
             } };
}

} // namespace moecache
