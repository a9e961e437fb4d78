// Device memory for router tensors, so that they still hold their values at the end of the graph.
//
// Asking GGML's allocator to keep them (add_alloc_dep) would move every other tensor of the graph, and CUDA's fusion of
// neighbouring operations depends on where their memory lies: on an H200 that cost 6 % of decode. Tensors that have
// memory before the graph is allocated are left alone by the allocator, and so is the layout of all others.
//
// One region for all graphs of a backend, used from its start by each: they run one after the other on one stream, and
// the next one waits for the gather of the one before. Owned by one backend, used by the thread that builds its graphs.
#pragma once

#include "backend/device.h"

#include <memory>
#include <vector>

namespace moecache {

class router_memory {
public:
    explicit router_memory(ggml_backend_dev_t dev) : dev(dev) {}

    // Give memory to the tensors that `tensors` are (views of), in that order, small ones at equal distances, as far as
    // nodes of `graph` compute them:
    // the memory of others is another device's matter. Returns those of `tensors` that got none: computed elsewhere, or
    // no room on the device (then all).
    std::vector<ggml_tensor *> give(const ggml_cgraph * graph, const std::vector<ggml_tensor *> & tensors);

private:
    struct buffer_free {
        void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
    };

    bool reserve(size_t size_bytes);

    ggml_backend_dev_t dev;
    // The last one is in use. Graphs that were built with an earlier one may still run, so none is freed before the
    // end.
    std::vector<std::unique_ptr<ggml_backend_buffer, buffer_free>> buffers;
    size_t                                                         capacity_bytes = 0;
};

} // namespace moecache
