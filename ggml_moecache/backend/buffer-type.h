// The two buffer types of a MoECache device.
//
// default  Wraps the inner device's default type. Its buffers ARE the inner device's, only tagged with this type:
// llama.cpp books
//          memory by buffer type and device (--fit, the memory breakdown), and the inner backend's own code works on
//          its buffers as ever. Where that code compares types, inner_view() below gives it a tensor with the inner
//          type.
// store    Host memory for expert weights, pinned when the driver lets us: the canonical copies, never released or
// written while
//          the model lives. is_host, so that the loader reads into it directly and the CPU can compute on it.
#pragma once

#include "backend/device.h"

namespace moecache {

void buffer_types_init(device_context * device, ggml_backend_dev_t dev);

bool buffer_type_is_default(ggml_backend_buffer_type_t type); // of any MoECache device
bool buffer_type_is_store(ggml_backend_buffer_type_t type);
bool buffer_type_is_ours(ggml_backend_buffer_type_t type);

// Whether a weight, or what it is a view of, lies in the store of `device`.
bool in_store(const ggml_tensor * weight, const device_context * device);

// A copy of a tensor of a default-type buffer as the inner backend expects it: data in a buffer of the inner type.
// Points into itself, so it must stay where it is; lives for one call.
struct inner_view {
    ggml_tensor         tensor;
    ggml_backend_buffer buffer;

    // REQUIRES: `source` is in a default-type buffer.
    explicit inner_view(const ggml_tensor * source);
    inner_view(const inner_view &)             = delete;
    inner_view & operator=(const inner_view &) = delete;
};

} // namespace moecache
