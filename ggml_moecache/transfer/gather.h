// Gather: copies of many small tensors of a device to host memory, ordered behind the work that has been given to a
// GGML backend, without waiting for it.
//
// Slots are used in turn. start() may be called again while earlier slots are on their way; a slot's memory may be read
// when wait() for it has returned. One thread.
#pragma once

#include "backend/ggml-internal.h"

#include <cstddef>
#include <memory>
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

class routing_gather {
public:
    static constexpr size_t n_slots = 8;

    virtual ~routing_gather() = default;

    // Host memory of `size_bytes` and room for `n_sources` tensors in every slot. Returns false when it cannot be had.
    // REQUIRES: no slot is on its way.
    virtual bool reserve(size_t size_bytes, size_t n_sources) = 0;

    // Returns false when the device refuses; then nothing is on its way.
    virtual bool start(size_t slot, const std::vector<gather_source> & sources) = 0;
    virtual void wait(size_t slot)                                              = 0;

    // Whether another thread may ask ready() while this one goes on. Without it wait() needs the backend itself.
    virtual bool is_async() const { return false; }

    virtual bool ready(size_t) { return false; }

    virtual const char * memory(size_t slot) const = 0;
    virtual size_t       size_bytes() const        = 0;
    virtual size_t       n_sources() const         = 0;
};

// Copies by the inner backend itself, one per tensor: for every device.
std::unique_ptr<routing_gather> make_ggml_gather(ggml_backend_dev_t dev, ggml_backend_t inner);

#ifdef MOECACHE_CUDA
// One kernel for all tensors, through mapped memory. nullptr when `inner` is no CUDA backend.
std::unique_ptr<routing_gather> make_cuda_gather(ggml_backend_dev_t dev, ggml_backend_t inner);

// Versions such as "13.0"; "" when CUDA does not say.
void cuda_versions(std::string & runtime, std::string & driver);
#endif

} // namespace moecache
