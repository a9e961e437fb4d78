#include "backend/resident.h"

#include "backend/buffer-type.h"

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

namespace moecache {

// Copies that are alive, by device and address of the canonical data: an address is reused only after its model, and so
// every context on it, is gone.
// Never destroyed: a program may free its models after this library's static objects are gone.
using shared_copies = std::map<std::pair<ggml_backend_dev_t, const void *>, std::weak_ptr<resident_weight>>;
static std::mutex &    shared_mutex = *new std::mutex;
static shared_copies & shared       = *new shared_copies;

// Ranges of store memory that were freed while copies existed, in order. A context compares the length with what it has
// seen, so the token path costs one atomic load. Grows by one entry per freed adapter or model.
struct freed_range {
    uintptr_t begin;
    uintptr_t end;

    bool holds(const void * address) const {
        return reinterpret_cast<uintptr_t>(address) >= begin && reinterpret_cast<uintptr_t>(address) < end;
    }
};
static std::vector<freed_range> & freed = *new std::vector<freed_range>; // guarded by shared_mutex
static std::atomic<size_t>        n_freed { 0 };

void residents_store_freed(const void * base, size_t size_bytes) {
    std::lock_guard<std::mutex> lock(shared_mutex);
    const uintptr_t             begin = reinterpret_cast<uintptr_t>(base);
    const freed_range           range { begin, begin + size_bytes };
    bool                        held = false;
    for (auto it = shared.begin(); it != shared.end();) {
        const bool inside = range.holds(it->first.second);
        held |= inside && !it->second.expired();
        it = inside ? shared.erase(it) : std::next(it);
    }
    if (held) {
        freed.push_back(range);
        n_freed = freed.size();
    }
}

bool resident_set::drop_freed() {
    if (n_freed == n_freed_seen) {
        return false;
    }
    std::lock_guard<std::mutex> lock(shared_mutex);
    const size_t                before = weights.size();
    for (; n_freed_seen < freed.size(); n_freed_seen++) {
        for (auto it = weights.begin(); it != weights.end();) {
            if (freed[n_freed_seen].holds(it->first)) {
                total_bytes -= ggml_nbytes(it->second->tensor);
                it = weights.erase(it);
            } else {
                ++it;
            }
        }
    }
    return weights.size() != before;
}

resident_weight::~resident_weight() {
    if (buffer != nullptr) {
        device->resident_bytes -= ggml_nbytes(tensor);
        ggml_backend_buffer_free(buffer);
    }
    ggml_free(ctx);
}

ggml_tensor * resident_set::find(const ggml_tensor * weight) const {
    const auto it = weights.find(weight->data);
    return it != weights.end() ? it->second->tensor : nullptr;
}

static std::shared_ptr<resident_weight> make_copy(ggml_backend_dev_t dev, ggml_backend_t inner,
                                                  const ggml_tensor * weight) {
    auto copy    = std::make_shared<resident_weight>();
    copy->device = device_get(dev);
    copy->ctx    = ggml_init({ 2 * ggml_tensor_overhead(), nullptr, /* no_alloc = */ true });
    if (copy->ctx == nullptr) {
        return nullptr;
    }
    copy->tensor = ggml_dup_tensor(copy->ctx, weight);
    ggml_set_name(copy->tensor, weight->name);
    copy->buffer = ggml_backend_alloc_ctx_tensors_from_buft(copy->ctx, ggml_backend_dev_buffer_type(dev));
    if (copy->buffer == nullptr) {
        return nullptr;
    }
    copy->device->resident_bytes += ggml_nbytes(copy->tensor);
    ggml_backend_buffer_set_usage(copy->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS); // as the loader does
    inner_view view(copy->tensor);
    ggml_backend_tensor_set_async(inner, &view.tensor, weight->data, 0, ggml_nbytes(weight));
    return copy;
}

// Whether `size_bytes` more can be had, before anything is allocated: a refusal by the driver would be said in several
// lines.
static bool has_room(ggml_backend_dev_t dev, uint64_t size_bytes) {
    device_context * device = device_get(dev);
    if (size_bytes > device_allowance_bytes(device)) {
        return false;
    }
    size_t free  = 0;
    size_t total = 0;
    ggml_backend_dev_memory(device->inner, &free, &total);
    return size_bytes <= free;
}

bool resident_set::add(ggml_backend_dev_t dev, ggml_backend_t inner, const std::vector<const ggml_tensor *> & wanted,
                       uint64_t & copied_bytes, std::vector<const ggml_tensor *> & copied) {
    std::unordered_map<const void *, std::shared_ptr<resident_weight>> added;
    std::vector<const ggml_tensor *>                                   new_copies;
    bool                                                               room = true;
    {
        std::lock_guard<std::mutex> lock(shared_mutex);
        uint64_t                    needed_bytes = 0;
        for (const ggml_tensor * weight : wanted) {
            const auto known = shared.find({ dev, weight->data });
            needed_bytes += known != shared.end() && !known->second.expired() ? 0 : ggml_nbytes(weight);
        }
        if (!has_room(dev, needed_bytes)) {
            return false;
        }
        for (const ggml_tensor * weight : wanted) {
            if (weights.count(weight->data) != 0 || added.count(weight->data) != 0) {
                continue;
            }
            std::weak_ptr<resident_weight> & known = shared[{ dev, weight->data }];
            std::shared_ptr<resident_weight> copy  = known.lock();
            if (copy == nullptr) {
                copy = make_copy(dev, inner, weight);
                if (copy == nullptr) {
                    room = false;
                    break;
                }
                known = copy;
                new_copies.push_back(weight);
            }
            added[weight->data] = std::move(copy);
        }
        ggml_backend_synchronize(inner); // before another context may use the copies, or they are freed again
    }
    if (!room) {
        return false;
    }
    for (auto & entry : added) {
        total_bytes += ggml_nbytes(entry.second->tensor);
        weights.insert(std::move(entry));
    }
    for (const ggml_tensor * weight : new_copies) {
        copied_bytes += ggml_nbytes(weight);
        copied.push_back(weight);
    }
    return true;
}

} // namespace moecache
