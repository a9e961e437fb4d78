// The events of a trace as the simulator replays them: distinct items per event, in order. Constant once made, so that
// many threads may replay it at once.
#pragma once

#include "core/cache-geometry.h"
#include "core/policies/future.h"
#include "core/policy.h"

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace moecache {

// Rows of a trace. n rows, k ids each; the arrays are only read while the stream is made.
struct trace_rows {
    size_t          n_rows  = 0; // in `order`: rows that it leaves out are not replayed
    size_t          k       = 0;
    const int64_t * order   = nullptr; // [n_rows] the row that comes i-th
    const int32_t * ids     = nullptr; // [n, k] expert ids, -1 behind the last
    const int64_t * column  = nullptr; // [n] index into the geometry's columns
    const int64_t * token   = nullptr; // [n] number of the token, from 0 in the order of the trace
    const int64_t * request = nullptr; // [n] number of the request, from 0 in the order of first appearance
    const uint8_t * phase   = nullptr; // [n] 0 prefill, 1 decode
    const int64_t * unit    = nullptr; // [n] rows that follow one another in `order` with the same unit and column are
                                       // one event; their last one names it
};

class event_stream {
public:
    std::vector<uint64_t> offsets; // [events + 1]
    std::vector<uint32_t> items;   // [accesses]
    std::vector<uint32_t> column;  // [events]
    std::vector<int64_t>  token;   // [events] clock: the largest token number so far
    std::vector<int64_t>  request; // [events] the newest of its rows
    std::vector<int64_t>  row;     // [events] the (last) row
    std::vector<uint8_t>  decode;  // [events] 1: a decode token

    size_t      n_events() const { return column.size(); }
    cache_event event(size_t index) const;

    // Computed at the first call; may be called by several threads.
    const future & ahead() const;

    // `per_access`: every expert is an event of its own. Returns "" or what is wrong with the rows: a column or an id
    // that the geometry does not have, or a row without experts.
    static std::string make(const trace_rows & rows, const cache_geometry & geometry, bool per_access,
                            event_stream & out);

private:
    void append(const trace_rows & rows, size_t first, size_t last, const std::vector<uint32_t> & event_items);

    mutable std::once_flag        ahead_made;
    mutable std::vector<uint32_t> next_use;
    mutable future                seen_ahead;
};

} // namespace moecache
