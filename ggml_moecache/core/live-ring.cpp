#include "core/live-ring.h"

#include <map>

namespace moecache {

namespace {

struct open_channels {
    std::mutex                                        mutex;
    std::map<uint64_t, std::shared_ptr<live_channel>> channels;
};

open_channels & all() {
    static open_channels * only = new open_channels; // contexts may outlive static objects
    return *only;
}

} // namespace

void live_channel::set_ring(std::shared_ptr<event_ring> made) {
    std::lock_guard<std::mutex> lock(mutex);
    events = std::move(made);
}

std::shared_ptr<event_ring> live_channel::ring() const {
    std::lock_guard<std::mutex> lock(mutex);
    return events;
}

std::shared_ptr<live_channel> live_channel_open(uint64_t context_id) {
    auto                        channel = std::make_shared<live_channel>();
    std::lock_guard<std::mutex> lock(all().mutex);
    all().channels[context_id] = channel;
    return channel;
}

void live_channel_close(uint64_t context_id) {
    std::lock_guard<std::mutex> lock(all().mutex);
    all().channels.erase(context_id);
}

std::shared_ptr<live_channel> live_channel_find(uint64_t context_id) {
    std::lock_guard<std::mutex> lock(all().mutex);
    const auto                  it = all().channels.find(context_id);
    return it != all().channels.end() ? it->second : nullptr;
}

} // namespace moecache
