#include "core/strategies/forecast.h"

namespace moecache {

std::string check_forecast(const forecast & f, uint64_t n_events, uint64_t n_candidates, uint32_t n_items) {
    if (f.offsets[0] != 0 || f.offsets[n_events] != n_candidates) {
        return "a forecast's offsets must begin at 0 and end at the number of candidates, " +
               std::to_string(n_candidates);
    }
    for (uint64_t event = 0; event < n_events; event++) {
        if (f.offsets[event] > f.offsets[event + 1]) {
            return "a forecast's offsets must not fall: they do at event " + std::to_string(event);
        }
    }
    for (uint64_t i = 0; i < n_candidates; i++) {
        if (f.items[i] >= n_items || f.ahead[i] == 0 || !(f.confidence[i] >= 0)) {
            return "candidate " + std::to_string(i) + " of a forecast must be an expert below " +
                   std::to_string(n_items) + ", at least one event ahead, with a confidence of at least 0";
        }
    }
    return "";
}

std::string check_scores(const score_table & s, uint64_t n_events, uint64_t n_rows, uint32_t most_experts) {
    if (s.width < most_experts) {
        return "scores must have at least " + std::to_string(most_experts) + " columns, the experts of a layer";
    }
    for (uint64_t event = 0; event < n_events; event++) {
        if (s.row_of_event[event] >= static_cast<int64_t>(n_rows)) {
            return "event " + std::to_string(event) + " names row " + std::to_string(s.row_of_event[event]) +
                   " of the scores, which have " + std::to_string(n_rows);
        }
    }
    return "";
}

} // namespace moecache
