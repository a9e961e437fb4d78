#include "core/strategies/scorer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace moecache {

namespace {

class by_last_use final : public scorer {
public:
    explicit by_last_use(uint32_t n_items) : scorer(n_items) { scores.assign(n_items, { -1, 0 }); }

    void see(const cache_event & event) override {
        for (uint32_t i = 0; i < event.n_items; i++) {
            scores[event.items[i]].first = static_cast<double>(event.first_access + i);
        }
    }
};

class by_count final : public scorer {
public:
    explicit by_count(uint32_t n_items) : scorer(n_items) {}

    void see(const cache_event & event) override {
        for (uint32_t i = 0; i < event.n_items; i++) {
            scores[event.items[i]].first++;
        }
    }
};

// Logarithms: the sum over uses of 2^(token / half-life) as its binary logarithm, which stays finite.
class by_decayed_count final : public scorer {
public:
    by_decayed_count(uint32_t n_items, double tokens) : scorer(n_items), half_life(tokens) {
        scores.assign(n_items, { -std::numeric_limits<double>::infinity(), 0 });
    }

    void see(const cache_event & event) override {
        const double added = static_cast<double>(event.token) / half_life;
        for (uint32_t i = 0; i < event.n_items; i++) {
            double &     log  = scores[event.items[i]].first;
            const double high = std::max(log, added), low = std::min(log, added);
            log = high + std::log1p(std::exp2(low - high)) / std::log(2.0);
        }
    }

private:
    double half_life;
};

class by_table final : public scorer {
public:
    by_table(const cache_geometry & g, const score_table & t) : scorer(g.n_items()), geometry(g), table(t) {
        scores.assign(g.n_items(), { 0, -1 });
    }

    void see(const cache_event & event) override {
        for (uint32_t i = 0; i < event.n_items; i++) {
            scores[event.items[i]].second = static_cast<double>(event.first_access + i);
        }
        const int64_t row = table.row_of_event[event.index];
        if (row < 0) {
            return;
        }
        const float *  values = table.values + static_cast<size_t>(row) * table.width;
        const uint32_t first  = geometry.first_item[event.column];
        const uint32_t n      = geometry.first_item[event.column + 1] - first;
        for (uint32_t expert = 0; expert < n; expert++) {
            scores[first + expert].first = values[expert];
        }
    }

private:
    const cache_geometry & geometry;
    const score_table &    table;
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
