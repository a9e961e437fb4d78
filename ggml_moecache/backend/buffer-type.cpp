#include "backend/buffer-type.h"

#include "backend/fallbacks.h"
#include "backend/resident.h"
#include "core/config.h"
#include "core/reasons.h"
#include "core/requirement.h"

namespace moecache {

static device_context * device_of(ggml_backend_buffer_type_t type) {
    return static_cast<device_context *>(type->context);
}

static ggml_backend_buffer_type_t inner_type(ggml_backend_buffer_type_t type) {
    return ggml_backend_dev_buffer_type(device_of(type)->inner);
}

// --- default type ---------------------------------------------------------------------------------------------------------------

static const char * default_get_name(ggml_backend_buffer_type_t type) {
    return device_of(type)->name.c_str();
}

// Only the stand-in's buffers: a GPU's driver knows what is used, and GGML recognises CUDA buffers by their free
// function.
static void standin_free_buffer(ggml_backend_buffer_t buffer) {
    device_context * device = device_of(buffer->buft);
    device->standin_used_bytes -= buffer->size;
    device->standin_free.load()(buffer);
}

static ggml_backend_buffer_t default_alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    device_context * device    = device_of(type);
    const uint64_t   allowance = device_allowance_bytes(device);
    if (size > allowance) {
        GGML_LOG_ERROR("moecache: %s: cannot allocate %.1f MiB: GGML_MOECACHE_DEVICE_MIB leaves %.1f MiB\n",
                       device->name.c_str(), size / 1048576.0, allowance / 1048576.0);
        return nullptr;
    }
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(inner_type(type), size);
    if (buffer == nullptr) {
        return nullptr;
    }
    buffer->buft = type;
    if (device->standin && buffer->iface.free_buffer != nullptr) {
        device->standin_free      = buffer->iface.free_buffer; // the same function for every CPU buffer
        buffer->iface.free_buffer = standin_free_buffer;
        device->standin_used_bytes += buffer->size;
    }
    return buffer;
}

static size_t default_get_alignment(ggml_backend_buffer_type_t type) {
    return ggml_backend_buft_get_alignment(inner_type(type));
}

static size_t default_get_max_size(ggml_backend_buffer_type_t type) {
    return ggml_backend_buft_get_max_size(inner_type(type));
}

static size_t default_get_alloc_size(ggml_backend_buffer_type_t type, const ggml_tensor * tensor) {
    return ggml_backend_buft_get_alloc_size(inner_type(type), tensor);
}

static bool default_is_host(ggml_backend_buffer_type_t type) {
    return !device_of(type)->standin && ggml_backend_buft_is_host(inner_type(type));
}

// --- store ----------------------------------------------------------------------------------------------------------------------

// A store buffer owns one host buffer, the inner device's pinned one when it can be had.
struct store_buffer {
    ggml_backend_buffer_t host   = nullptr;
    bool                  pinned = false;
};

// Pieces of this size are pinned one by one, so that a driver that pins only a part of the memory still helps. A tensor
// that is larger gets a piece of its own.
static const size_t store_piece_bytes = size_t(2) << 30;

static ggml_backend_buffer_t host_of(ggml_backend_buffer_t buffer) {
    return static_cast<store_buffer *>(buffer->context)->host;
}

static void store_free_buffer(ggml_backend_buffer_t buffer) {
    device_context * device = device_of(buffer->buft);
    store_buffer *   store  = static_cast<store_buffer *>(buffer->context);
    residents_store_freed(ggml_backend_buffer_get_base(store->host), buffer->size);
    device->store_bytes -= buffer->size;
    device->store_pinned_bytes -= store->pinned ? buffer->size : 0;
    ggml_backend_buffer_free(store->host);
    delete store;
}

static void * store_get_base(ggml_backend_buffer_t buffer) {
    return ggml_backend_buffer_get_base(host_of(buffer));
}

static void store_memset_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor, uint8_t value, size_t offset,
                                size_t size) {
    host_of(buffer)->iface.memset_tensor(host_of(buffer), tensor, value, offset, size);
}

static void store_set_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset,
                             size_t size) {
    host_of(buffer)->iface.set_tensor(host_of(buffer), tensor, data, offset, size);
}

static void store_get_tensor(ggml_backend_buffer_t buffer, const ggml_tensor * tensor, void * data, size_t offset,
                             size_t size) {
    host_of(buffer)->iface.get_tensor(host_of(buffer), tensor, data, offset, size);
}

