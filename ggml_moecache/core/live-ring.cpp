#include "core/live-ring.h"

#include <map>
#include <mutex>

namespace moecache {

namespace {

struct live_rings {
    std::mutex                                      mutex;
    std::map<uint64_t, std::shared_ptr<event_ring>> rings;
};

live_rings & all() {
    static live_rings * only = new live_rings; // contexts may outlive static objects
    return *only;
}

} // namespace

void live_ring_set(uint64_t context_id, std::shared_ptr<event_ring> ring) {
    std::lock_guard<std::mutex> lock(all().mutex);
    if (ring != nullptr) {
        all().rings[context_id] = std::move(ring);
    } else {
        all().rings.erase(context_id);
    }
}

std::shared_ptr<event_ring> live_ring_get(uint64_t context_id) {
    std::lock_guard<std::mutex> lock(all().mutex);
    const auto                  it = all().rings.find(context_id);
    return it != all().rings.end() ? it->second : nullptr;
}

} // namespace moecache
