// The event stream that Python holds.
#pragma once

#include "arrays.h"
#include "core/sim/event-stream.h"

namespace moecache {

// The event stream together with the columns that its items are numbered by.
struct bound_stream {
    std::vector<column_info> columns;
    event_stream             stream;
};

} // namespace moecache
