// The cache of one session: slots and their states, the snapshot that events are looked up in, and the counters. It
// asks the policy what to do, does it, and has the copies made. Runtime and simulator drive it in the same way:
//
//     publish(column)          before the column's next token: complete copies become visible
//     look_up(event, hit)      which experts are in the snapshot
//     decide(event)            the policy counts the event and decides
//     apply()                  victims give up their slots, copies are enqueued
//     readers_finished(index)  the device is done with the event's rows
//
// States of a slot:
//
//     empty --apply--> loading --publish--> resident --evicted, still read--> draining --readers finished--> loading
//                         ^                    |
//                         +--evicted, unread---+      (a loading slot may be evicted as well: its next copy follows in
//                                                      the queue)
//
// Invariants: an expert has at most one slot; the snapshot holds exactly the experts of resident slots; a slot that an
// event in flight reads is not written before that event's readers have finished. check() verifies them.
//
// The policy's content is what resident, loading and draining slots hold or are about to hold, so its decisions do not
// depend on the speed of copies. Owned by one thread; nothing is allocated per event; no locks, no clock, no logging.
#pragma once

#include "core/policy.h"
#include "core/snapshot-changes.h"
#include "transfer/transfer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace moecache {

enum slot_state : uint8_t {
    MOECACHE_SLOT_STATE_EMPTY,
    MOECACHE_SLOT_STATE_LOADING,
    MOECACHE_SLOT_STATE_RESIDENT,
    MOECACHE_SLOT_STATE_DRAINING,
};

struct cache_counters {
    uint64_t n_events    = 0;
    uint64_t accesses    = 0; // experts asked for
    uint64_t hits        = 0;
    uint64_t admissions  = 0; // = copies enqueued
    uint64_t evictions   = 0;
    uint64_t copy_bytes  = 0;
    uint64_t copies_late = 0; // not complete when their column's next token came
};

// What became of a copy at the first publish after it was enqueued.
struct copy_outcome {
    uint32_t slot;
    bool     ready;
};

class cache_manager {
public:
    // All three must outlive it, `rules` until replace().
    cache_manager(const cache_geometry & geometry, policy & rules, transfer & copies);

    // Place what the policy wants before the first event. The copies are then awaited: REQUIRES: all are complete
    // before publish_all().
    void place();
    void publish_all();

    // Make the complete copies of this column's experts visible. Returns what became of those enqueued since the last
    // call, valid until the next one.
    const std::vector<copy_outcome> & publish(uint32_t column);

    // hit[i] = 1 if item i is in the snapshot. Returns the number of hits and counts them.
    uint32_t look_up(const cache_event & event, uint8_t * hit);

    // What the policy wants; valid until the next call. REQUIRES: once per event, after look_up().
    const std::vector<decision> & decide(const cache_event & event);

    // Carry out the decisions of the last decide().
    void apply();

    // The device has finished reading for all events up to this one.
    void readers_finished(uint64_t event_index);

    const cache_counters & counters() const { return counts; }

    uint64_t generation() const { return snapshot_generation; } // changes whenever the snapshot does

    // From now on every change of the snapshot goes into `journal` as well, beginning with what is in it now. It must
    // outlive the manager.
    void keep_journal(snapshot_journal & journal);

    // --- slots: those of a budget follow one another ---
    uint32_t   n_slots() const { return first_slots.back(); }
    uint32_t   item_of(uint32_t slot) const { return item_of_slot[slot]; } // no_item: empty
    uint32_t   slot_of(uint32_t item) const { return slot_of_item[item]; }
    slot_state state_of(uint32_t slot) const { return slots[slot].state; }
    // The experts in the slots of a budget that are not empty, its first n_held().
    const uint32_t * held(uint32_t budget) const { return item_of_slot.data() + first_slots[budget]; }
    uint32_t         n_held(uint32_t budget) const { return n_taken[budget]; }
    bool             visible(uint32_t item) const { return snapshot[item] != 0; }

    // Policy state and residency. load() needs a new manager; copies in flight when the state was saved count as
    // complete. Returns "" or what is wrong.
    void        save(session_state & state) const;
    std::string load(const session_state & state);

    // Another session on the same slots: from now on `rules` decide, and their content is `content` (items, each once,
    // at most as many of a budget as it has slots). Experts that have a slot already keep it where they can, the others
    // are copied; what is not in `content` leaves. Counters go on; the copies count as admissions.
    // REQUIRES: the device has finished with all events so far.
    void replace(policy & rules, const std::vector<int64_t> & content);

    // "" or the first invariant that does not hold.
    std::string check() const;

private:
    struct slot_entry {
        slot_state state         = MOECACHE_SLOT_STATE_EMPTY;
        bool       late          = false; // its copy has been found incomplete
        uint32_t   pending_place = 0;     // while loading or draining: in pending[column]
        uint64_t   last_read     = 0;     // 1 + index of the last event that read it, 0: none
    };

    void release(uint32_t slot);
    void take(uint32_t slot, uint32_t item);
    void remove_pending(uint32_t slot);
    void show(uint32_t slot);
    void set_visible(uint32_t item, bool on);
    void empty(uint32_t slot);

    const cache_geometry &             geometry;
    policy *                           rules;
    transfer &                         copies;
    std::vector<uint32_t>              first_slots; // [budgets + 1]
    std::vector<uint32_t>              n_taken;     // [budgets] slots that are not empty: the first ones
    std::vector<slot_entry>            slots;
    std::vector<uint32_t>              item_of_slot; // [slots] no_item: empty
    std::vector<uint32_t>              slot_of_item; // [items] no_item: none
    std::vector<uint8_t>               snapshot;     // [items] visible
    std::vector<std::vector<uint32_t>> pending;      // [columns] slots whose copy is not visible yet
    std::vector<uint32_t>              draining;
    std::vector<decision>              decisions;
    std::vector<copy_outcome>          outcomes;
    cache_counters                     counts;
    snapshot_journal *                 journal             = nullptr; // nobody wants to know
    uint64_t                           snapshot_generation = 0;
    uint64_t                           finished = 0; // 1 + index of the last event whose readers have finished
};

} // namespace moecache
