#include "core/request-numbers.h"

#include <iterator>

namespace moecache {

int64_t request_numbers::of(uint64_t id) {
    if (last_number >= 0 && id == last_id) {
        return last_number;
    }
    last_id    = id;
    auto after = entries.upper_bound(id);
    if (after != entries.begin()) {
        auto & [first_id, known] = *std::prev(after);
        if (id - first_id < known.n_ids) {
            return last_number = known.first + static_cast<int64_t>(id - first_id);
        }
        if (id - first_id == known.n_ids && known.first + static_cast<int64_t>(known.n_ids) == n_requests) {
            known.n_ids++;
            return last_number = n_requests++;
        }
    }
    entries[id]        = { 1, n_requests };
    return last_number = n_requests++;
}

void request_numbers::continue_last(uint64_t id) {
    entries[id] = { 1, n_requests - 1 };
    last_id     = id;
    last_number = n_requests - 1;
}

void request_numbers::restart(int64_t next) {
    entries.clear();
    n_requests  = next;
    last_number = -1;
}

} // namespace moecache
