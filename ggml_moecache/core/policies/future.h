// What offline policies see of the trace that they will be run on. The arrays belong to the event stream.
#pragma once

#include <cstdint>

namespace moecache {

constexpr uint32_t no_event = UINT32_MAX;

struct future {
    uint64_t         n_events = 0;
    const uint64_t * offsets =
        nullptr; // [events + 1] items of event i are items[offsets[i]] ... items[offsets[i + 1] - 1]
    const uint32_t * items    = nullptr; // [accesses]
    const uint32_t * next_use = nullptr; // [accesses] index of the next event that uses the item, no_event: none
    const int64_t *  token    = nullptr; // [events] clock, as cache_event::token
};

} // namespace moecache
