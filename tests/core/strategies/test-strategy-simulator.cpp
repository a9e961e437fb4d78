#include "core/policies/replay.h"
#include "core/strategies/strategy-simulator.h"

#include <memory>

// A look-up comes 10 ns after the event before has ended, 13 for a token's first; a miss takes 1 + 20 ns, a hit 5; a
// copy of 30 bytes takes 30 ns and the latency.
static sim_costs costs_of(double copy_latency_ns) {
    return { 20, 1, 5, 10, 3, copy_latency_ns, 1e9 };
}

struct hand_forecast {
    std::vector<uint64_t> offsets;
    std::vector<uint32_t> items, ahead;
    std::vector<float>    confidence;
    forecast              view;

    // One candidate, at event `at`.
    hand_forecast(size_t n_events, size_t at, uint32_t item, uint32_t events_ahead) :
        offsets(n_events + 1, 0), items({ item }), ahead({ events_ahead }), confidence({ .5f }) {
        for (size_t event = at + 1; event <= n_events; event++) {
            offsets[event] = 1;
        }
        view = { offsets.data(), items.data(), ahead.data(), confidence.data() };
    }
};

static strategy_result replayed(const hand_trace & trace, const cache_geometry & geometry, double copy_latency_ns,
                                const hand_forecast * candidates, bool demand, const std::string & ranking = "lru",
                                double copy_event_ns = 0) {
    strategy_options options;
    options.scorer              = ranking;
    options.demand              = demand;
    options.victim_agreement    = true;
    options.costs               = costs_of(copy_latency_ns);
    options.costs.copy_event_ns = copy_event_ns;
    strategy_result result;
    CHECK_EQ(
        replay_strategy(trace.stream, geometry, options, nullptr, candidates ? &candidates->view : nullptr, result),
        "");
    return result;
}

// Event 0 is looked up at 13 and ends at 34; event 1 is looked up at 44 = 13 + 30 + 1.
TEST(a_prefetch_that_is_complete_at_its_deadline_is_a_hit) {
    const hand_trace    trace({ { { 0 }, "", 0, 0 }, { { 3 }, "", 1, 0 } }, 8);
    const hand_forecast candidates(2, 0, 11, 1);
    const auto          geometry = hand_geometry(2, 8, { 2, 2 });
    const auto          result   = replayed(trace, geometry, 1, &candidates, false);
    CHECK_EQ(result.hits, 1u);
    CHECK_EQ(int(result.copies.in_time[0]), 1);
    CHECK_EQ(int(result.copies.asked[0]), 1);
    CHECK_EQ(int(result.copies.used[0]), 1);
    const auto late = replayed(trace, geometry, 2, &candidates, false);
    CHECK_EQ(late.hits, 0u);
    CHECK_EQ(int(late.copies.in_time[0]), 0);
    CHECK_EQ(int(late.copies.asked[0]), 1);
    CHECK_EQ(int(late.copies.used[0]), 0);
}

// Copies take 7 ns from the event in which they are handed over. The prefetch begins at 13 and is complete at 45: event
// 1, which would be looked up at 44, comes at 51 and hits. It ends at 56; the miss of event 2, looked up at 69 (a
// token's first), ends at 90 without an admission and at 97 with one.
TEST(copies_take_time_from_the_event_that_hands_them_over) {
    const hand_trace    trace({ { { 0 }, "", 0, 0 }, { { 3 }, "", 1, 0 }, { { 1 }, "", 0, 1 } }, 8);
    const hand_forecast candidates(3, 0, 11, 1);
    const auto          geometry = hand_geometry(2, 8, { 2, 2 });
    strategy_options    options;
    options.scorer              = "lru";
    options.costs               = costs_of(2);
    options.costs.copy_event_ns = 7;
    options.demand              = false;
    strategy_result result;
    CHECK_EQ(replay_strategy(trace.stream, geometry, options, nullptr, &candidates.view, result), "");
    CHECK_EQ(std::string(result.hit.begin(), result.hit.end()), std::string({ 0, 1, 0 }));
    CHECK_EQ(result.copies.event.size(), 1u);
    CHECK_EQ(result.copies.event[0], 0);
    CHECK_EQ(result.end_ns, 90.0);
    // With admissions: event 0 ends at 41, its copy at 45, so the prefetch, first on the idle link at 45, begins before
    // event 1 (51) only to be late: event 1 is looked up at 58 and misses, since the prefetch is complete at 77.
    options.demand = true;
    result         = {};
    CHECK_EQ(replay_strategy(trace.stream, geometry, options, nullptr, &candidates.view, result), "");
    CHECK_EQ(std::string(result.hit.begin(), result.hit.end()), std::string({ 0, 0, 0 }));
    // 58 + 21 (3 has a slot already: nothing is admitted), 13 more to event 2, whose miss is admitted: 21 + 7
    CHECK_EQ(result.end_ns, 120.0);
}

