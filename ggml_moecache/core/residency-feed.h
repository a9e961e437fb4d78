// Hands the changes of a cache's snapshot over to the routing log's ring, in front of the events that were looked up
// after them. What does not fit waits for a later event. Owned by the thread that makes events.
#pragma once

#include "core/event-ring.h"
#include "core/snapshot-changes.h"

namespace moecache {

class residency_feed {
public:
    // `ring`: made for a cache of `n_items` experts; it must outlive the feed.
    residency_feed(event_ring & ring, uint32_t n_items) : ring(ring), waiting(n_items) {}

    void add(const snapshot_change * changes, size_t n);

    // Put what waits into the ring: all of it if `may_wait`, else what leaves room for `n_slots` more. Returns whether
    // the consumer then knows the snapshot as it is after all changes added so far.
    bool hand_over(uint64_t batch_id, size_t n_slots, bool may_wait);

private:
    event_ring & ring;
    net_changes  waiting;
};

} // namespace moecache
