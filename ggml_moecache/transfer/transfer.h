// How a copy of an expert gets into a slot. One implementation per device; a virtual clock for the simulator.
//
// Copies are carried out in the order in which they are enqueued. A slot has one copy at most that counts: the one
// enqueued last. Called by the thread that runs the graph; nothing here may block it.
#pragma once

#include <cstdint>

namespace moecache {

struct copy_request {
    uint32_t item; // expert, as in core/cache-geometry.h
    uint32_t slot;
    uint64_t bytes;
    // The slot's old content may still be read: the copy must not begin before the readers of this event have finished.
    bool     after_readers;
    uint64_t reader_event;
};

class transfer {
public:
    virtual ~transfer() = default;

    virtual void enqueue(const copy_request & copy) = 0;

    // Whether the copy enqueued last into `slot` has completed.
    virtual bool complete(uint32_t slot) = 0;
};

} // namespace moecache
