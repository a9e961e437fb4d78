#include "backend/router-memory.h"

#include <algorithm>

namespace moecache {

// Up to this size all tensors get as much room as the largest: at equal distances the ids and the weights of a single
// token are one copy (transfer/gather.h) and not two. Larger ubatches pay two copies rather than the memory.
static const size_t max_even_bytes = size_t(1) << 20;

static ggml_tensor * root_of(ggml_tensor * tensor) {
    return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

bool router_memory::reserve(size_t size_bytes) {
    if (size_bytes <= capacity_bytes) {
        return true;
    }
    if (size_bytes > device_allowance_bytes(device_get(dev))) {
        return false;
    }
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(&device_get(dev)->default_type, size_bytes);
    if (buffer == nullptr) {
        return false;
    }
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_COMPUTE);
    buffers.emplace_back(buffer);
    capacity_bytes = size_bytes;
    return true;
}

// The members of `roots` that nodes of `graph` compute, sorted by address.
static std::vector<const ggml_tensor *> computed_by(const ggml_cgraph * graph, std::vector<const ggml_tensor *> roots) {
    std::sort(roots.begin(), roots.end());
    std::vector<const ggml_tensor *> computed;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (std::binary_search(roots.begin(), roots.end(), graph->nodes[i])) {
            computed.push_back(graph->nodes[i]);
        }
    }
    std::sort(computed.begin(), computed.end());
    return computed;
}

std::vector<ggml_tensor *> router_memory::give(const ggml_cgraph * graph, const std::vector<ggml_tensor *> & tensors) {
    ggml_backend_buffer_type_t       type      = &device_get(dev)->default_type;
    const size_t                     alignment = ggml_backend_buft_get_alignment(type);
    std::vector<const ggml_tensor *> all;
    for (ggml_tensor * tensor : tensors) {
        all.push_back(root_of(tensor));
    }
    const std::vector<const ggml_tensor *> computed = computed_by(graph, all);
    std::vector<ggml_tensor *>             roots;
    std::vector<ggml_tensor *>             rest;
    size_t                                 size_bytes = 0;
    size_t                                 most_bytes = 0; // of one tensor
    for (ggml_tensor * tensor : tensors) {
        ggml_tensor * root = root_of(tensor);
        if (!std::binary_search(computed.begin(), computed.end(), root)) {
            rest.push_back(tensor);
        } else if (root->data == nullptr && root->buffer == nullptr &&
                   std::find(roots.begin(), roots.end(), root) == roots.end()) {
            const size_t padded_bytes = GGML_PAD(ggml_backend_buft_get_alloc_size(type, root), alignment);
            roots.push_back(root);
            size_bytes += padded_bytes;
            most_bytes = std::max(most_bytes, padded_bytes);
        }
    }
    const bool even = roots.size() * most_bytes <= max_even_bytes;
    if (!reserve(even ? roots.size() * most_bytes : size_bytes)) {
        return tensors;
    }
    size_t offset = 0;
    for (ggml_tensor * root : roots) {
        char * base = static_cast<char *>(ggml_backend_buffer_get_base(buffers.back().get()));
        ggml_backend_tensor_alloc(buffers.back().get(), root, base + offset);
        offset += even ? most_bytes : GGML_PAD(ggml_backend_buft_get_alloc_size(type, root), alignment);
    }
    return rest;
}

} // namespace moecache
