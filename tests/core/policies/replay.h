// Replays a trace written by hand and says what was decided, one line per event:
//
//     "1 0>4 +2"    one hit; 4 takes the slot of 0, 2 an empty one, in this order
//
// Copies are complete at the next event. The invariants of the slots are checked after each event.
#pragma once

#include "core/sim/simulator.h"

#include "check.h"

#include <string>
#include <vector>

using namespace moecache;

struct hand_event {
    std::vector<uint32_t> experts;
    std::string           expected;
    uint32_t              column  = 0;
    int64_t               token   = -1; // -1: the event's number
    int64_t               request = 0;
};

// `n_columns` layers of `n_experts`; items are column * n_experts + expert.
struct hand_trace {
    event_stream            stream;
    std::vector<hand_event> events;
    uint32_t                n_experts;

    hand_trace(std::vector<hand_event> list, uint32_t experts) : events(std::move(list)), n_experts(experts) {
        stream.offsets.push_back(0);
        for (const hand_event & event : events) {
            for (const uint32_t expert : event.experts) {
                stream.items.push_back(event.column * n_experts + expert);
            }
            const auto index = static_cast<int64_t>(stream.column.size());
            stream.offsets.push_back(stream.items.size());
            stream.column.push_back(event.column);
            stream.token.push_back(event.token >= 0 ? event.token : index);
            stream.request.push_back(event.request);
            stream.row.push_back(index);
            stream.decode.push_back(1);
        }
    }
};

inline cache_geometry hand_geometry(uint32_t n_columns, uint32_t n_experts, std::vector<uint32_t> slots) {
    std::vector<column_info> columns;
    for (uint32_t column = 0; column < n_columns; column++) {
        columns.push_back({ static_cast<int32_t>(column), "exps", n_experts, 30 });
    }
    cache_geometry geometry = cache_geometry::make(columns, slots.size() > 1);
    CHECK_EQ(geometry.set_slots(slots), "");
    return geometry;
}

inline std::string decisions_since(const sim_log & log, size_t first_admission) {
    std::string line;
    for (size_t i = first_admission; i < log.admitted.size(); i++) {
        const bool empty = log.evicted[i] == no_item;
        line += empty ? " +" : " " + std::to_string(log.evicted[i]) + ">";
        line += std::to_string(log.admitted[i]);
    }
    return line;
}

inline std::unique_ptr<simulator> make_hand(const hand_trace & trace, const cache_geometry & geometry,
                                            const std::string & policy) {
    policy_spec spec;
    CHECK_EQ(policy_spec::parse(policy, spec), "");
    sim_options options;
    options.log = true;
    std::unique_ptr<simulator> sim;
    CHECK_EQ(simulator::make(trace.stream, geometry, spec, options, sim), "");
    return sim;
}

// Every event's line must be the expected one; `placed`: what is placed before the first.
inline void replay(const std::string & policy, const hand_trace & trace, const cache_geometry & geometry,
                   const std::string & placed = "") {
    const std::unique_ptr<simulator> sim = make_hand(trace, geometry, policy);
    sim->run(0);
    CHECK_EQ(decisions_since(sim->result().log, 0), placed);
    for (size_t index = 0; index < trace.events.size(); index++) {
        const size_t   n_admitted = sim->result().log.admitted.size();
        const uint64_t n_hits     = sim->result().counters.hits;
        sim->run(index + 1);
        const std::string hits = std::to_string(sim->result().counters.hits - n_hits);
        CHECK_EQ("event " + std::to_string(index) + ": " + hits + decisions_since(sim->result().log, n_admitted),
                 "event " + std::to_string(index) + ": " + trace.events[index].expected);
        CHECK_EQ(sim->cache().check(), "");
    }
}

inline void replay(const std::string & policy, std::vector<hand_event> events, uint32_t n_slots, uint32_t n_experts = 8,
                   const std::string & placed = "") {
    const hand_trace trace(std::move(events), n_experts);
    replay(policy, trace, hand_geometry(1, n_experts, { n_slots }), placed);
}
