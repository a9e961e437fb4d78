// A bounded ring of routing events between the thread that runs the graph and one consumer (the log's writer, or
// Python).
//
// One producer, one consumer, no lock: the producer owns `head`, the consumer owns `tail`. The producer neither
// allocates nor calls the system. When the ring is full an event is lost and counted; the next event that fits carries
// the count, so the consumer learns where the gap is. Memory is taken when the ring is made.
//
// One event is one routing decision: a layer's ordered top-k for one token. Its slot is a routing_event followed by
// k_max ids (I32) and k_max weights (F32); slots lie one behind the other, so the readable part is at most two arrays.
#pragma once

#include "core/snapshot-changes.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace moecache {

enum : uint8_t { MOECACHE_PHASE_PREFILL = 0, MOECACHE_PHASE_DECODE = 1 };

// What a slot holds. Decisions come before the event that they belong to, changes of the snapshot before the events
// that were looked up after them, as many slots as they need. Only rings made for a cache have other slots than events.
enum : uint8_t { MOECACHE_SLOT_EVENT = 0, MOECACHE_SLOT_DECISIONS = 1, MOECACHE_SLOT_CHANGES = 2 };

// The fixed part of a slot. Stored by the writer and seen by Python: the order of the fields is part of the interface.
struct routing_event {
    uint64_t batch_id;    // ubatch (graph) of this context, from 0
    uint64_t request_id;  // from 0, see request-tracker.h
    int32_t  token_index; // position in the sequence, from 0
    int32_t  layer_id;
    uint8_t  family;      // expert_family_name()
    uint8_t  phase;       // MOECACHE_PHASE_*
    uint16_t n_used;      // valid ids (and weights)
    uint8_t  has_weights; // 0: the graph shows no router weights
    uint8_t  kind;        // MOECACHE_SLOT_*
    uint8_t  reserved[2];
    uint32_t lost_before; // events lost between the previous event and this one
    uint32_t reserved_2;
    uint64_t lost_batch_id; // ubatch of the first of them

    int32_t *       ids() { return reinterpret_cast<int32_t *>(this + 1); }
    const int32_t * ids() const { return reinterpret_cast<const int32_t *>(this + 1); }
};
static_assert(sizeof(routing_event) == 48, "the layout is an interface");

// What a cache did with an event; only in rings made for one. Times in ns of the process's monotonic clock.
struct routing_cache {
    uint64_t hits;        // bit k: the k-th expert was computed from a slot
    uint64_t generation;  // of the snapshot
    uint64_t enqueued_ns; // first copy, 0: there was none
    uint64_t ready_ns;    // last copy complete, 0: not known
    uint64_t copy_bytes;
    uint64_t copy_ns;   // on the copy queue, 0: not known
    uint64_t cpu_ns;    // the CPU's part of the layer in this ubatch, 0: there was none
    uint64_t cuda_ns;   // the device's part, 0: not known
    int8_t   ready;     // every copy was complete when the layer's next token came; -1: not known, or no copy
    uint8_t  cached;    // 0: the event passed the cache by, nothing above is set
    uint8_t  set_known; // all changes of the snapshot up to this generation, and none later, are in slots before
    uint8_t  reserved[5];
};
static_assert(sizeof(routing_cache) == 72, "eight words and the flags");

// One decision of a cache, in a slot of kind MOECACHE_SLOT_DECISIONS. Items as in core/cache-geometry.h.
struct routing_decision {
    uint32_t admitted;
    uint32_t evicted; // UINT32_MAX: the slot was empty
};

class event_ring {
public:
    // REQUIRES: n_events > 0, k_max > 0.
    event_ring(size_t n_events, size_t k_max, bool with_cache = false);

    // --- producer ---

    // A slot to fill, or nullptr when the ring is full: then the event is lost and has been counted (`batch_id` names
    // the gap). commit() makes the slot visible; until then begin() returns the same slot.
    routing_event * begin(uint64_t batch_id);
    void            commit();
    bool            has_room(size_t n_slots = 1);               // begin() would give as many; counts nothing
    void            lose(uint64_t batch_id, uint32_t n_events); // count events that never got to a slot

    float * weights(routing_event * event) const { return reinterpret_cast<float *>(event->ids() + k_max_); }

    // REQUIRES: a ring with cache.
    routing_cache * cache(routing_event * event) const {
        return reinterpret_cast<routing_cache *>(reinterpret_cast<char *>(event) + cache_offset);
    }

    // Of a slot of kind MOECACHE_SLOT_DECISIONS: n_used of them, k_max at most.
    routing_decision * decisions(routing_event * event) const {
        return reinterpret_cast<routing_decision *>(event->ids());
    }

    // Of a slot of kind MOECACHE_SLOT_CHANGES: likewise.
    snapshot_change * changes(routing_event * event) const { return reinterpret_cast<snapshot_change *>(event->ids()); }

    // --- consumer ---

    // The events that can be read without a gap in memory: *events points to the first of them, `stride_bytes()` apart.
    size_t peek(const routing_event ** events) const;
    void   release(size_t n); // REQUIRES: n <= the result of the last peek()

    const float * weights(const routing_event * event) const {
        return reinterpret_cast<const float *>(event->ids() + k_max_);
    }

    const routing_cache * cache(const routing_event * event) const {
        return reinterpret_cast<const routing_cache *>(reinterpret_cast<const char *>(event) + cache_offset);
    }
    const routing_decision * decisions(const routing_event * event) const {
        return reinterpret_cast<const routing_decision *>(event->ids());
    }
    const snapshot_change * changes(const routing_event * event) const {
        return reinterpret_cast<const snapshot_change *>(event->ids());
    }

    // --- any thread ---

    bool     with_cache() const { return stride > cache_offset; }
    size_t   stride_bytes() const { return stride; }
    size_t   n_slots() const { return n; }
    size_t   k_max() const { return k_max_; }
    uint64_t n_committed() const { return n_events.load(std::memory_order_acquire); } // events alone
    uint64_t n_lost() const { return lost.load(std::memory_order_relaxed); }

    // Of the gap that no event has carried yet. REQUIRES: the producer has stopped.
    uint64_t open_gap_batch_id() const { return gap_batch; }

private:
    routing_event * slot(uint64_t index) const;

    const size_t            n;
    const size_t            k_max_;
    const size_t            cache_offset; // in a slot
    const size_t            stride;
    std::unique_ptr<char[]> memory;

    // Producer and consumer each write their own cache line.
    alignas(64) std::atomic<uint64_t> head { 0 }; // slots committed
    std::atomic<uint64_t> n_events { 0 };         // of these, events
    uint64_t              cached_tail = 0;        // of the producer: what it last saw of `tail`
    uint32_t              gap         = 0;        // events lost since the last commit
    uint64_t              gap_batch   = 0;
    std::atomic<uint64_t> lost { 0 };
    alignas(64) std::atomic<uint64_t> tail { 0 }; // events released
};

} // namespace moecache
