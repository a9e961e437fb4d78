// The stand-in's copies: a thread with a queue, in order, with a bandwidth and a delay that tests can set.
//
// Its graphs are computed at once, so readers have finished when they have been launched.
#include "backend/slot-transfer.h"
#include "core/clock.h"
#include "core/config.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

namespace moecache {

namespace {

class standin_transfer final : public slot_transfer {
public:
    explicit standin_transfer(const slot_map & m) :
        map(m), speed(config_standin_copies()), number_of_slot(m.places.size(), 0), times(m.places.size()) {
        worker = std::thread([this] { work(); });
    }

    ~standin_transfer() override {
        {
            std::lock_guard<std::mutex> lock(mutex);
            stop = true;
        }
        changed.notify_all();
        worker.join();
    }

    void enqueue(const copy_request & copy) override {
        number_of_slot[copy.slot] = ++n_enqueued;
        {
            std::lock_guard<std::mutex> lock(mutex);
            queue.push_back(copy);
            n_released += copy.after_readers || n_released + 1 < n_enqueued ? 0 : 1;
        }
        changed.notify_all();
    }

    void readers_launched() override {
        {
            std::lock_guard<std::mutex> lock(mutex);
            n_released = n_enqueued;
        }
        changed.notify_all();
    }

    bool complete(uint32_t slot) override { return number_of_slot[slot] <= n_complete.load(std::memory_order_acquire); }

    bool keep_times(device_timer &) override { return true; } // always does

    copy_time time_of(uint32_t slot) const override { return times[slot]; }

    void wait_all() override {
        std::unique_lock<std::mutex> lock(mutex);
        done.wait(lock, [this] { return n_complete == n_enqueued; });
    }

private:
    void work() {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            changed.wait(lock, [this] { return stop || n_complete < n_released; });
            if (stop) {
                return;
            }
            const copy_request copy = queue.front();
            queue.pop_front();
            lock.unlock();
            const uint64_t begin_ns = monotonic_ns();
            carry_out(copy);
            times[copy.slot].ready_ns    = monotonic_ns();
            times[copy.slot].duration_ns = times[copy.slot].ready_ns - begin_ns;
            n_complete.fetch_add(1, std::memory_order_release);
            lock.lock();
            done.notify_all();
        }
    }

    // The content arrives at the end: reading a slot too early is seen.
    void carry_out(const copy_request & copy) {
        std::array<expert_part, n_expert_roles> parts;
        const size_t                            n  = map.parts(copy, parts);
        uint64_t                                us = speed.delay_us;
        for (size_t i = 0; i < n && speed.mib_per_s > 0; i++) {
            us += parts[i].size_bytes * 1000000 / (speed.mib_per_s << 20);
        }
        if (us > 0) {
            std::unique_lock<std::mutex> lock(mutex);
            changed.wait_for(lock, std::chrono::microseconds(us), [this] { return stop; });
        }
        for (size_t i = 0; i < n; i++) {
            std::memcpy(static_cast<char *>(parts[i].to->data) + parts[i].offset, parts[i].from, parts[i].size_bytes);
        }
    }

    const slot_map &         map;
    const standin_copy_speed speed;
    std::vector<uint64_t>    number_of_slot; // [slots] number of the copy that counts
    std::vector<copy_time>   times;          // [slots] of the worker, until n_complete has passed the copy
    std::thread              worker;
    std::mutex               mutex;
    std::condition_variable  changed;
    std::condition_variable  done;
    std::deque<copy_request> queue;
    uint64_t                 n_enqueued = 0; // by the thread of the graph
    uint64_t                 n_released = 0; // of these, those that need not wait for readers: the first ones
    std::atomic<uint64_t>    n_complete { 0 };
    bool                     stop = false;
};

} // namespace

std::unique_ptr<slot_transfer> make_standin_transfer(const slot_map & map) {
    return std::make_unique<standin_transfer>(map);
}

} // namespace moecache
