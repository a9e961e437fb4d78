// What a capacity makes of a model's experts on one device: columns, budgets, number of slots, device memory. The cache
// is made from it, and before there is a cache the device reserves its memory by it.
#pragma once

#include "backend/expert-pools.h"
#include "core/config.h"

#include <string>
#include <vector>

namespace moecache {

struct slot_plan {
    cache_geometry              geometry;
    std::vector<column_weights> columns;     // [columns]
    uint32_t                    n_spare = 0; // places per layout beside the slots, the largest top-k

    static constexpr uint32_t max_tokens = max_ubatch_tokens;

    // The columns of `weights`: a layer without `down` is left out, the user has placed it elsewhere. Returns "" or
    // that there are none.
    std::string read(const std::vector<const ggml_tensor *> & weights, bool per_layer, uint32_t n_used);

    // As many slots as the capacity asks for or, where `free_bytes` has no room for them, as fit. Returns "" or why
    // there are none; `fewer` is set when there are fewer than asked for. `auto` leaves its reserve of `free_bytes`.
    std::string choose(ggml_backend_dev_t dev, const config & settings, uint64_t free_bytes, std::string & fewer);

    // Device memory of all of it.
    uint64_t total_bytes(ggml_backend_dev_t dev) const;

    // Bytes of the router ids as places of one column, and of all.
    uint64_t place_bytes_of_column() const { return uint64_t(max_tokens) * n_spare * sizeof(int32_t); }
    uint64_t place_bytes() const { return geometry.columns.size() * place_bytes_of_column(); }

private:
    std::string no_room(const std::string & device, const config & settings, uint64_t free_bytes,
                        uint64_t spare_bytes) const;
};

} // namespace moecache
