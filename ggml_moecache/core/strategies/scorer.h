// What a strategy keeps: a score for every expert; the lowest leaves. Higher is better by `first`, then by `second`; of
// equal scores the lower (layer, family, expert) is better, as in core/policies/README.md.
#pragma once

#include "core/policy.h"
#include "core/strategies/forecast.h"

#include <memory>
#include <string>
#include <vector>

namespace moecache {

struct score {
    double first  = 0;
    double second = 0;

    bool operator<(const score & other) const {
        return first != other.first ? first < other.first : second < other.second;
    }
    bool operator==(const score & other) const { return first == other.first && second == other.second; }
};

class scorer {
public:
    virtual ~scorer() = default;

    virtual void see(const cache_event & event) = 0; // before the decisions of the event

    score of(uint32_t item) const { return scores[item]; }

protected:
    explicit scorer(uint32_t n_items) : scores(n_items) {}

    std::vector<score> scores; // [items] the present ones: victims are found by looking at many of them
};

// lru             the last use
// cumulative-lfu  uses since the session began
// decayed-lfu     uses that halve every `half_life` tokens
// scores          the table's, then the last use
// These are the rankings of the policies of the same names. Returns "" or what is wrong with the name or parameters.
std::string make_scorer(const std::string & name, double half_life, const cache_geometry & geometry,
                        const score_table * scores, std::unique_ptr<scorer> & out);

} // namespace moecache
