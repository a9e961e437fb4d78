#include "core/sim/event-stream.h"

#include <algorithm>

namespace moecache {

cache_event event_stream::event(size_t index) const {
    cache_event result;
    result.index        = index;
    result.first_access = offsets[index];
    result.token        = token[index];
    result.request      = request[index];
    result.column       = column[index];
    result.n_items      = static_cast<uint32_t>(offsets[index + 1] - offsets[index]);
    result.items        = items.data() + offsets[index];
    return result;
}

const future & event_stream::ahead() const {
    std::call_once(ahead_made, [this] {
        const uint32_t        n_items = items.empty() ? 0 : *std::max_element(items.begin(), items.end()) + 1;
        std::vector<uint32_t> next(n_items, no_event);
        next_use.resize(items.size());
        for (size_t index = n_events(); index-- > 0;) {
            for (uint64_t access = offsets[index]; access < offsets[index + 1]; access++) {
                next_use[access]    = next[items[access]];
                next[items[access]] = static_cast<uint32_t>(index);
            }
        }
        seen_ahead = { n_events(), offsets.data(), items.data(), next_use.data(), token.data() };
    });
    return seen_ahead;
}

// Appends the ids of a row in order. Returns "" or what is wrong with them.
static std::string add_row(const trace_rows & rows, size_t row, const cache_geometry & geometry,
                           std::vector<uint32_t> & out) {
    const int64_t column = rows.column[row];
    if (column < 0 || column >= static_cast<int64_t>(geometry.columns.size())) {
        return "row " + std::to_string(row) + " has no column " + std::to_string(column);
    }
    const int32_t * ids   = rows.ids + row * rows.k;
    const uint32_t  first = geometry.first_item[static_cast<size_t>(column)];
    const uint32_t  n     = geometry.columns[static_cast<size_t>(column)].n_experts;
    size_t          used  = 0;
    for (; used < rows.k && ids[used] >= 0; used++) {
        if (static_cast<uint32_t>(ids[used]) >= n) {
            return "row " + std::to_string(row) + " names expert " + std::to_string(ids[used]) + " of " +
                   std::to_string(n);
        }
        out.push_back(first + static_cast<uint32_t>(ids[used]));
    }
    return used > 0 ? "" : "row " + std::to_string(row) + " has no experts";
}

// Keeps the last appearance of each item, in order. `mark[item]` holds the last event that saw it.
static void keep_last(std::vector<uint32_t> & event_items, std::vector<uint64_t> & mark, uint64_t event) {
    size_t kept = event_items.size();
    for (size_t i = event_items.size(); i-- > 0;) {
        if (mark[event_items[i]] != event) {
            mark[event_items[i]] = event;
            event_items[--kept]  = event_items[i];
        }
    }
    event_items.erase(event_items.begin(), event_items.begin() + static_cast<std::ptrdiff_t>(kept));
}

void event_stream::append(const trace_rows & rows, size_t first, size_t last,
                          const std::vector<uint32_t> & event_items) {
    const auto row    = static_cast<size_t>(rows.order[last]);
    int64_t    most   = token.empty() ? 0 : token.back();
    int64_t    newest = rows.request[row];
    for (size_t i = first; i <= last; i++) {
        most   = std::max(most, rows.token[rows.order[i]]);
        newest = std::max(newest, rows.request[rows.order[i]]);
    }
    items.insert(items.end(), event_items.begin(), event_items.end());
    offsets.push_back(items.size());
    column.push_back(static_cast<uint32_t>(rows.column[row]));
    token.push_back(most);
    request.push_back(newest);
    this->row.push_back(static_cast<int64_t>(row));
    decode.push_back(rows.phase[row]);
}

std::string event_stream::make(const trace_rows & rows, const cache_geometry & geometry, bool per_access,
                               event_stream & out) {
    std::vector<uint32_t> event_items;
    std::vector<uint64_t> mark(geometry.n_items(), 0);
    uint64_t              n_seen = 0;
    out.offsets.assign(1, 0);
    out.items.reserve(rows.n_rows * rows.k);
    for (size_t first = 0; first < rows.n_rows;) {
        size_t last = first;
        event_items.clear();
        while (true) {
            const auto        row   = static_cast<size_t>(rows.order[last]);
            const std::string error = add_row(rows, row, geometry, event_items);
            if (!error.empty()) {
                return error;
            }
            if (last + 1 == rows.n_rows) {
                break;
            }
            const auto next = static_cast<size_t>(rows.order[last + 1]);
            if (rows.unit[next] != rows.unit[row] || rows.column[next] != rows.column[row]) {
                break;
            }
            last++;
        }
        if (per_access) {
            for (const uint32_t item : event_items) {
                out.append(rows, first, last, { item });
            }
        } else {
            keep_last(event_items, mark, ++n_seen);
            out.append(rows, first, last, event_items);
        }
        first = last + 1;
    }
    if (out.n_events() >= no_event) {
        return "a trace may have at most 4294967294 events";
    }
    return "";
}

} // namespace moecache
