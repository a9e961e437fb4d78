#include "backend/expert-pools.h"

#include "backend/buffer-type.h"

#include <algorithm>

namespace moecache {

expert_pools::~expert_pools() {
    if (buffer != nullptr) {
        device_get(dev)->resident_bytes -= bytes;
        ggml_backend_buffer_free(buffer);
    }
    ggml_free(ctx);
}

static bool same_layout(const column_weights & a, const column_weights & b) {
    for (size_t role = 0; role < n_expert_roles; role++) {
        const ggml_tensor * x = a[role];
        const ggml_tensor * y = b[role];
        if ((x == nullptr) != (y == nullptr)) {
            return false;
        }
        if (x != nullptr && (x->type != y->type || x->ne[0] != y->ne[0] || x->ne[1] != y->ne[1] ||
                             x->nb[1] != y->nb[1] || x->nb[2] != y->nb[2])) {
            return false;
        }
    }
    return true;
}

std::vector<uint32_t> expert_pools::layouts(const std::vector<column_weights> & columns) {
    std::vector<const column_weights *> known;
    std::vector<uint32_t>               result;
    for (const column_weights & column : columns) {
        const auto same = std::find_if(known.begin(), known.end(),
                                       [&](const column_weights * other) { return same_layout(column, *other); });
        result.push_back(static_cast<uint32_t>(same - known.begin()));
        if (same == known.end()) {
            known.push_back(&column);
        }
    }
    return result;
}

// A tensor like `weight` with another number of experts; data and buffer are for the caller to set.
static ggml_tensor shaped_as(const ggml_tensor * weight, uint64_t n_places) {
    ggml_tensor tensor = *weight;
    tensor.buffer      = nullptr;
    tensor.data        = nullptr;
    tensor.extra       = nullptr;
    tensor.ne[2]       = static_cast<int64_t>(n_places);
    tensor.nb[3]       = tensor.nb[2] * n_places;
    return tensor;
}

uint64_t expert_pools::layout_bytes(ggml_backend_dev_t dev, const column_weights & weights, uint64_t n_places) {
    ggml_backend_buffer_type_t type      = ggml_backend_dev_buffer_type(dev);
    const size_t               alignment = ggml_backend_buft_get_alignment(type);
    uint64_t                   bytes     = 0;
    for (const ggml_tensor * weight : weights) {
        if (weight != nullptr) {
            const ggml_tensor tensor = shaped_as(weight, n_places);
            bytes += GGML_PAD(ggml_backend_buft_get_alloc_size(type, &tensor), alignment);
        }
    }
    return bytes;
}

// Per layout: the first column that has it, and the slots of all budgets that have it.
struct layout_use {
    size_t   column  = SIZE_MAX;
    uint32_t n_slots = 0;
};

static std::vector<layout_use> uses_of(const cache_geometry & geometry) {
    std::vector<layout_use> uses;
    std::vector<bool>       counted(geometry.n_budgets(), false);
    for (size_t column = 0; column < geometry.columns.size(); column++) {
        const uint32_t layout = geometry.columns[column].layout;
        const uint32_t budget = geometry.budget_of_column[column];
        uses.resize(std::max<size_t>(uses.size(), layout + 1));
        uses[layout].column = std::min(uses[layout].column, column);
        uses[layout].n_slots += counted[budget] ? 0 : geometry.slots_of_budget[budget];
        counted[budget] = true;
    }
    return uses;
}

uint64_t expert_pools::total_bytes(ggml_backend_dev_t dev, const cache_geometry & geometry,
                                   const std::vector<column_weights> & columns, uint32_t n_spare) {
    uint64_t bytes = 0;
    for (const layout_use & use : uses_of(geometry)) {
        bytes += layout_bytes(dev, columns[use.column], uint64_t(use.n_slots) + n_spare);
    }
    return bytes;
}

bool expert_pools::allocate(ggml_backend_t inner, const cache_geometry & geometry, std::vector<column_weights> columns,
                            uint32_t n_spare) {
    const uint64_t needed_bytes = total_bytes(dev, geometry, columns, n_spare);
    if (needed_bytes > device_allowance_bytes(device_get(dev))) {
        return false;
    }
    const std::vector<layout_use> uses = uses_of(geometry);
    ctx = ggml_init({ uses.size() * n_expert_roles * ggml_tensor_overhead(), nullptr, /* no_alloc = */ true });
    if (ctx == nullptr) {
        return false;
    }
    pools.resize(uses.size());
    for (size_t layout = 0; layout < uses.size(); layout++) {
        pools[layout].n_slots = uses[layout].n_slots;
        for (size_t role = 0; role < n_expert_roles; role++) {
            const ggml_tensor * weight = columns[uses[layout].column][role];
            if (weight != nullptr) {
                pools[layout].tensors[role] = ggml_new_tensor_3d(ctx, weight->type, weight->ne[0], weight->ne[1],
                                                                 int64_t(uses[layout].n_slots) + n_spare);
                ggml_format_name(pools[layout].tensors[role], "moecache-slots-%zu-%zu", layout, role);
            }
        }
    }
    buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, ggml_backend_dev_buffer_type(dev));
    if (buffer == nullptr) {
        return false;
    }
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(buffer, 0); // the spare places, and slots that nothing was copied to
    ggml_backend_synchronize(inner);
    bytes = ggml_backend_buffer_get_size(buffer);
    device_get(dev)->resident_bytes += bytes;

    weights = std::move(columns);
    std::vector<uint32_t> used(pools.size(), 0);
    first_place.assign(geometry.n_budgets(), 0);
    std::vector<bool> placed(geometry.n_budgets(), false);
    for (size_t column = 0; column < weights.size(); column++) {
        const uint32_t layout = geometry.columns[column].layout;
        const uint32_t budget = geometry.budget_of_column[column];
        layout_of_column.push_back(layout);
        if (!placed[budget]) {
            first_place[budget] = used[layout];
            used[layout] += geometry.slots_of_budget[budget];
            placed[budget] = true;
        }
    }
    return true;
}

size_t expert_pools::parts(uint32_t column, uint32_t expert, int32_t place,
                           std::array<expert_part, n_expert_roles> & out) const {
    size_t n = 0;
    for (size_t role = 0; role < n_expert_roles; role++) {
        const ggml_tensor * weight = weights[column][role];
        if (weight != nullptr) {
            const size_t size = weight->nb[2];
            out[n++]          = { static_cast<const char *>(weight->data) + expert * size,
                                  tensor(column, static_cast<expert_role>(role)), static_cast<size_t>(place) * size, size };
        }
    }
    return n;
}

} // namespace moecache
