// The way of a context's routing events to a consumer inside the process (Python).
//
// A context that logs live opens its channel when it is created; the ring comes with the first graph that has an MoE
// block. A consumer takes the channel while the context lives, before or after that graph, and keeps the ring, and what
// is in it, for as long as it holds the channel: the context may be gone by then. One consumer at a time. Any thread.
#pragma once

#include "core/event-ring.h"

#include <atomic>
#include <memory>
#include <mutex>

namespace moecache {

class live_channel {
public:
    void                        set_ring(std::shared_ptr<event_ring> made); // by the context, once
    std::shared_ptr<event_ring> ring() const;                               // nullptr: not made yet

    bool take() { return !taken.exchange(true); } // become the consumer; false: there is one already
    void leave() { taken = false; }               // REQUIRES: take() was true

private:
    mutable std::mutex          mutex;
    std::shared_ptr<event_ring> events;
    std::atomic<bool>           taken { false };
};

std::shared_ptr<live_channel> live_channel_open(uint64_t context_id);  // by the context
void                          live_channel_close(uint64_t context_id); // by the context: nobody finds it any more
std::shared_ptr<live_channel> live_channel_find(uint64_t context_id);  // nullptr: none is open

} // namespace moecache
