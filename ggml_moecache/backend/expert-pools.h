// The memory of the slots on one device: for each layout of experts one tensor per role (gate, up, gate_up, down), of
// the same type, shape and stride as the weights, with ne[2] = slots. So GGML's own kernels multiply with it once the
// router ids are replaced by places in it, and read past its last matrix no further than past that of a weight.
//
// Behind the slots lie spare places filled with zeros, as many as an event has experts: rows that the device does not
// compute point there, each row of a token to another place (GGML's kernels assume that a token names no expert twice).
// What is computed there is overwritten.
//
// Made once per cache and constant after that, except for the weights in it.
#pragma once

#include "backend/device.h"
#include "core/cache-geometry.h"
#include "core/expert-name.h"

#include <array>
#include <cstdint>
#include <vector>

namespace moecache {

constexpr size_t n_expert_roles = 4;

// The canonical weights of one column, by role; nullptr: the model has none.
using column_weights = std::array<const ggml_tensor *, n_expert_roles>;

// One piece of an expert on its way to a slot.
struct expert_part {
    const char *  from;   // canonical weights
    ggml_tensor * to;     // pool
    size_t        offset; // in it
    size_t        size_bytes;
};

class expert_pools {
public:
    explicit expert_pools(ggml_backend_dev_t dev) : dev(dev) {}
    ~expert_pools();
    expert_pools(const expert_pools &)             = delete;
    expert_pools & operator=(const expert_pools &) = delete;

    // Number of the layout of each column, for column_info::layout.
    static std::vector<uint32_t> layouts(const std::vector<column_weights> & columns);

    // Device memory that one column's layout needs for `n_places` experts.
    static uint64_t layout_bytes(ggml_backend_dev_t dev, const column_weights & weights, uint64_t n_places);

    // Device memory of the whole: that of the slots of `geometry` and `n_spare` places per layout.
    static uint64_t total_bytes(ggml_backend_dev_t dev, const cache_geometry & geometry,
                                const std::vector<column_weights> & columns, uint32_t n_spare);

    // Take it. Returns false when the device has no room; then nothing is taken.
    bool allocate(ggml_backend_t inner, const cache_geometry & geometry, std::vector<column_weights> columns,
                  uint32_t n_spare);

    // The tensor that takes the place of `weight`, which belongs to `column`.
    ggml_tensor * tensor(uint32_t column, expert_role role) const {
        return pools[layout_of_column[column]].tensors[static_cast<size_t>(role)];
    }

    int32_t place_of_slot(uint32_t budget, uint32_t slot_of_budget) const {
        return static_cast<int32_t>(first_place[budget] + slot_of_budget);
    }
    int32_t spare_place(uint32_t column, uint32_t row) const {
        return static_cast<int32_t>(pools[layout_of_column[column]].n_slots + row);
    }

    // The copies that bring an expert of `column` to a place. Returns their number.
    size_t parts(uint32_t column, uint32_t expert, int32_t place, std::array<expert_part, n_expert_roles> & out) const;

    uint64_t size_bytes() const { return bytes; }

private:
    struct pool {
        uint32_t                                  n_slots = 0;
        std::array<ggml_tensor *, n_expert_roles> tensors {};
    };

    ggml_backend_dev_t          dev;
    std::vector<column_weights> weights;          // [columns]
    std::vector<uint32_t>       layout_of_column; // [columns]
    std::vector<uint32_t>       first_place;      // [budgets]
    std::vector<pool>           pools;            // [layouts]
    ggml_context *              ctx    = nullptr;
    ggml_backend_buffer_t       buffer = nullptr;
    uint64_t                    bytes  = 0;
};

} // namespace moecache
