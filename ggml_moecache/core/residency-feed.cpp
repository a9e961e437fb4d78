#include "core/residency-feed.h"

#include <algorithm>
#include <thread>

namespace moecache {

void residency_feed::add(const snapshot_change * changes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        waiting.add(changes[i]);
    }
}

bool residency_feed::hand_over(uint64_t batch_id, size_t n_slots, bool may_wait) {
    const size_t room = may_wait ? 1 : std::min(1 + n_slots, ring.n_slots());
    while (!waiting.list().empty()) {
        while (may_wait && !ring.has_room(room)) {
            std::this_thread::yield();
        }
        if (!ring.has_room(room)) {
            return false;
        }
        routing_event * slot = ring.begin(batch_id);
        const size_t    n    = std::min(ring.k_max(), waiting.list().size());
        slot->kind           = MOECACHE_SLOT_CHANGES;
        slot->n_used         = static_cast<uint16_t>(n);
        std::copy(waiting.list().end() - static_cast<std::ptrdiff_t>(n), waiting.list().end(), ring.changes(slot));
        ring.commit();
        waiting.drop_last(n);
    }
    return true;
}

} // namespace moecache
