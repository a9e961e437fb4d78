// Gather: copies of many small tensors of a device to host memory, ordered behind the work that has been given to a
// GGML backend, without waiting for it.
//
// A copy costs the calling thread some 2 us however small it is, so sources that lie at regular distances become one
// copy: the router tensors of all layers, whose memory is laid out for that (backend/router-memory.h), are two.
#pragma once

#include "backend/device.h"

#include <cstddef>
#include <string>
#include <vector>

namespace moecache {

// One tensor of n_rows rows of row_bytes, stride_bytes apart on the device, packed on the host at `offset` of the slot.
struct gather_source {
    const ggml_tensor * tensor       = nullptr;
    size_t              row_bytes    = 0;
    size_t              n_rows       = 0;
    size_t              stride_bytes = 0;
    size_t              offset       = 0;
};

// One copy: as a source, but of memory that may span several tensors of one buffer.
struct gather_run {
    ggml_backend_buffer_t buffer       = nullptr;
    const char *          data         = nullptr; // device memory
    size_t                row_bytes    = 0;
    size_t                n_rows       = 0;
    size_t                stride_bytes = 0;
    size_t                offset       = 0;
};

// The fewest copies, in order, that neighbours in `sources` can be merged to. Sources without rows are left out.
// REQUIRES: memory is allocated for their tensors.
std::vector<gather_run> gather_merge(const std::vector<gather_source> & sources);

// Slots are used in turn. start() may be called again while earlier slots are on their way; a slot's memory may be read
// when wait() for it has returned, or ready() has said so. One thread, but for ready() and memory().
class routing_gather {
public:
    static constexpr size_t n_slots = 8;

    routing_gather(ggml_backend_dev_t dev, ggml_backend_t inner);
    ~routing_gather(); // waits for what is on its way
    routing_gather(const routing_gather &)             = delete;
    routing_gather & operator=(const routing_gather &) = delete;

    // Host memory of `size_bytes` in every slot. Returns false when it cannot be had; then there is none at all.
    // REQUIRES: no slot is on its way.
    bool reserve(size_t size_bytes);

    void start(size_t slot, const std::vector<gather_run> & runs);
    void wait(size_t slot);

    // Whether another thread may ask ready() while this one goes on.
    bool is_async() const;
    bool ready(size_t slot) const;

    const char * memory(size_t slot) const { return base + slot * slot_bytes; }

    size_t size_bytes() const { return slot_bytes; }

private:
    ggml_backend_dev_t    dev;
    ggml_backend_t        inner;
    ggml_backend_event_t  copied[n_slots] = {}; // nullptr: the device has no events
    ggml_backend_buffer_t buffer          = nullptr;
    char *                base            = nullptr;
    size_t                slot_bytes      = 0;
};

} // namespace moecache
