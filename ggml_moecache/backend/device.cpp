#include "backend/device.h"

#include "backend/backend.h"
#include "backend/buffer-type.h"
#include "core/config.h"
#include "core/expert-name.h"

#include <algorithm>
#include <cstring>

namespace moecache {

device_context * device_get(ggml_backend_dev_t device) {
    return static_cast<device_context *>(device->context);
}

static ggml_backend_dev_t inner_of(ggml_backend_dev_t device) {
    return device_get(device)->inner;
}

// --- memory -------------------------------------------------------------------------------------------------------------------

// What has been taken of a capped device since it was first looked at.
static uint64_t used_bytes(device_context * device, uint64_t inner_free) {
    if (device->standin) {
        return device->standin_used_bytes;
    }
    uint64_t expected = 0;
    device->uncapped_free_bytes.compare_exchange_strong(expected, inner_free);
    const uint64_t before = device->uncapped_free_bytes;
    return before > inner_free ? before - inner_free : 0;
}

uint64_t device_allowance_bytes(device_context * device) {
    const uint64_t cap = config_device_cap_bytes();
    if (cap == 0) {
        return SIZE_MAX;
    }
    size_t free  = 0;
    size_t total = 0;
    ggml_backend_dev_memory(device->inner, &free, &total);
    const uint64_t used = used_bytes(device, free);
    return cap > used ? cap - used : 0;
}

static void device_get_memory(ggml_backend_dev_t dev, size_t * free, size_t * total) {
    device_context * device = device_get(dev);
    ggml_backend_dev_memory(device->inner, free, total);
    uint64_t       available = *free;
    const uint64_t used      = used_bytes(device, *free);
    const uint64_t cap       = config_device_cap_bytes();
    if (device->standin) { // the CPU reports all memory as free, always
        available = *total > used ? *total - used : 0;
    }
    if (cap != 0) {
        *total    = std::min<uint64_t>(*total, cap);
        available = std::min(available, cap > used ? cap - used : 0);
    }
    // `all` that cannot fit is refused at the first graph; reserving for it would only drive layers off the device.
    // Never 0: llama.cpp divides the layers by the sum of what is free and fails to load the model when that is 0.
    const uint64_t reserved = device->reservation.bytes(dev, available);
    *free                   = available > reserved ? available - reserved : available;
}

// --- which operations -----------------------------------------------------------------------------------------------------------

// The loader asks with a dummy operation whose weight sits in an empty buffer of no usage yet.
static bool is_loader_probe(const ggml_tensor * weight) {
    return weight->buffer != nullptr && weight->buffer->size == 0 &&
           weight->buffer->usage == GGML_BACKEND_BUFFER_USAGE_ANY;
}

static bool device_supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    device_context * device = device_get(dev);
    if (op->op == GGML_OP_MUL_MAT_ID) {
        const ggml_tensor *         weight = op->src[0];
        const ggml_backend_buffer_t buffer = buffer_of(weight);
        if (buffer != nullptr && buffer->buft == &device->store_type) {
            if (is_loader_probe(weight)) {
                device->reservation.ask_expert(weight, static_cast<uint32_t>(op->src[2]->ne[0]));
            }
            return true; // the CPU computes it for every type that GGML has
        }
        // Refused on the device's own type, so that the loader goes on to the store. Matrices of one expert (per-expert
        // scales are asked for in this way too) are no expert tensors.
        if (buffer != nullptr && buffer->buft == &device->default_type && is_loader_probe(weight) &&
            weight->ne[2] > 1) {
            return false;
        }
    }
    const ggml_backend_buffer_t own = buffer_of(op);
    for (int i = -1; i < GGML_MAX_SRC; i++) {
        const ggml_backend_buffer_t buffer = i < 0 ? own : op->src[i] != nullptr ? buffer_of(op->src[i]) : nullptr;
        if (buffer == nullptr) {
            continue;
        }
        if (buffer_type_is_store(buffer->buft) && !(is_view_op(op->op) && buffer->buft == &device->store_type)) {
            return false; // experts are read by MUL_MAT_ID only; the CPU reads the store for everything else
        }
        if (buffer_type_is_default(buffer->buft) && buffer->buft != &device->default_type) {
            return false; // memory of another GPU (the inner device checks this by a type that ours hides from it)
        }
    }
    if (!ggml_backend_dev_supports_op(device->inner, op)) {
        return false;
    }
    for (const ggml_tensor * src : op->src) {
        if (src != nullptr && is_loader_probe(src) && src->buffer->buft == &device->default_type) {
            device->reservation.ask_other(src);
        }
    }
    return true;
}

