// windowed-lfu: keeps the experts used most within the last tokens. The uses of the window are kept in one queue, which
// grows until it has held the busiest window and allocates nothing after that.
#include "core/policies/count-ranker.h"
#include "core/policies/ranked.h"

namespace moecache {

namespace {

class window_ranker {
public:
    static constexpr bool never_falls = false;

    window_ranker(use_counts c, int64_t tokens) : counts(std::move(c)), window_tokens(tokens), queue(1024) {}

    template <class Changed>
    bool begin(const cache_event & event, Changed changed) {
        while (n_queued > 0 && queue[first].token <= event.token - window_tokens) {
            const uint32_t item = queue[first].item;
            first               = (first + 1) % queue.size();
            n_queued--;
            counts.forget_one(item);
            changed(item);
        }
        return false;
    }

    void use(uint32_t item, const cache_event & event, uint32_t) {
        counts.use(item);
        if (n_queued == queue.size()) {
            std::rotate(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(first), queue.end());
            first = 0;
            queue.resize(2 * queue.size());
        }
        queue[(first + n_queued) % queue.size()] = { event.token, item };
        n_queued++;
    }

    rank of(uint32_t item) const { return counts.of(item); }
    bool worthwhile(uint32_t) const { return true; }

    void save(session_state & state) const {
        counts.save(state);
        std::vector<int64_t> tokens;
        std::vector<int64_t> items;
        for (size_t i = 0; i < n_queued; i++) {
            tokens.push_back(queue[(first + i) % queue.size()].token);
            items.push_back(queue[(first + i) % queue.size()].item);
        }
        state.put("window_tokens", std::move(tokens));
        state.put("window_items", std::move(items));
    }

    std::string load(const session_state & state) {
        std::vector<int64_t> tokens;
        std::vector<int64_t> items;
        std::string          error = counts.load(state);
        error = error.empty() ? state.get("window_tokens", tokens, SIZE_MAX, 0, state.most_token()) : error;
        if (error.empty()) {
            error = state.get("window_items", items, tokens.size(), 0, counts.n_items() - 1);
        }
        if (error.empty() && !counts.are_of(items)) {
            error = "the session state's array counts must count the uses in window_items";
        }
        if (error.empty()) {
            queue.resize(std::max(queue.size(), tokens.size()));
            n_queued = tokens.size();
            for (size_t i = 0; i < n_queued; i++) {
                queue[i] = { tokens[i], static_cast<uint32_t>(items[i]) };
            }
        }
        return error;
    }

private:
    struct one_use {
        int64_t  token;
        uint32_t item;
    };

    use_counts           counts; // of the uses in the queue
    int64_t              window_tokens;
    std::vector<one_use> queue; // a ring, oldest use at `first`
    size_t               first    = 0;
    size_t               n_queued = 0;
};

} // namespace

static window_ranker make_ranker(const policy_inputs & in) {
    return { make_use_counts(in), in.spec.whole("window") };
}

policy_entry windowed_lfu_entry() {
    return { { "windowed-lfu", "keeps the experts used most within the last tokens",
               with_admission_options(
                   { { "window", value_kind::whole, "tokens", "256", "a whole number of tokens, 1 to 1000000", 1, 1e6,
                       "length of the window, the present token included" },
                     tie_parameter() }),
               false },
             [](const policy_inputs & in, std::unique_ptr<policy> & out) {
                 return make_ranked(in, make_ranker(in), out);
             },
             [](const policy_inputs & in, size_t n_capacities) {
                 return make_ranked_engine(in, n_capacities, make_ranker(in));
             } };
}

} // namespace moecache
