// cumulative-lfu: keeps the experts used most since the session began.
#include "core/policies/count-ranker.h"
#include "core/policies/ranked.h"

namespace moecache {

namespace {

class cumulative_ranker {
public:
    static constexpr bool never_falls = true;

    explicit cumulative_ranker(use_counts c) : counts(std::move(c)) {}

    template <class Changed>
    bool begin(const cache_event &, Changed) {
        return false;
    }
    void        use(uint32_t item, const cache_event &, uint32_t) { counts.use(item); }
    rank        of(uint32_t item) const { return counts.of(item); }
    bool        worthwhile(uint32_t) const { return true; }
    void        save(session_state & state) const { counts.save(state); }
    std::string load(const session_state & state) { return counts.load(state); }

private:
    use_counts counts;
};

} // namespace

policy_entry cumulative_lfu_entry() {
    return { { "cumulative-lfu", "keeps the experts used most since the session began",
               with_admission_options({ tie_parameter() }), false },
             [](const policy_inputs & in, std::unique_ptr<policy> & out) {
                 return make_ranked(in, cumulative_ranker(make_use_counts(in)), out);
             },
             [](const policy_inputs & in, size_t n_capacities) {
                 return make_ranked_engine(in, n_capacities, cumulative_ranker(make_use_counts(in)));
             } };
}

} // namespace moecache
