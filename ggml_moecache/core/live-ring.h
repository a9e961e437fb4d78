// Rings that a consumer inside the process reads (Python), by context.
//
// A ring is shared: it lives as long as its context or a consumer holds it, so a consumer may go on reading what is in
// it after the model was freed. One consumer at a time. Any thread.
#pragma once

#include "core/event-ring.h"

#include <memory>

namespace moecache {

void                        live_ring_set(uint64_t context_id, std::shared_ptr<event_ring> ring);
std::shared_ptr<event_ring> live_ring_get(uint64_t context_id); // nullptr: the context has none

} // namespace moecache
