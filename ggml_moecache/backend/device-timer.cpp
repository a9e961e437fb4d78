#include "backend/device-timer.h"

#include "backend/device.h"
#include "core/clock.h"
#include "transfer/cuda-events.h"

#include <cstring>
#include <utility>

namespace moecache {

bool device_timer::has_events(ggml_backend_dev_t dev) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device_get(dev)->inner);
    return cuda_events_known() && std::strcmp(ggml_backend_reg_name(reg), "CUDA") == 0;
}

std::unique_ptr<device_timer> device_timer::make(ggml_backend_dev_t dev, ggml_backend_t inner, size_t n_columns,
                                                 std::string & why) {
    const device_context *        device = device_get(dev);
    std::unique_ptr<device_timer> made(new device_timer(device->inner, inner, device->standin));
    made->parts.resize(n_columns);
    if (device->standin) {
        return made;
    }
    if (!has_events(dev)) {
        why = "this build of the library knows no CUDA";
        return nullptr;
    }
    ggml_backend_dev_props props = {};
    ggml_backend_dev_get_props(device->inner, &props);
    made->bus_id  = props.device_id != nullptr ? props.device_id : "";
    made->ties[0] = made->make_event();
    made->ties[1] = made->make_event();
    bool complete = made->ties[0] != nullptr && made->ties[1] != nullptr;
    for (part & p : made->parts) {
        p.begin  = made->make_event();
        p.end    = made->make_event();
        complete = complete && p.begin != nullptr && p.end != nullptr;
    }
    if (!complete) {
        why = "CUDA gives no events with a time for " + device_get(dev)->name;
        return nullptr;
    }
    return made;
}

device_timer::~device_timer() {
    for (const part & p : parts) {
        ggml_backend_event_free(p.begin);
        ggml_backend_event_free(p.end);
    }
    ggml_backend_event_free(ties[0]);
    ggml_backend_event_free(ties[1]);
}

ggml_backend_event_t device_timer::make_event() const {
    ggml_backend_event_t event = ggml_backend_event_new(device);
    if (event != nullptr && !cuda_event_keep_time(event->context, bus_id.c_str())) {
        ggml_backend_event_free(event);
        return nullptr;
    }
    return event;
}

// --- tie the clocks -----------------------------------------------------------------------------------------------------------------

void device_timer::before_wait() {
    if (tie == tie_state::wanted && !host_clock) {
        inner->iface.event_record(inner, ties[1]);
        tie = tie_state::recorded;
    }
}

void device_timer::after_wait() {
    if (tie == tie_state::recorded) {
        tied_ns = monotonic_ns();
        std::swap(ties[0], ties[1]);
        tie = tie_state::done;
    }
}

uint64_t device_timer::host_ns(ggml_backend_event_t event) const {
    double ns = 0;
    if (tied_ns == 0 || !cuda_event_elapsed(ties[0]->context, event->context, ns)) {
        return 0;
    }
    return static_cast<uint64_t>(static_cast<int64_t>(tied_ns) + static_cast<int64_t>(ns));
}

uint64_t device_timer::between_ns(ggml_backend_event_t from, ggml_backend_event_t to) {
    double ns = 0;
    return cuda_event_elapsed(from->context, to->context, ns) && ns > 0 ? static_cast<uint64_t>(ns) : 0;
}

// --- parts --------------------------------------------------------------------------------------------------------------------------

void device_timer::begin(size_t column) {
    part & p = parts[column];
    if (host_clock) {
        p.begin_ns = monotonic_ns();
    } else {
        inner->iface.event_record(inner, p.begin);
    }
}

void device_timer::end(size_t column) {
    part & p = parts[column];
    p.ran    = true;
    if (host_clock) {
        p.ns = monotonic_ns() - p.begin_ns;
    } else {
        inner->iface.event_record(inner, p.end);
    }
}

uint64_t device_timer::take(size_t column) {
    part & p = parts[column];
    if (!p.ran) {
        return 0;
    }
    p.ran = false;
    return host_clock ? p.ns : between_ns(p.begin, p.end);
}

} // namespace moecache
