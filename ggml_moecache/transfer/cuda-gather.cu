// The gather for CUDA devices: one kernel on a stream of its own, ordered with the inner backend's stream by events.
// That stream is not ours to launch on: GGML may be capturing it. The context of a CUDA backend's ggml_backend_event is
// a cudaEvent_t.
#include <cuda_runtime.h>

#include "backend/buffer-type.h"
#include "kernels/gather-rows.cuh"
#include "transfer/gather.h"

#include <cstring>

namespace moecache {

namespace {

class cuda_gather : public routing_gather {
public:
    cuda_gather(ggml_backend_dev_t dev, ggml_backend_t inner) : dev(dev), inner(inner) {}

    ~cuda_gather() override {
        ggml_backend_synchronize(inner);
        free_memory();
        for (size_t slot = 0; slot < n_slots; slot++) {
            ggml_backend_event_free(before[slot]);
            ggml_backend_event_free(after[slot]);
        }
        if (stream != nullptr) {
            cudaStreamDestroy(stream);
        }
    }

    bool init() {
        for (size_t slot = 0; slot < n_slots; slot++) {
            before[slot] = ggml_backend_event_new(device_get(dev)->inner);
            after[slot]  = ggml_backend_event_new(device_get(dev)->inner);
            if (before[slot] == nullptr || after[slot] == nullptr) {
                return false;
            }
        }
        return ggml_backend_dev_host_buffer_type(device_get(dev)->inner) != nullptr;
    }

    bool reserve(size_t size_bytes, size_t n_sources) override {
        free_memory();
        ggml_backend_buffer_type_t pinned = ggml_backend_dev_host_buffer_type(device_get(dev)->inner);
        slot_bytes                        = GGML_PAD(size_bytes, size_t(64));
        slot_entries                      = n_sources;
        const size_t table_bytes          = GGML_PAD(n_sources * sizeof(gather_rows_entry), size_t(64));
        buffer = ggml_backend_buft_alloc_buffer(pinned, n_slots * (slot_bytes + table_bytes));
        if (buffer == nullptr || buffer->buft != pinned) { // the kernel cannot write to memory that is not mapped
            free_memory();
            return false;
        }
        data  = static_cast<char *>(ggml_backend_buffer_get_base(buffer));
        table = reinterpret_cast<gather_rows_entry *>(data + n_slots * slot_bytes);
        return true;
    }

    bool start(size_t slot, const std::vector<gather_source> & sources) override {
        if (sources.size() > slot_entries || !use_device(sources)) {
            return false;
        }
        gather_rows_entry * entries = table + slot * slot_entries;
        for (size_t i = 0; i < sources.size(); i++) {
            const gather_source & s = sources[i];
            entries[i]              = { static_cast<const char *>(s.tensor->data), data + slot * slot_bytes + s.offset,
                                        s.stride_bytes, static_cast<uint32_t>(s.row_bytes), static_cast<uint32_t>(s.n_rows) };
        }
        inner->iface.event_record(inner, before[slot]);
        const bool launched =
            cudaStreamWaitEvent(stream, static_cast<cudaEvent_t>(before[slot]->context), 0) == cudaSuccess &&
            gather_rows(entries, static_cast<int>(sources.size()), stream) == cudaSuccess &&
            cudaEventRecord(static_cast<cudaEvent_t>(after[slot]->context), stream) == cudaSuccess;
        if (launched) { // the next graph may not overwrite what is being read
            inner->iface.event_wait(inner, after[slot]);
        }
        return launched;
    }

    void wait(size_t slot) override { ggml_backend_event_synchronize(after[slot]); }

    bool is_async() const override { return true; }

    bool ready(size_t slot) override {
        return cudaEventQuery(static_cast<cudaEvent_t>(after[slot]->context)) != cudaErrorNotReady;
    }

    const char * memory(size_t slot) const override { return data + slot * slot_bytes; }

    size_t size_bytes() const override { return slot_bytes; }

    size_t n_sources() const override { return slot_entries; }

private:
    void free_memory() {
        ggml_backend_buffer_free(buffer);
        buffer     = nullptr;
        data       = nullptr;
        slot_bytes = slot_entries = 0;
    }

    // Make the GPU of the tensors current and, the first time, a stream on it.
    bool use_device(const std::vector<gather_source> & sources) {
        if (device < 0) {
            cudaPointerAttributes attributes;
            if (sources.empty() || cudaPointerGetAttributes(&attributes, sources.front().tensor->data) != cudaSuccess) {
                return false;
            }
            device = attributes.device;
        }
        if (cudaSetDevice(device) != cudaSuccess) {
            return false;
        }
        return stream != nullptr || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess;
    }

    ggml_backend_dev_t    dev;
    ggml_backend_t        inner;
    ggml_backend_event_t  before[n_slots] = {};
    ggml_backend_event_t  after[n_slots]  = {};
    ggml_backend_buffer_t buffer          = nullptr;
    char *                data            = nullptr;
    gather_rows_entry *   table           = nullptr;
    size_t                slot_bytes      = 0;
    size_t                slot_entries    = 0;
    int                   device          = -1;
    cudaStream_t          stream          = nullptr;
};

} // namespace

std::unique_ptr<routing_gather> make_cuda_gather(ggml_backend_dev_t dev, ggml_backend_t inner) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device_get(dev)->inner);
    if (std::strcmp(ggml_backend_reg_name(reg), "CUDA") != 0) {
        return nullptr;
    }
    auto gather = std::make_unique<cuda_gather>(dev, inner);
    return gather->init() ? std::move(gather) : nullptr;
}

void cuda_versions(std::string & runtime, std::string & driver) {
    const auto text = [](int version) {
        return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    };
    int number = 0;
    runtime    = cudaRuntimeGetVersion(&number) == cudaSuccess ? text(number) : "";
    driver     = cudaDriverGetVersion(&number) == cudaSuccess ? text(number) : "";
}

} // namespace moecache
