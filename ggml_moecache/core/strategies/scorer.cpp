#include "core/strategies/scorer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace moecache {

namespace {

class by_last_use : public scorer {
public:
    explicit by_last_use(uint32_t n_items) : last(n_items, -1) {}

    void see(const cache_event & event) override {
        for (uint32_t i = 0; i < event.n_items; i++) {
            last[event.items[i]] = static_cast<double>(event.first_access + i);
        }
    }
    score of(uint32_t item) const override { return { last[item], 0 }; }

protected:
    std::vector<double> last; // [items] number of the access, -1: none
};

class by_count final : public scorer {
public:
    explicit by_count(uint32_t n_items) : uses(n_items, 0) {}

    void see(const cache_event & event) override {
        for (uint32_t i = 0; i < event.n_items; i++) {
            uses[event.items[i]]++;
        }
    }
    score of(uint32_t item) const override { return { static_cast<double>(uses[item]), 0 }; }

private:
    std::vector<uint64_t> uses;
};

// Logarithms: the sum over uses of 2^(token / half-life) as its binary logarithm, which stays finite.
class by_decayed_count final : public scorer {
public:
    by_decayed_count(uint32_t n_items, double tokens) :
        logs(n_items, -std::numeric_limits<double>::infinity()), half_life(tokens) {}

    void see(const cache_event & event) override {
        const double added = static_cast<double>(event.token) / half_life;
        for (uint32_t i = 0; i < event.n_items; i++) {
            double &     log  = logs[event.items[i]];
            const double high = std::max(log, added), low = std::min(log, added);
            log = high + std::log1p(std::exp2(low - high)) / std::log(2.0);
        }
    }
    score of(uint32_t item) const override { return { logs[item], 0 }; }

private:
    std::vector<double> logs;
    double              half_life;
};

class by_table final : public by_last_use {
public:
    by_table(const cache_geometry & g, const score_table & t) : by_last_use(g.n_items()), geometry(g), table(t) {
        current.assign(g.n_items(), 0);
    }

    void see(const cache_event & event) override {
        by_last_use::see(event);
        const int64_t row = table.row_of_event[event.index];
        if (row >= 0) {
            const uint32_t first = geometry.first_item[event.column];
            const uint32_t n     = geometry.first_item[event.column + 1] - first;
            std::copy_n(table.values + static_cast<size_t>(row) * table.width, n, current.begin() + first);
        }
    }
    score of(uint32_t item) const override { return { static_cast<double>(current[item]), last[item] }; }

private:
    const cache_geometry & geometry;
    const score_table &    table;
    std::vector<float>     current; // [items]
};

} // namespace

std::string make_scorer(const std::string & name, double half_life, const cache_geometry & geometry,
                        const score_table * scores, std::unique_ptr<scorer> & out) {
    if (name == "lru") {
        out = std::make_unique<by_last_use>(geometry.n_items());
    } else if (name == "cumulative-lfu") {
        out = std::make_unique<by_count>(geometry.n_items());
    } else if (name == "decayed-lfu") {
        if (!(half_life > 0)) {
            return "decayed-lfu needs a half-life above 0 tokens";
        }
        out = std::make_unique<by_decayed_count>(geometry.n_items(), half_life);
    } else if (name == "scores") {
        if (scores == nullptr) {
            return "scorer 'scores' needs a table of scores";
        }
        out = std::make_unique<by_table>(geometry, *scores);
    } else {
        return "a scorer is one of lru, cumulative-lfu, decayed-lfu, scores. Got '" + name + "' instead.";
    }
    return "";
}

} // namespace moecache
