#include "core/event-ring.h"

#include <algorithm>
#include <cstring>

namespace moecache {

event_ring::event_ring(size_t n_events, size_t k_max, bool with_cache) :
    n(n_events), k_max_(k_max),
    cache_offset((sizeof(routing_event) + k_max * (sizeof(int32_t) + sizeof(float)) + 7) / 8 * 8),
    stride(cache_offset + (with_cache ? sizeof(routing_cache) : 0)), memory(new char[n * stride]) {}

routing_event * event_ring::slot(uint64_t index) const {
    return reinterpret_cast<routing_event *>(memory.get() + index % n * stride);
}

bool event_ring::has_room(size_t n_slots) {
    const uint64_t index = head.load(std::memory_order_relaxed);
    if (index - cached_tail + n_slots > n) {
        cached_tail = tail.load(std::memory_order_acquire);
    }
    return index - cached_tail + n_slots <= n;
}

void event_ring::lose(uint64_t batch_id, uint32_t n_events) {
    gap_batch = gap == 0 ? batch_id : gap_batch;
    gap += n_events;
    lost.fetch_add(n_events, std::memory_order_relaxed);
}

routing_event * event_ring::begin(uint64_t batch_id) {
    if (!has_room()) {
        lose(batch_id, 1);
        return nullptr;
    }
    const uint64_t  index = head.load(std::memory_order_relaxed);
    routing_event * event = slot(index);
    std::memset(event, 0, sizeof(*event));
    if (with_cache()) {
        std::memset(static_cast<void *>(cache(event)), 0, sizeof(routing_cache));
    }
    event->batch_id      = batch_id;
    event->lost_before   = gap;
    event->lost_batch_id = gap_batch;
    return event;
}

void event_ring::commit() {
    gap                  = 0;
    gap_batch            = 0;
    const uint64_t index = head.load(std::memory_order_relaxed);
    if (slot(index)->kind == MOECACHE_SLOT_EVENT) {
        n_events.store(n_events.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    head.store(index + 1, std::memory_order_release);
}

size_t event_ring::peek(const routing_event ** events) const {
    const uint64_t first = tail.load(std::memory_order_relaxed);
    const uint64_t last  = head.load(std::memory_order_acquire);
    *events              = slot(first);
    return static_cast<size_t>(std::min<uint64_t>(last - first, n - first % n));
}

void event_ring::release(size_t count) {
    tail.store(tail.load(std::memory_order_relaxed) + count, std::memory_order_release);
}

} // namespace moecache