// The demand copy of event 0 occupies the queue until 44, when event 1 is looked up.
TEST(demand_goes_first_and_the_prefetch_expires) {
    const hand_trace    trace({ { { 0 }, "", 0, 0 }, { { 3 }, "", 1, 0 }, { { 0 }, "", 0, 1 } }, 8);
    const hand_forecast candidates(3, 0, 11, 1);
    const auto          result = replayed(trace, hand_geometry(2, 8, { 2, 2 }), 1, &candidates, true);
    CHECK_EQ(int(result.copies.prefetch[0]), 0);
    CHECK_EQ(result.copies.event.size(), 2u); // 0 and 3, both after a miss
    CHECK_EQ(result.hits, 1u);                // event 2
}

// e0 at 13 copies until 48; e1 at 44, its copy 48 to 83; e2 at 78 hits and ends at 83; the prefetch runs 83 to 118; e3
// at 93 misses, its copy runs 118 to 153 instead of 93 to 128; e4 at 127 hits; e5 at 142 finds it late.
TEST(a_prefetch_that_delays_a_demand_copy_is_counted) {
    const hand_trace    trace({ { { 0 }, "", 0, 0 },
                                { { 1 }, "", 1, 0 },
                                { { 0 }, "", 0, 1 },
                                { { 2 }, "", 1, 1 },
                                { { 0 }, "", 0, 2 },
                                { { 2 }, "", 1, 2 } },
                              8);
    const hand_forecast candidates(6, 2, 11, 1);
    const auto          geometry = hand_geometry(2, 8, { 2, 4 });
    const auto          result   = replayed(trace, geometry, 5, &candidates, true);
    CHECK_EQ(result.copies.event.size(), 4u);
    CHECK_EQ(int(result.copies.prefetch[2]), 1);
    CHECK_EQ(result.copies.event[2], 2);
    CHECK_EQ(int(result.copies.asked[2]), 0);
    CHECK_EQ(int(result.copies.delayed[3]), 1);
    CHECK_EQ(int(result.copies.made_late[3]), 1);
    CHECK_EQ(result.demand_delay_ns, 25.0);
    CHECK_EQ(result.hits, 2u);
    const auto without = replayed(trace, geometry, 5, nullptr, true);
    CHECK_EQ(without.hits, 3u);
    CHECK_EQ(without.demand_delay_ns, 0.0);
}

// One slot: the prefetched expert 3 keeps it until event 1 (of its deadline) has been looked up, although expert 2 of
// event 1 would be the more recent.
TEST(a_prefetched_slot_is_protected_until_its_deadline) {
    const hand_trace trace({ { { 0 }, "", 0, 0 }, { { 0 }, "", 0, 1 }, { { 3 }, "", 0, 2 }, { { 0 }, "", 0, 3 } }, 8);
    const hand_forecast candidates(4, 0, 3, 2);
    strategy_options    options;
    options.scorer                           = "lru";
    options.costs                            = costs_of(0);
    options.costs.copy_bandwidth_bytes_per_s = 3e10; // 1 ns: the demand copy of event 0 ends at 14, the prefetch at 15
    strategy_result result;
    CHECK_EQ(replay_strategy(trace.stream, hand_geometry(1, 8, { 1 }), options, nullptr, &candidates.view, result), "");
    // event 1 misses 0 and may not have the slot; event 2 hits 3; event 3 misses
    CHECK_EQ(std::string(result.hit.begin(), result.hit.end()), std::string({ 0, 0, 1, 0 }));
    CHECK_EQ(result.copies.event.size(), 3u);
}

