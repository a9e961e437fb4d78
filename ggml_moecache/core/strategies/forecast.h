// What a predictor hands to the replay: candidates for prefetching, and scores of experts. Both are computed outside
// (pyanalysis/studies/predictors) before the replay; the arrays belong to the caller and must outlive it.
#pragma once

#include <cstdint>
#include <string>

namespace moecache {

// The candidates that appear at event i are those from offsets[i] to offsets[i + 1].
struct forecast {
    const uint64_t * offsets    = nullptr; // [events + 1]
    const uint32_t * items      = nullptr; // [candidates]
    const uint32_t * ahead      = nullptr; // [candidates] events until the expert is expected to be asked for, from 1
    const float *    confidence = nullptr; // [candidates] estimated probability that it is
};

// Scores of the experts of an event's column, in force from this event on until the column's next one with scores.
struct score_table {
    const float *   values       = nullptr; // [rows, width]
    const int64_t * row_of_event = nullptr; // [events] -1: the scores stay
    uint32_t        width        = 0;       // at least the experts of every column
};

// "" or the first entry that does not fit the events: offsets that fall, items that do not exist, rows out of range.
std::string check_forecast(const forecast & f, uint64_t n_events, uint64_t n_candidates, uint32_t n_items);
std::string check_scores(const score_table & s, uint64_t n_events, uint64_t n_rows, uint32_t most_experts);

} // namespace moecache
