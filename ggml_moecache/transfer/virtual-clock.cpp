#include "transfer/virtual-clock.h"

#include <algorithm>

namespace moecache {

void virtual_clock::enqueue(const copy_request & copy) {
    const double begin     = std::max({ now_ns, queue_free_ns, copy.after_readers ? readers_done_ns : 0.0 });
    enqueued_at[copy.slot] = now_ns;
    ready_at[copy.slot]    = begin + latency_ns + static_cast<double>(copy.bytes) / bytes_per_ns;
    queue_free_ns          = ready_at[copy.slot];
}

void virtual_clock::complete_all() {
    std::fill(ready_at.begin(), ready_at.end(), now_ns);
    queue_free_ns = now_ns;
}

} // namespace moecache