static bool device_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t type) {
    device_context * device = device_get(dev);
    if (type == &device->default_type || type == &device->store_type) {
        return true;
    }
    // The inner device's own type is refused although its memory is the same: the scheduler would neither copy nor
    // synchronize between the two backends. The stand-in refuses the CPU's types, or the CPU's layers would run on it.
    if (device->standin || type == ggml_backend_dev_buffer_type(device->inner) || buffer_type_is_ours(type)) {
        return false;
    }
    return ggml_backend_dev_supports_buft(device->inner, type);
}

static bool device_offload_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    return ggml_backend_dev_offload_op(inner_of(dev), op);
}

// --- the rest of the table ------------------------------------------------------------------------------------------------------

static const char * device_get_name(ggml_backend_dev_t dev) {
    return device_get(dev)->name.c_str();
}

static const char * device_get_description(ggml_backend_dev_t dev) {
    return device_get(dev)->description.c_str();
}

static enum ggml_backend_dev_type device_get_type(ggml_backend_dev_t dev) {
    const enum ggml_backend_dev_type type = ggml_backend_dev_type(inner_of(dev));
    return type == GGML_BACKEND_DEVICE_TYPE_CPU ? GGML_BACKEND_DEVICE_TYPE_GPU : type;
}

static void device_get_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    device_context * device = device_get(dev);
    *props                  = {}; // the CPU leaves device_id unset
    ggml_backend_dev_get_props(device->inner, props);
    props->name        = device->name.c_str();
    props->description = device->description.c_str();
    props->type        = device_get_type(dev);
    device_get_memory(dev, &props->memory_free, &props->memory_total);
    props->caps.buffer_from_host_ptr = false; // it would put mapped weights on the device past the store
}

static ggml_backend_t device_init_backend(ggml_backend_dev_t dev, const char * params) {
    return backend_create(dev, params);
}

static ggml_backend_buffer_type_t device_get_buffer_type(ggml_backend_dev_t dev) {
    return &device_get(dev)->default_type;
}

static ggml_backend_buffer_type_t device_get_host_buffer_type(ggml_backend_dev_t dev) {
    return ggml_backend_dev_host_buffer_type(inner_of(dev));
}

// Events are the inner device's: their `device` is the inner one, so that GGML frees and waits for them there.
static ggml_backend_event_t device_event_new(ggml_backend_dev_t dev) {
    return ggml_backend_event_new(inner_of(dev));
}

static void device_event_free(ggml_backend_dev_t dev, ggml_backend_event_t event) {
    inner_of(dev)->iface.event_free(inner_of(dev), event);
}

static void device_event_synchronize(ggml_backend_dev_t dev, ggml_backend_event_t event) {
    inner_of(dev)->iface.event_synchronize(inner_of(dev), event);
}

bool device_is_ours(ggml_backend_dev_t device) {
    return device != nullptr && device->iface.get_name == device_get_name;
}

ggml_backend_dev_t device_create(ggml_backend_reg_t reg, ggml_backend_dev_t inner, int index, bool standin) {
    const bool            events = inner->iface.event_new != nullptr;
    ggml_backend_device_i iface  = {
        /* .get_name             = */ device_get_name,
        /* .get_description      = */ device_get_description,
        /* .get_memory           = */ device_get_memory,
        /* .get_type             = */ device_get_type,
        /* .get_props            = */ device_get_props,
        /* .init_backend         = */ device_init_backend,
        /* .get_buffer_type      = */ device_get_buffer_type,
        /* .get_host_buffer_type = */ inner->iface.get_host_buffer_type != nullptr ? device_get_host_buffer_type :
                                                                                      nullptr,
        /* .buffer_from_host_ptr = */ nullptr, // see device_get_props
        /* .supports_op          = */ device_supports_op,
        /* .supports_buft        = */ device_supports_buft,
        /* .offload_op           = */ inner->iface.offload_op != nullptr ? device_offload_op : nullptr,
        /* .event_new            = */ events ? device_event_new : nullptr,
        /* .event_free           = */ events ? device_event_free : nullptr,
        /* .event_synchronize    = */ events ? device_event_synchronize : nullptr,
    };
    device_context * device = new device_context;
    device->inner           = inner;
    device->name            = "MoECache" + std::to_string(index);
    device->description =
        std::string("expert cache over ") + ggml_backend_dev_description(inner) + (standin ? " (stand-in)" : "");
    device->store_name     = device->name + "_Host";
    device->standin        = standin;
    ggml_backend_dev_t dev = new ggml_backend_device { iface, reg, device };
    buffer_types_init(device, dev);
    return dev;
}

} // namespace moecache
