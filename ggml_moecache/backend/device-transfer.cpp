// Copies on a stream of their own: a second backend of the inner device. They complete in the order in which they were
// enqueued, so one number tells which ones have; markers (events behind a batch of copies) move it on.
#include "backend/buffer-type.h"
#include "backend/slot-transfer.h"
#include "transfer/cuda-events.h"

namespace moecache {

namespace {

class device_transfer final : public slot_transfer {
public:
    device_transfer(ggml_backend_dev_t dev, ggml_backend_t inner, const slot_map & m) :
        device(device_get(dev)), compute(inner), map(m), number_of_slot(m.places.size(), 0) {
        waiting.reserve(m.places.size());
    }

    ~device_transfer() override {
        if (stream != nullptr) {
            ggml_backend_synchronize(stream);
        }
        for (const marker & m : markers) {
            ggml_backend_event_free(m.event);
            ggml_backend_event_free(m.begin);
        }
        ggml_backend_event_free(readers);
        ggml_backend_free(stream);
    }

    bool start() {
        stream  = ggml_backend_dev_init(device->inner, nullptr);
        readers = ggml_backend_event_new(device->inner);
        for (marker & m : markers) {
            m.event = ggml_backend_event_new(device->inner);
            if (m.event == nullptr) {
                return false;
            }
        }
        return stream != nullptr && readers != nullptr;
    }

    void enqueue(const copy_request & copy) override {
        number_of_slot[copy.slot] = UINT64_MAX; // not given to the device yet
        if (copy.after_readers) {
            waiting.push_back(copy);
        } else {
            issue(copy);
        }
    }

    void readers_launched() override {
        if (!waiting.empty()) {
            if (timer != nullptr) { // the time of the copies before does not include the wait
                mark();
            }
            compute->iface.event_record(compute, readers);
            stream->iface.event_wait(stream, readers);
            for (const copy_request & copy : waiting) {
                // A later copy may have taken the slot meanwhile: that one is in the list too, behind this one.
                issue(copy);
            }
            waiting.clear();
        }
        mark();
    }

    bool complete(uint32_t slot) override {
        poll();
        return number_of_slot[slot] <= n_complete;
    }

    bool keep_times(device_timer & with) override {
        while (n_complete < n_issued) {
            wait_all();
        }
        for (marker & m : markers) {
            ggml_backend_event_t end = with.make_event();
            m.begin                  = with.make_event();
            if (end == nullptr || m.begin == nullptr) {
                ggml_backend_event_free(end);
                return false;
            }
            ggml_backend_event_free(m.event);
            m.event = end;
        }
        timer = &with;
        times.resize(n_times);
        return true;
    }

    copy_time time_of(uint32_t slot) const override {
        const uint64_t number = number_of_slot[slot];
        for (uint64_t i = n_timed; i > 0 && n_timed - i < n_times; i--) {
            const group_time & group = times[(i - 1) % n_times];
            if (group.last < number) {
                break;
            }
            if (group.first <= number) {
                return { group.ready_ns, group.duration_ns / (group.last - group.first + 1) };
            }
        }
        return {};
    }

    void wait_all() override {
        ggml_backend_synchronize(stream);
        poll();
    }

private:
    static constexpr size_t n_markers = 128;
    static constexpr size_t n_times   = 1024; // asked for within a token, which has at most two groups per layer

    struct marker {
        ggml_backend_event_t begin  = nullptr; // before the first copy of its group; only while times are kept
        ggml_backend_event_t event  = nullptr;
        uint64_t             number = 0; // of the last copy before it
        bool                 begun  = false;
    };

    // Copies between two markers.
    struct group_time {
        uint64_t first       = 0;
        uint64_t last        = 0;
        uint64_t ready_ns    = 0;
        uint64_t duration_ns = 0;
    };

    void issue(const copy_request & copy) {
        std::array<expert_part, n_expert_roles> parts;
        const size_t                            n = map.parts(copy, parts);
        if (timer != nullptr && n_issued == n_marked && head - tail < n_markers) {
            markers[head % n_markers].begun = true;
            stream->iface.event_record(stream, markers[head % n_markers].begin);
        }
        for (size_t i = 0; i < n; i++) {
            inner_view view(parts[i].to);
            ggml_backend_tensor_set_async(stream, &view.tensor, parts[i].from, parts[i].offset, parts[i].size_bytes);
        }
        number_of_slot[copy.slot] = ++n_issued;
    }

    // When all markers are under way the next call marks these copies too.
    void mark() {
        if (n_issued == n_marked || head - tail == n_markers) {
            return;
        }
        marker & m = markers[head++ % n_markers];
        m.number = n_marked = n_issued;
        stream->iface.event_record(stream, m.event);
    }

    void poll() {
        while (tail < head && cuda_event_ready(markers[tail % n_markers].event->context)) {
            marker & m = markers[tail++ % n_markers];
            if (timer != nullptr) {
                keep_time(m);
            }
            n_complete = m.number;
        }
        mark();
    }

    // A group whose first copies had no marker of their own, since all were under way, has no duration.
    void keep_time(marker & m) {
        group_time & group = times[n_timed++ % n_times];
        group.first        = n_complete + 1;
        group.last         = m.number;
        group.ready_ns     = timer->host_ns(m.event);
        group.duration_ns  = m.begun ? device_timer::between_ns(m.begin, m.event) : 0;
        m.begun            = false;
    }

    device_context *          device;
    ggml_backend_t            compute;
    const slot_map &          map;
    ggml_backend_t            stream  = nullptr;
    ggml_backend_event_t      readers = nullptr;
    std::vector<uint64_t>     number_of_slot; // [slots] number of the copy that counts
    std::vector<copy_request> waiting;        // for readers
    marker                    markers[n_markers] = {};
    uint64_t                  head               = 0;
    uint64_t                  tail               = 0;
    uint64_t                  n_issued           = 0;
    uint64_t                  n_marked           = 0;
    uint64_t                  n_complete         = 0;
    device_timer *            timer              = nullptr;
    std::vector<group_time>   times;       // ring of the last n_times
    uint64_t                  n_timed = 0; // of all time
};

} // namespace

std::unique_ptr<slot_transfer> make_device_transfer(ggml_backend_dev_t dev, ggml_backend_t inner, const slot_map & map,
                                                    std::string & why) {
    if (!device_timer::has_events(dev)) {
        why = "this build of the library knows no CUDA";
        return nullptr;
    }
    auto made = std::make_unique<device_transfer>(dev, inner, map);
    if (!made->start()) {
        why = "no second stream could be made";
        return nullptr;
    }
    return made;
}

} // namespace moecache
