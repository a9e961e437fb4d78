// A policy: which experts a cache holds. The contract and every policy's definition are in core/policies/README.md.
//
// One object per cache (session), called by one thread. Nothing is allocated per event after construction, except where
// a policy's header says so. Decisions are always carried out: policy and cache manager keep the same content.
#pragma once

#include "core/cache-geometry.h"
#include "core/session-state.h"

#include <cstdint>
#include <string>
#include <vector>

namespace moecache {

// One routing decision. Items are distinct and all of one column, in the order of the event (a later one is the more
// recent).
struct cache_event {
    uint64_t         index        = 0; // of the session, from 0, rising
    uint64_t         first_access = 0; // items of all events before this one
    int64_t          token        = 0; // clock: the largest token number seen so far, from 0
    int64_t          request      = 0; // requests are numbered in the order in which they began
    uint32_t         column       = 0;
    uint32_t         n_items      = 0;
    const uint32_t * items        = nullptr;
};

struct decision {
    uint32_t admitted; // item that gets a slot and whose copy starts
    uint32_t evicted;  // item that gives up its slot for it; no_item: the slot was empty
};

class policy {
public:
    virtual ~policy() = default;

    // Experts to place before the first event, all into empty slots (optional: none).
    virtual void place(std::vector<decision> & out) { (void) out; }

    // Count the event and append what is to be done, in order; an item is admitted or evicted at most once per event.
    // REQUIRES: events of rising index; `out` has room for the slots of the event's budget.
    virtual void on_event(const cache_event & event, std::vector<decision> & out) = 0;

    // Counters and content; load() needs a new object of the same policy and geometry and returns "" or what is wrong
    // with the state, which then leaves the object unusable.
    virtual void        save(session_state & state) const = 0;
    virtual std::string load(const session_state & state) = 0;
};

} // namespace moecache