static bool store_cpy_tensor(ggml_backend_buffer_t buffer, const ggml_tensor * src, ggml_tensor * dst) {
    return host_of(buffer)->iface.cpy_tensor(host_of(buffer), src, dst);
}

static void store_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    host_of(buffer)->iface.clear(host_of(buffer), value);
}

static const char * store_get_name(ggml_backend_buffer_type_t type) {
    return device_of(type)->store_name.c_str();
}

static ggml_backend_buffer_t store_alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    static const ggml_backend_buffer_i iface = {
        /* .free_buffer   = */ store_free_buffer,
        /* .get_base      = */ store_get_base,
        /* .init_tensor   = */ nullptr,
        /* .memset_tensor = */ store_memset_tensor,
        /* .set_tensor    = */ store_set_tensor,
        /* .get_tensor    = */ store_get_tensor,
        /* .set_tensor_2d = */ nullptr, // GGML falls back to set_tensor
        /* .get_tensor_2d = */ nullptr,
        /* .cpy_tensor    = */ store_cpy_tensor,
        /* .clear         = */ store_clear,
        /* .reset         = */ nullptr,
    };
    device_context *           device = device_of(type);
    ggml_backend_buffer_type_t pinned = ggml_backend_dev_host_buffer_type(device->inner);
    ggml_backend_buffer_t      host =
        ggml_backend_buft_alloc_buffer(pinned != nullptr ? pinned : ggml_backend_cpu_buffer_type(), size);
    if (host == nullptr) {
        return nullptr;
    }
    // GGML's CUDA host type hands out a CPU buffer without a word when pinning fails.
    store_buffer * store = new store_buffer;
    store->host          = host;
    store->pinned        = pinned != nullptr && host->buft == pinned;
    if (pinned != nullptr && !store->pinned && config_read().require) {
        complain(device->name + ": MOECACHE_REQUIRE=1: " + reason_name(reason::not_pinned) + ": " +
                 reason_text(reason::not_pinned));
        requirement_missed();
        ggml_backend_buffer_free(host);
        delete store;
        return nullptr;
    }
    device->reservation.loading();
    device->store_bytes += size;
    device->store_pinned_bytes += store->pinned ? size : 0;
    return ggml_backend_buffer_init(type, iface, store, size);
}

static size_t store_get_alignment(ggml_backend_buffer_type_t) {
    return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

static size_t store_get_max_size(ggml_backend_buffer_type_t) {
    return store_piece_bytes;
}

static bool store_is_host(ggml_backend_buffer_type_t) {
    return true;
}

// --- both -----------------------------------------------------------------------------------------------------------------------

void buffer_types_init(device_context * device, ggml_backend_dev_t dev) {
    device->default_type = {
        {
            /* .get_name       = */ default_get_name,
            /* .alloc_buffer   = */ default_alloc_buffer,
            /* .get_alignment  = */ default_get_alignment,
            /* .get_max_size   = */ default_get_max_size,
            /* .get_alloc_size = */ default_get_alloc_size,
            /* .is_host        = */ default_is_host,
        },
        dev,
        device,
    };
    device->store_type = {
        {
            /* .get_name       = */ store_get_name,
            /* .alloc_buffer   = */ store_alloc_buffer,
            /* .get_alignment  = */ store_get_alignment,
            /* .get_max_size   = */ store_get_max_size,
            /* .get_alloc_size = */ nullptr, // ggml_nbytes
            /* .is_host        = */ store_is_host,
        },
        dev,
        device,
    };
    device->extra_types[0] = &device->store_type;
}

bool buffer_type_is_default(ggml_backend_buffer_type_t type) {
    return type != nullptr && type->iface.get_name == default_get_name;
}

bool buffer_type_is_store(ggml_backend_buffer_type_t type) {
    return type != nullptr && type->iface.get_name == store_get_name;
}

bool buffer_type_is_ours(ggml_backend_buffer_type_t type) {
    return buffer_type_is_default(type) || buffer_type_is_store(type);
}

bool in_store(const ggml_tensor * weight, const device_context * device) {
    const ggml_backend_buffer_t buffer = buffer_of(weight);
    return buffer != nullptr && buffer->buft == &device->store_type;
}

inner_view::inner_view(const ggml_tensor * source) :
    tensor(*source), buffer(source->view_src != nullptr ? *source->view_src->buffer : *source->buffer) {
    buffer.buft     = inner_type(buffer.buft);
    tensor.buffer   = &buffer;
    tensor.view_src = nullptr; // `data` is absolute
}

} // namespace moecache
