// Copies of experts into slots at run time. The base of the two devices' own: what cache_manager asks for, and what the
// thread that runs the graph says about the readers of slots.
#pragma once

#include "backend/device-timer.h"
#include "backend/expert-pools.h"
#include "transfer/transfer.h"

#include <memory>
#include <string>
#include <vector>

namespace moecache {

// Where the parts of a copy lie. Set once, before the first copy.
struct slot_map {
    const cache_geometry * geometry = nullptr;
    const expert_pools *   pools    = nullptr;
    std::vector<int32_t>   places; // [slots] place in the pools, by slot of the manager

    size_t parts(const copy_request & copy, std::array<expert_part, n_expert_roles> & out) const;
};

// When a copy was done, ns of the process's monotonic clock, and how long it took; 0: not known.
struct copy_time {
    uint64_t ready_ns    = 0;
    uint64_t duration_ns = 0;
};

class slot_transfer : public transfer {
public:
    // From now on time_of() is known. Returns false where the device has no events for that. `timer` must outlive the
    // transfer.
    virtual bool keep_times(device_timer & timer) = 0;

    // Of the complete copy that was enqueued last into `slot`. Copies that were handed to a GPU together are done
    // together, and each has its share of the time.
    virtual copy_time time_of(uint32_t slot) const = 0;

    // Everything that reads slots for the events so far has been handed to the device: copies that wait for readers may
    // be ordered behind it.
    virtual void readers_launched() = 0;

    // Wait for all copies that were enqueued. REQUIRES: readers_launched() since the last enqueue.
    virtual void wait_all() = 0;
};

// A stream of its own on the inner device. nullptr and `why` when the device has no events that can be asked.
std::unique_ptr<slot_transfer> make_device_transfer(ggml_backend_dev_t dev, ggml_backend_t inner, const slot_map & map,
                                                    std::string & why);

// For the stand-in: a thread that copies, as slowly as GGML_MOECACHE_STANDIN_COPY_* say.
std::unique_ptr<slot_transfer> make_standin_transfer(const slot_map & map);

} // namespace moecache
