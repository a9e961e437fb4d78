// How long the device works on the hits of an event, and when its copies were done: for the routing log, and made only
// where there is one.
//
// A GPU: events with timestamps, which GGML's own do not have, on the streams. The GPU's clock is tied to the process's
// monotonic clock once per graph, when the thread has just waited for the stream. A time that is told so is late by
// what the thread takes to wake up, some us, and never early. The stand-in computes in the calling thread, whose clock
// it is.
//
// Used by the thread that runs the graphs.
#pragma once

#include "backend/ggml-internal.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace moecache {

class device_timer {
public:
    // `inner`: the stream of the graph. Returns nullptr and `why` where the device has no such events.
    static std::unique_ptr<device_timer> make(ggml_backend_dev_t dev, ggml_backend_t inner, size_t n_columns,
                                              std::string & why);
    // Whether the events of the inner device's backend can be asked, as CUDA's can.
    static bool has_events(ggml_backend_dev_t dev);

    ~device_timer();
    device_timer(const device_timer &)             = delete;
    device_timer & operator=(const device_timer &) = delete;

    bool is_host_clock() const { return host_clock; }

    // --- tie the clocks ---
    void begin_graph() { tie = tie_state::wanted; }
    void before_wait(); // for the stream of the graph, behind the device's work so far
    void after_wait();

    // --- the device's part of a column ---
    void     begin(size_t column);
    void     end(size_t column);
    uint64_t take(size_t column); // ns of the last part, once; 0: there was none, or it is not done

    // --- copies, on a stream of their own. REQUIRES: !is_host_clock() ---
    ggml_backend_event_t make_event() const; // nullptr: there are no more; for ggml_backend_event_free()
    // Of an event that is done, ns of the monotonic clock; 0: not known.
    uint64_t        host_ns(ggml_backend_event_t event) const;
    static uint64_t between_ns(ggml_backend_event_t from, ggml_backend_event_t to); // 0: not known

private:
    enum class tie_state { wanted, recorded, done };

    struct part {
        ggml_backend_event_t begin    = nullptr;
        ggml_backend_event_t end      = nullptr;
        uint64_t             begin_ns = 0; // of the host's clock
        uint64_t             ns       = 0;
        bool                 ran      = false;
    };

    device_timer(ggml_backend_dev_t device, ggml_backend_t inner, bool host_clock) :
        device(device), inner(inner), host_clock(host_clock) {}

    ggml_backend_dev_t   device; // the inner one
    ggml_backend_t       inner;
    bool                 host_clock;
    std::string          bus_id;
    std::vector<part>    parts;        // [columns]
    ggml_backend_event_t ties[2] = {}; // the last one that is done, the next one
    uint64_t             tied_ns = 0;  // when ties[0] was done; 0: never
    tie_state            tie     = tie_state::done;
};

} // namespace moecache
