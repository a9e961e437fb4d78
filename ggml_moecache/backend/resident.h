// Residents: whole expert weights of the store that have a copy on the device (capacity `all`), slot = expert.
//
// A copy is as large as the canonical weight, in the same layout, so the graph runs on it unchanged: fusion, CUDA
// graphs and the split of MMQ's work, which depends on the number of matrices, are those of stock llama.cpp, and so are
// the bits. Contexts on one device share the copies of a weight; the last one to let go frees them.
#pragma once

#include "backend/device.h"

#include <memory>
#include <unordered_map>
#include <vector>

namespace moecache {

// One weight's copy on the device.
struct resident_weight {
    device_context *      device = nullptr;
    ggml_context *        ctx    = nullptr;
    ggml_tensor *         tensor = nullptr;
    ggml_backend_buffer_t buffer = nullptr;

    resident_weight() = default;
    ~resident_weight();
    resident_weight(const resident_weight &)             = delete;
    resident_weight & operator=(const resident_weight &) = delete;
};

class resident_set {
public:
    // The copy of `weight`, or nullptr.
    ggml_tensor * find(const ggml_tensor * weight) const;

    // Copy `weights` to the device: all of them or, when one does not fit, none. Bytes that had to be copied (not
    // shared with another context) are added to `copied_bytes`, their weights to `n_copied`. Returns false when there
    // is no room. The copies are complete on return.
    bool add(ggml_backend_dev_t dev, ggml_backend_t inner, const std::vector<const ggml_tensor *> & weights,
             uint64_t & copied_bytes, std::vector<const ggml_tensor *> & copied);

    uint64_t bytes() const { return total_bytes; }

    // Let go of copies whose canonical weights are gone (an adapter was freed): their addresses may come back with
    // other contents. Returns true when there were some: plans that name them must be forgotten.
    bool drop_freed();

private:
    std::unordered_map<const void *, std::shared_ptr<resident_weight>> weights; // by address of the canonical data
    uint64_t                                                           total_bytes  = 0;
    size_t                                                             n_freed_seen = 0; // ranges looked at
};

// A store buffer is being freed. REQUIRES: no graph that reads it is running.
void residents_store_freed(const void * base, size_t size_bytes);

} // namespace moecache
