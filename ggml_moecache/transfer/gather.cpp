#include "transfer/gather.h"

#include "backend/buffer-type.h"
#include "transfer/cuda-events.h"

#include <cstring>

namespace moecache {

// --- merge ----------------------------------------------------------------------------------------------------------------------

// Far below the limit of CUDA's two-dimensional copies (2 GiB), far above any distance in the recorder's own memory.
static const size_t max_stride_bytes = size_t(64) << 20;

static gather_run run_of(const gather_source & source) {
    const bool packed = source.stride_bytes == source.row_bytes;
    gather_run run;
    run.buffer       = buffer_of(source.tensor);
    run.data         = static_cast<const char *>(source.tensor->data);
    run.row_bytes    = packed ? source.row_bytes * source.n_rows : source.row_bytes;
    run.n_rows       = packed ? 1 : source.n_rows;
    run.stride_bytes = packed ? run.row_bytes : source.stride_bytes;
    run.offset       = source.offset;
    return run;
}

// Whether `next` goes on where `run` ends, on both sides; then it becomes part of it.
static bool merge(gather_run & run, const gather_run & next) {
    if (run.buffer != next.buffer || run.row_bytes != next.row_bytes || next.data <= run.data ||
        next.offset != run.offset + run.n_rows * run.row_bytes) {
        return false;
    }
    const size_t distance = static_cast<size_t>(next.data - run.data);
    const size_t stride   = run.n_rows == 1 ? distance : run.stride_bytes; // a single row has none of its own
    if (distance != run.n_rows * stride || (next.n_rows > 1 && next.stride_bytes != stride) || stride < run.row_bytes ||
        stride > max_stride_bytes) {
        return false;
    }
    run.stride_bytes = stride;
    run.n_rows += next.n_rows;
    return true;
}

std::vector<gather_run> gather_merge(const std::vector<gather_source> & sources) {
    std::vector<gather_run> runs;
    for (const gather_source & source : sources) {
        if (source.n_rows == 0 || source.row_bytes == 0) {
            continue;
        }
        const gather_run next = run_of(source);
        if (runs.empty() || !merge(runs.back(), next)) {
            runs.push_back(next);
        }
    }
    return runs;
}

// --- copies ---------------------------------------------------------------------------------------------------------------------

routing_gather::routing_gather(ggml_backend_dev_t dev, ggml_backend_t inner) : dev(dev), inner(inner) {
    if (inner->iface.event_record == nullptr) {
        return;
    }
    for (ggml_backend_event_t & event : copied) {
        event = ggml_backend_event_new(device_get(dev)->inner);
    }
}

routing_gather::~routing_gather() {
    ggml_backend_synchronize(inner);
    ggml_backend_buffer_free(buffer);
    for (ggml_backend_event_t event : copied) {
        ggml_backend_event_free(event);
    }
}

bool routing_gather::reserve(size_t size_bytes) {
    ggml_backend_buffer_free(buffer);
    ggml_backend_buffer_type_t pinned = ggml_backend_dev_host_buffer_type(device_get(dev)->inner);
    slot_bytes                        = GGML_PAD(size_bytes, size_t(64));
    buffer = ggml_backend_buft_alloc_buffer(pinned != nullptr ? pinned : ggml_backend_cpu_buffer_type(),
                                            n_slots * slot_bytes);
    base       = buffer != nullptr ? static_cast<char *>(ggml_backend_buffer_get_base(buffer)) : nullptr;
    slot_bytes = buffer != nullptr ? slot_bytes : 0;
    return buffer != nullptr;
}

void routing_gather::start(size_t slot, const std::vector<gather_run> & runs) {
    for (const gather_run & run : runs) {
        ggml_tensor span = {}; // GGML copies out of tensors: this one is the memory from the first row to the last
        span.type        = GGML_TYPE_I8;
        span.ne[0]       = static_cast<int64_t>((run.n_rows - 1) * run.stride_bytes + run.row_bytes);
        span.ne[1] = span.ne[2] = span.ne[3] = 1;
        span.nb[0]                           = 1;
        span.nb[1] = span.nb[2] = span.nb[3] = static_cast<size_t>(span.ne[0]);
        span.buffer                          = run.buffer;
        span.data                            = const_cast<char *>(run.data);
        inner_view view(&span);
        ggml_backend_tensor_get_2d_async(inner, &view.tensor, base + slot * slot_bytes + run.offset, 0, run.row_bytes,
                                         run.n_rows, run.stride_bytes, run.row_bytes);
    }
    if (copied[slot] != nullptr) {
        inner->iface.event_record(inner, copied[slot]);
    }
}

void routing_gather::wait(size_t slot) {
    if (copied[slot] != nullptr) {
        ggml_backend_event_synchronize(copied[slot]);
    } else {
        ggml_backend_synchronize(inner);
    }
}

bool routing_gather::is_async() const {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device_get(dev)->inner);
    return cuda_events_known() && copied[0] != nullptr && std::strcmp(ggml_backend_reg_name(reg), "CUDA") == 0;
}

bool routing_gather::ready(size_t slot) const {
    return cuda_event_ready(copied[slot]->context);
}

} // namespace moecache
