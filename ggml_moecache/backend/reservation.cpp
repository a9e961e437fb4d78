#include "backend/reservation.h"

#include "backend/device.h"
#include "backend/slot-plan.h"
#include "core/config.h"

#include <algorithm>
#include <iterator>

namespace moecache {

void expert_reservation::ask_expert(const ggml_tensor * weight, uint32_t n) {
    std::lock_guard<std::mutex> lock(mutex);
    expert_name                 name;
    const int                   layer = expert_name_parse(weight->name, name) ? name.layer : last_layer;
    if (!pending || layer < last_layer || weights.count(weight->name) != 0) { // another load begins
        weights.clear();
        n_used = 0;
        for (auto it = others.begin(); it != others.end();) { // those of no layer are asked about first
            it = it->first.find("blk.") == 0 ? others.erase(it) : std::next(it);
        }
    }
    last_layer          = layer;
    pending             = true;
    n_used              = std::max(n_used, n);
    ggml_tensor & shape = weights[weight->name] = *weight;
    shape.buffer                                = nullptr; // it lives for the question only
    shape.data                                  = nullptr;
    shape.view_src                              = nullptr;
}

void expert_reservation::ask_other(const ggml_tensor * weight) {
    std::lock_guard<std::mutex> lock(mutex);
    others[weight->name] = ggml_nbytes(weight);
}

void expert_reservation::loading() {
    std::lock_guard<std::mutex> lock(mutex);
    pending = false;
}

uint64_t expert_reservation::share_bytes(const config & settings, uint64_t available_bytes) const {
    uint64_t taken = working_room_bytes;
    for (const auto & other : others) {
        taken += pending ? other.second : 0;
    }
    return available_bytes > taken ? static_cast<uint64_t>(settings.expert_share * (available_bytes - taken)) : 0;
}

uint64_t expert_reservation::slot_bytes(ggml_backend_dev_t dev, uint64_t available_bytes) {
    std::vector<const ggml_tensor *> shapes;
    for (const auto & weight : weights) {
        shapes.push_back(&weight.second);
    }
    const config settings = config_read();
    slot_plan    plan;
    std::string  fewer;
    if (!plan.read(shapes, settings.per_layer, n_used).empty()) {
        return 0;
    }
    slot_plan every = plan;
    every.geometry.set_slots(every.geometry.items_of_budget);
    const uint64_t share = std::min(every.total_bytes(dev), share_bytes(settings, available_bytes));
    if (settings.capacity.kind == capacity_kind::automatic) {
        return share;
    }
    if (!plan.choose(dev, settings, UINT64_MAX / 2, fewer).empty()) {
        return 0; // a setting that does not fit the model: there will be no cache, which is said then
    }
    const uint64_t wanted_bytes = plan.total_bytes(dev);
    return wanted_bytes < available_bytes ? wanted_bytes : share;
}

uint64_t expert_reservation::bytes(ggml_backend_dev_t dev, uint64_t available_bytes) {
    device_context *            device   = device_get(dev);
    const capacity_setting      capacity = config_read().capacity;
    const uint64_t              resident = device->resident_bytes;
    std::lock_guard<std::mutex> lock(mutex);
    if (capacity.none() || (!pending && device->store_bytes == 0)) {
        return 0;
    }
    uint64_t needed = 0;
    if (capacity.partial()) {
        needed = slot_bytes(dev, available_bytes + resident);
    } else {
        needed = device->store_bytes;
        for (const auto & weight : weights) {
            needed += pending ? ggml_nbytes(&weight.second) : 0;
        }
    }
    return needed > resident ? needed - resident : 0;
}

} // namespace moecache
