// Transfers of the simulator: no bytes move, time is a number that the simulator sets.
#pragma once

#include "transfer/transfer.h"

#include <vector>

namespace moecache {

// Every copy is complete at once: the next event of its column sees it.
class instant_transfer final : public transfer {
public:
    void enqueue(const copy_request &) override {}
    bool complete(uint32_t) override { return true; }
};

// One queue: a copy begins when it is enqueued, the copy before it has ended and the readers of its slot have finished,
// and takes latency_ns + bytes / bandwidth.
class virtual_clock final : public transfer {
public:
    virtual_clock(uint32_t n_slots, double latency, double bytes_per_s) :
        latency_ns(latency), bytes_per_ns(bytes_per_s * 1e-9), enqueued_at(n_slots, 0.0), ready_at(n_slots, 0.0) {}

    double now_ns          = 0;
    double readers_done_ns = 0; // when the readers of the event at hand will have finished

    void enqueue(const copy_request & copy) override;
    bool complete(uint32_t slot) override { return ready_at[slot] <= now_ns; }

    void complete_all(); // experts placed before the clock starts

    double enqueued_ns(uint32_t slot) const { return enqueued_at[slot]; }
    double ready_ns(uint32_t slot) const { return ready_at[slot]; }

private:
    double              latency_ns;
    double              bytes_per_ns;
    double              queue_free_ns = 0;
    std::vector<double> enqueued_at; // [slots] of the copy that counts, ns
    std::vector<double> ready_at;    // [slots] likewise
};

} // namespace moecache
