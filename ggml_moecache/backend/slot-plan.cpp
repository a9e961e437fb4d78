#include "backend/slot-plan.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

namespace moecache {

std::string slot_plan::read(const std::vector<const ggml_tensor *> & weights, bool per_layer, uint32_t n_used) {
    n_spare = n_used;
    std::map<std::pair<int, int>, column_weights> found;
    for (const ggml_tensor * weight : weights) {
        expert_name name;
        if (expert_name_parse(weight->name, name)) {
            found[{ name.layer, name.family }][static_cast<size_t>(name.role)] = weight;
        }
    }
    std::vector<column_info> infos;
    for (const auto & entry : found) {
        if (entry.second[static_cast<size_t>(expert_role::down)] == nullptr) {
            continue;
        }
        column_info info;
        info.layer_id = entry.first.first;
        info.family   = expert_family_name(entry.first.second);
        for (const ggml_tensor * weight : entry.second) {
            if (weight != nullptr) {
                info.n_experts = static_cast<uint32_t>(weight->ne[2]);
                info.expert_bytes += weight->nb[2];
            }
        }
        columns.push_back(entry.second);
        infos.push_back(info);
    }
    if (infos.empty()) {
        return "no layer has its ffn_down_exps in the store";
    }
    const std::vector<uint32_t> layouts = expert_pools::layouts(columns);
    for (size_t i = 0; i < infos.size(); i++) {
        infos[i].layout = layouts[i];
    }
    geometry = cache_geometry::make(std::move(infos), per_layer);
    return "";
}

uint64_t slot_plan::total_bytes(ggml_backend_dev_t dev) const {
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(dev);
    return expert_pools::total_bytes(dev, geometry, columns, n_spare) +
           GGML_PAD(place_bytes(), ggml_backend_buft_get_alignment(type));
}

static std::string size_text(uint64_t bytes) {
    char       text[32];
    const bool small = bytes < (uint64_t(1) << 20);
    snprintf(text, sizeof(text), small ? "%.1f KiB" : "%.1f MiB",
             static_cast<double>(bytes) / (small ? 1 << 10 : 1 << 20));
    return text;
}

std::string slot_plan::no_room(const std::string & device, const config & settings, uint64_t free_bytes,
                               uint64_t spare_bytes) const {
    uint64_t smallest = UINT64_MAX;
    for (const column_info & column : geometry.columns) {
        smallest = std::min(smallest, column.expert_bytes);
    }
    std::string text =
        "capacity " + settings.capacity.text + " has no room for a slot on " + device + ": an expert has " +
        size_text(smallest) +
        (settings.per_layer ? " and each of " + std::to_string(geometry.columns.size()) + " layers gets the same part" :
                              "") +
        ", " + size_text(free_bytes) + " are free, " + size_text(spare_bytes) + " of them for the rows that miss";
    if (settings.capacity.kind == capacity_kind::automatic) {
        text += " and " + size_text(settings.reserve_bytes) + " kept (GGML_MOECACHE_RESERVE_MIB)";
    }
    return text;
}

std::string slot_plan::choose(ggml_backend_dev_t dev, const config & settings, uint64_t free_bytes,
                              std::string & fewer) {
    const uint64_t        reserve     = settings.capacity.kind == capacity_kind::automatic ? settings.reserve_bytes : 0;
    const uint64_t        spare_bytes = total_bytes(dev); // no slots yet
    uint64_t              limit       = free_bytes > reserve + spare_bytes ? free_bytes - reserve - spare_bytes : 0;
    std::vector<uint32_t> slots;
    std::string           error = settings.capacity.slots(geometry, settings.per_layer, limit, slots);
    bool                  fills = settings.capacity.kind == capacity_kind::automatic; // the slots are those of `limit`
    for (;;) {
        if (error.empty()) {
            error = geometry.set_slots(slots);
        }
        const uint64_t needed = error.empty() ? total_bytes(dev) : 0;
        if (!error.empty() || needed + reserve <= free_bytes || limit == 0) {
            break;
        }
        if (settings.capacity.kind != capacity_kind::automatic && fewer.empty()) {
            fewer = "capacity " + settings.capacity.text + " needs " + size_text(needed) + " on " +
                    device_get(dev)->name + ", " + size_text(free_bytes) + " are free";
        }
        if (std::exchange(fills, true)) { // alignment and padding take more than the experts themselves
            limit -= std::min(limit, needed + reserve - free_bytes);
        }
        capacity_setting smaller;
        smaller.kind   = capacity_kind::bytes;
        smaller.amount = static_cast<double>(limit);
        error          = smaller.slots(geometry, settings.per_layer, limit, slots);
    }
    if (error.empty() && geometry.most_slots() == 0) {
        return no_room(device_get(dev)->name, settings, free_bytes, spare_bytes);
    }
    return error;
}

} // namespace moecache
