// lru: keeps the experts used last.
#include "core/policies/ranked.h"
#include "core/policies/table.h"
#include "core/sim/lru-engines.h"

namespace moecache {

namespace {

class lru_ranker {
public:
    static constexpr bool never_falls = true;

    explicit lru_ranker(uint32_t n_items) : last_use(n_items, 0) {}

    template <class Changed>
    bool begin(const cache_event &, Changed) {
        return false;
    }
    void use(uint32_t item, const cache_event &, uint32_t) { last_use[item] = ++n_uses; }
    rank of(uint32_t item) const { return { last_use[item], 0 }; }
    bool worthwhile(uint32_t) const { return true; }

    void save(session_state & state) const { state.put("last_use", last_use); }

    std::string load(const session_state & state) {
        const std::string error = state.get("last_use", last_use, last_use.size());
        if (error.empty() && !last_use.empty()) {
            n_uses = *std::max_element(last_use.begin(), last_use.end());
        }
        return error;
    }

private:
    std::vector<int64_t> last_use; // [items] number of the use, from 1; 0: never used
    int64_t              n_uses = 0;
};

} // namespace

policy_entry lru_entry() {
    return { { "lru", "keeps the experts used last", with_admission_options({}), false },
             [](const policy_inputs & in, std::unique_ptr<policy> & out) {
                 return make_ranked(in, lru_ranker(in.geometry.n_items()), out);
             },
             [](const policy_inputs & in, size_t n_capacities) {
                 const bool plain = in.spec.whole("admit-after") == 1 && in.spec.real("payback") == 0;
                 return plain ? make_lru_engine(in.geometry, n_capacities) :
                                make_ranked_engine(in, n_capacities, lru_ranker(in.geometry.n_items()));
             } };
}

} // namespace moecache
