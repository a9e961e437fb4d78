#include "core/policies/replay.h"
#include "transfer/virtual-clock.h"

TEST(copies_follow_one_another_in_the_queue) {
    virtual_clock clock(3, 10, 1e9); // 10 ns + 1 byte per ns
    clock.now_ns = 5;
    clock.enqueue({ 0, 0, 30, false, 0 });
    clock.enqueue({ 1, 1, 20, false, 0 });
    CHECK_EQ(clock.ready_ns(0), 45.0);
    CHECK_EQ(clock.ready_ns(1), 75.0);
    clock.now_ns          = 50;
    clock.readers_done_ns = 100;
    CHECK(clock.complete(0));
    CHECK(!clock.complete(1));
    clock.enqueue({ 2, 0, 30, true, 0 }); // waits for the readers of its slot
    CHECK_EQ(clock.ready_ns(0), 140.0);
    CHECK_EQ(clock.enqueued_ns(0), 50.0);
    CHECK(!clock.complete(0));
}

static std::unique_ptr<simulator> clocked(const hand_trace & trace, double copy_latency_ns, uint32_t n_slots) {
    policy_spec spec;
    CHECK_EQ(policy_spec::parse("lru", spec), "");
    sim_options options;
    options.clocked = true;
    options.log     = true;
    options.costs   = { 20, 1, 5, 10, 3, copy_latency_ns, 1e9 }; // cpu, cpu event, gpu, other layer, other token
    std::unique_ptr<simulator> sim;
    CHECK_EQ(simulator::make(trace.stream, hand_geometry(1, 8, { n_slots }), spec, options, sim), "");
    return sim;
}

// An event is looked up 3 + 10 ns after the one before has ended; a miss takes 1 + 20 ns, a hit 5. A copy of 30 bytes
// takes 30 ns and the latency.
TEST(a_copy_that_is_complete_at_the_next_token_is_a_hit) {
    // event 0: looked up at 13, copy enqueued; ends at 34. event 1: looked up at 47 = 13 + 4 + 30
    const hand_trace trace({ { { 0 }, "" }, { { 0 }, "" } }, 8);
    const auto       sim = clocked(trace, 4, 2);
    sim->run(2);
    CHECK_EQ(sim->result().counters.hits, 1u);
    CHECK_EQ(sim->result().counters.copies_late, 0u);
    CHECK_EQ(sim->result().log.copy_enqueued_ns[0], 13.0);
    CHECK_EQ(sim->result().log.copy_ready_ns[0], 47.0);
    CHECK_EQ(int(sim->result().log.copy_ready[0]), 1);
}

TEST(a_copy_that_is_not_complete_costs_another_miss) {
    // one ns later: event 1 misses, looked up at 47, ends at 68; event 2 is looked up at 81 and hits
    const hand_trace trace({ { { 0 }, "" }, { { 0 }, "" }, { { 0 }, "" }, { { 1 }, "" } }, 8);
    const auto       sim = clocked(trace, 5, 2);
    sim->run(4);
    CHECK_EQ(sim->result().counters.hits, 1u);
    CHECK_EQ(sim->result().counters.copies_late, 1u);
    CHECK_EQ(int(sim->result().log.copy_ready[0]), 0);
    CHECK_EQ(int(sim->result().log.copy_ready[1]), -1); // there is no next token
    // event 2 ends at 86, event 3 is looked up at 99
    CHECK_EQ(sim->result().log.copy_enqueued_ns[1], 99.0);
    CHECK_EQ(sim->result().decode_events[1][0], 3u);
    CHECK_EQ(sim->result().decode_events[1][1], 1u);
}

TEST(a_copy_into_a_slot_that_the_event_reads_waits_for_its_readers) {
    // event 1 (looked up at 47) hits 0 and admits 1 in its place: readers are done at 52
    const hand_trace trace({ { { 0 }, "" }, { { 0, 1 }, "" } }, 8);
    const auto       sim = clocked(trace, 4, 1);
    sim->run(2);
    CHECK_EQ(sim->result().log.copy_enqueued_ns[1], 47.0);
    CHECK_EQ(sim->result().log.copy_ready_ns[1], 52.0 + 34.0);
}

TEST(decisions_do_not_depend_on_the_clock) {
    std::vector<hand_event> events;
    for (uint32_t i = 0; i < 200; i++) {
        events.push_back({ { (i * i + i / 7) % 8, (i * 5 + 1 + (i * i + i / 7)) % 8 }, "" });
        if (events.back().experts[0] == events.back().experts[1]) {
            events.back().experts.pop_back();
        }
    }
    const hand_trace trace(events, 8);
    const auto       slow = clocked(trace, 500, 3);
    const auto       fast = make_hand(trace, hand_geometry(1, 8, { 3 }), "lru");
    slow->run(200);
    fast->run(200);
    CHECK(slow->result().log.admitted == fast->result().log.admitted);
    CHECK(slow->result().log.evicted == fast->result().log.evicted);
    CHECK(slow->result().counters.hits < fast->result().counters.hits);
    CHECK(slow->result().counters.copies_late > 0);
}

// lru, 2 slots: event 2 evicts 0 (next used in 4) though 1 is used later still, in 5; event 3 evicts 1, which of 1 and
// 2 (never) is not the farthest; event 4 evicts 2.
TEST(victims_that_the_optimum_could_have_chosen_are_counted) {
    const hand_trace trace({ { { 0 }, "" }, { { 1 }, "" }, { { 2 }, "" }, { { 3 }, "" }, { { 0 }, "" }, { { 1 }, "" } },
                           8);
    policy_spec      spec;
    CHECK_EQ(policy_spec::parse("lru", spec), "");
    sim_options options;
    options.victim_agreement = true;
    std::unique_ptr<simulator> sim;
    CHECK_EQ(simulator::make(trace.stream, hand_geometry(1, 8, { 2 }), spec, options, sim), "");
    sim->run(5);
    CHECK_EQ(sim->result().counters.evictions, 3u);
    CHECK_EQ(sim->result().agreed, 1u);
    sim->run(6); // evicts 3 beside 0, neither of which is used again
    CHECK_EQ(sim->result().agreed, 2u);
}

TEST(a_saved_session_goes_on_as_if_it_had_not_stopped) {
    std::vector<hand_event> events;
    for (uint32_t i = 0; i < 60; i++) {
        events.push_back({ { i * i % 7, 7 }, "" });
    }
    const hand_trace     trace(events, 8);
    const cache_geometry geometry = hand_geometry(1, 8, { 3 });
    const auto           whole    = make_hand(trace, geometry, "cumulative-lfu");
    const auto           first    = make_hand(trace, geometry, "cumulative-lfu");
    const auto           second   = make_hand(trace, geometry, "cumulative-lfu");
    session_state        state;
    whole->run(60);
    first->run(25);
    first->save(state);
    CHECK_EQ(second->load(state), "");
    second->run(60);
    CHECK_EQ(first->result().counters.hits + second->result().counters.hits, whole->result().counters.hits);
    const auto other = make_hand(trace, geometry, "lru");
    CHECK_EQ(other->load(state), "the session state is of policy cumulative-lfu, this one is lru");
}