static hand_trace random_trace(uint32_t n_columns, uint32_t n_experts, uint32_t seed) {
    std::vector<hand_event> events;
    uint64_t                state  = seed;
    const auto              random = [&](uint64_t n) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (state >> 33) % n;
    };
    for (int64_t token = 0; token < 300; token++) {
        for (uint32_t column = 0; column < n_columns; column++) {
            const auto a = static_cast<uint32_t>(random(n_experts));
            const auto b = static_cast<uint32_t>((a + 1 + random(n_experts - 1)) % n_experts);
            events.push_back({ { a, b }, "", column, token });
        }
    }
    return { events, n_experts };
}

TEST(without_candidates_it_is_the_simulator) {
    for (uint32_t seed = 1; seed <= 6; seed++) {
        const hand_trace trace = random_trace(3, 7, seed);
        for (const bool per_column : { true, false }) {
            const auto geometry =
                hand_geometry(3, 7, per_column ? std::vector<uint32_t> { 2, 3, 4 } : std::vector<uint32_t> { 9 });
            for (const char * name : { "lru", "cumulative-lfu", "decayed-lfu" }) {
                policy_spec spec;
                CHECK_EQ(policy_spec::parse(name, spec), "");
                sim_options options;
                options.clocked = options.log = options.victim_agreement = true;
                options.costs                                            = costs_of(40.0 * seed);
                options.costs.copy_event_ns                              = 9;
                std::unique_ptr<simulator> sim;
                CHECK_EQ(simulator::make(trace.stream, geometry, spec, options, sim), "");
                sim->run(trace.stream.n_events());
                const std::string ranking = std::string(name).substr(0, std::string(name).find(':'));
                const auto        result  = replayed(trace, geometry, 40.0 * seed, nullptr, true, ranking, 9);
                CHECK(result.hit == sim->result().log.hit);
                CHECK(result.copies.event == sim->result().log.admitted_event);
                CHECK(result.copies.in_time == sim->result().log.copy_ready);
                CHECK_EQ(result.evictions, sim->result().counters.evictions);
                CHECK_EQ(result.demand_victims, result.evictions);
                CHECK_EQ(result.agreed, sim->result().agreed);
                CHECK_EQ(result.copy_bytes, sim->result().counters.copy_bytes);
            }
        }
    }
}

// Two slots. The scores say that 0 is worth most and 1 least: 2 takes the slot of 1, and 1 does not come back.
TEST(scores_decide_who_stays) {
    const hand_trace           trace({ { { 0 }, "" }, { { 1 }, "" }, { { 2 }, "" }, { { 1 }, "" }, { { 0 }, "" } }, 3);
    const std::vector<float>   values = { .9f, .1f, .5f };
    const std::vector<int64_t> rows   = { 0, -1, -1, 0, -1 };
    const score_table          table  = { values.data(), rows.data(), 3 };
    strategy_options           options;
    options.scorer = "scores";
    options.costs  = costs_of(0);
    strategy_result result;
    CHECK_EQ(replay_strategy(trace.stream, hand_geometry(1, 3, { 2 }), options, &table, nullptr, result), "");
    CHECK_EQ(std::string(result.hit.begin(), result.hit.end()), std::string({ 0, 0, 0, 0, 1 }));
    CHECK_EQ(result.evictions, 1u);
}

TEST(arrays_that_do_not_fit_are_refused) {
    const hand_forecast candidates(3, 0, 9, 1);
    CHECK(check_forecast(candidates.view, 3, 1, 9) != "");
    CHECK_EQ(check_forecast(candidates.view, 3, 1, 10), "");
    CHECK(check_forecast(candidates.view, 3, 2, 10) != "");
    const std::vector<float>   values(4, 0);
    const std::vector<int64_t> rows = { 0, 1, -1 };
    CHECK_EQ(check_scores({ values.data(), rows.data(), 2 }, 3, 2, 2), "");
    CHECK(check_scores({ values.data(), rows.data(), 2 }, 3, 1, 2) != "");
    CHECK(check_scores({ values.data(), rows.data(), 2 }, 3, 2, 3) != "");
    std::unique_ptr<scorer> out;
    CHECK(make_scorer("belady", 1, hand_geometry(1, 3, { 2 }), nullptr, out) != "");
    CHECK(make_scorer("scores", 1, hand_geometry(1, 3, { 2 }), nullptr, out) != "");
    CHECK(make_scorer("decayed-lfu", 0, hand_geometry(1, 3, { 2 }), nullptr, out) != "");
}
