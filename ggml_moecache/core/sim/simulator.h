// The event-atomic simulator: drives the cache manager over an event stream with a clock. The same policy and manager
// as at run time, on a virtual transfer.
//
// Time of an event of n experts with h hits: other_layer_ns until its router has chosen (then the event is looked up
// and its copies are enqueued), then max(h * gpu_hit_ns, cpu), cpu = 0 without a miss, else cpu_event_ns + (n - h) *
// cpu_miss_ns. Each decode token costs other_token_ns before its first event. A copy is late if it is not complete when
// the next event of its column is looked up.
#pragma once

#include "core/cache-manager.h"
#include "core/policies/spec.h"
#include "core/sim/event-stream.h"
#include "core/sim/result.h"
#include "core/sim/victim-agreement.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace moecache {

struct sim_costs {
    double cpu_miss_ns                = 0;
    double cpu_event_ns               = 0;
    double gpu_hit_ns                 = 0;
    double other_layer_ns             = 0;
    double other_token_ns             = 0;
    double copy_latency_ns            = 0;
    double copy_bandwidth_bytes_per_s = 1;
    double copy_event_ns              = 0;
};

struct sim_options {
    bool      clocked          = false; // false: every copy is complete at the next event of its column
    bool      victim_agreement = false;
    bool      log              = false;
    sim_costs costs; // of the clock
};

class simulator {
public:
    // `events` must outlive it. Returns "" or why the policy cannot be made.
    static std::string make(const event_stream & events, const cache_geometry & geometry, const policy_spec & spec,
                            const sim_options & options, std::unique_ptr<simulator> & out);

    // Replay up to the event of this index, which is not replayed.
    void run(uint64_t until_event);

    const sim_result &    result() const { return so_far; }
    const cache_manager & cache() const { return *manager; }

    // The state after the last event, and the event to go on with. Without the clock and the copies in flight: after
    // load() all of the content is resident and the clock is at 0. REQUIRES for load(): nothing has been run.
    void        save(session_state & state) const;
    std::string load(const session_state & state);

    // The same with a state of other events: goes on with the first event of this stream, numbered behind those.
    // `continues`: its first request is the one that came last there.
    std::string load_from_start(const session_state & state, bool continues);

private:
    simulator(const event_stream & events, const cache_geometry & geometry, const policy_spec & spec,
              const sim_options & options);

    void start();
    void step(uint64_t index);

    std::string load_parts(const session_state & state, session_clock & clock);
    void        log_decisions(int64_t event_index, const std::vector<decision> & decisions);
    void        log_outcomes(const std::vector<copy_outcome> & outcomes);

    const event_stream &              events;
    cache_geometry                    geometry;
    policy_spec                       spec;
    sim_options                       options;
    std::unique_ptr<policy>           rules;
    std::unique_ptr<transfer>         copies;
    class virtual_clock *             clock = nullptr; // `copies` if the timing is clocked
    std::unique_ptr<cache_manager>    manager;
    std::unique_ptr<victim_agreement> meter; // NULL: not wanted
    sim_result                        so_far;
    session_clock                     before; // events that a loaded state has seen, not of this stream
    uint64_t                          next_event        = 0;
    bool                              started           = false;
    int64_t                           last_decode_token = -1;
    std::vector<uint8_t>              hit;         // of the event at hand
    std::vector<uint64_t>             log_of_slot; // [slots] entry of the log of the slot's copy
};

} // namespace moecache
