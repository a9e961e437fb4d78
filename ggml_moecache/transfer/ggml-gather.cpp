#include "backend/buffer-type.h"
#include "transfer/gather.h"

namespace moecache {

namespace {

class ggml_gather : public routing_gather {
public:
    ggml_gather(ggml_backend_dev_t dev, ggml_backend_t inner) : dev(dev), inner(inner) {}

    ~ggml_gather() override {
        ggml_backend_synchronize(inner);
        ggml_backend_buffer_free(buffer);
    }

    bool reserve(size_t size_bytes, size_t n_sources) override {
        ggml_backend_buffer_free(buffer);
        ggml_backend_buffer_type_t pinned = ggml_backend_dev_host_buffer_type(device_get(dev)->inner);
        slot_bytes                        = GGML_PAD(size_bytes, size_t(64));
        buffer = ggml_backend_buft_alloc_buffer(pinned != nullptr ? pinned : ggml_backend_cpu_buffer_type(),
                                                n_slots * slot_bytes);
        slot_bytes   = buffer != nullptr ? slot_bytes : 0;
        slot_sources = n_sources;
        return buffer != nullptr;
    }

    bool start(size_t slot, const std::vector<gather_source> & sources) override {
        char * host = static_cast<char *>(ggml_backend_buffer_get_base(buffer)) + slot * slot_bytes;
        for (const gather_source & source : sources) {
            inner_view view(source.tensor);
            ggml_backend_tensor_get_2d_async(inner, &view.tensor, host + source.offset, 0, source.row_bytes,
                                             source.n_rows, source.stride_bytes, source.row_bytes);
        }
        return true;
    }

    void wait(size_t) override { ggml_backend_synchronize(inner); }

    const char * memory(size_t slot) const override {
        return static_cast<const char *>(ggml_backend_buffer_get_base(buffer)) + slot * slot_bytes;
    }

    size_t size_bytes() const override { return slot_bytes; }

    size_t n_sources() const override { return slot_sources; }

private:
    ggml_backend_dev_t    dev;
    ggml_backend_t        inner;
    ggml_backend_buffer_t buffer       = nullptr;
    size_t                slot_bytes   = 0;
    size_t                slot_sources = 0;
};

} // namespace

std::unique_ptr<routing_gather> make_ggml_gather(ggml_backend_dev_t dev, ggml_backend_t inner) {
    return std::make_unique<ggml_gather>(dev, inner);
}

} // namespace moecache
