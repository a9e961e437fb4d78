#include "core/policies/replay.h"

// Next uses: 0 in events 1, 4; 1 in 3, 5; 2 in 2, 4; 3 in 3, 5.
static std::vector<hand_event> trace_of(const std::vector<std::string> & expected) {
    const std::vector<std::vector<uint32_t>> experts = { { 0, 1 }, { 2, 0 }, { 2, 3 }, { 3, 1 }, { 0, 2 }, { 1, 3 } };
    std::vector<hand_event>                  events;
    for (size_t i = 0; i < experts.size(); i++) {
        events.push_back({ experts[i], expected[i] });
    }
    return events;
}

TEST(keeps_the_nearest_next_use_and_bypasses) {
    replay("belady",
           trace_of({
               "0 +0 +1",
               "1 0>2", // 0 is next used in 4, 1 in 3, 2 in 2: the event's own hit loses its slot
               "1 2>3", // 2 in 4, 1 and 3 in 3
               "2",
               "0", // 0 and 2 are never used again
               "2",
           }),
           2);
}

TEST(an_expert_without_a_next_use_is_not_admitted_to_an_empty_slot) {
    replay("belady", { { { 0, 1 }, "0 +1" }, { { 2, 1 }, "1" } }, 4);
}

// The experts of the event stay.
TEST(forced_admission_gives_up_what_it_needs) {
    replay("belady-forced",
           trace_of({
               "0 +0 +1",
               "1 1>2", // 0 is the event's own, though it is next used later than 1
               "1 0>3",
               "1 2>1",
               "0 3>0 1>2", // 1 and 3 are both next used in 5: the higher leaves first
               "0 2>1 0>3",
           }),
           2);
}

TEST(a_forced_event_larger_than_the_cache_leaves_its_nearest) {
    replay("belady-forced",
           {
               { { 0, 1, 2 }, "0 +1 +2" }, // next uses: 0 in 3, 1 and 2 in 1
               { { 2, 1, 3 }, "2 2>3" },   // 1 in 2, 3 in 4, 2 never
               { { 1 }, "1" },
               { { 0 }, "0 1>0" }, // 1 is never used again
               { { 3 }, "1" },
           },
           2);
}

// Seen at token t: uses up to t + 1. Everything further away is ordered by last use.
TEST(a_horizon_of_one_token) {
    replay("belady:horizon=1",
           trace_of({
               "0 +0 +1", // 0 is near
               "1 1>2",   // 2 is near; 0 and 1 are far, 1 was used before 0
               "1 0>3",   // 3 is near; 0 was used before 2
               "1 3>1",   // 2 has come near; 3 and 1 are far, 1 was used later
               "1",       // 1 has come near; 2 is far and was used after 0
               "1 2>3",
           }),
           2);
}

TEST(a_horizon_beyond_the_trace_hits_as_often_as_the_optimum) {
    uint64_t hits[2];
    int      i = 0;
    for (const char * name : { "belady", "belady:horizon=1000" }) {
        const hand_trace trace(trace_of(std::vector<std::string>(6)), 8);
        const auto       sim = make_hand(trace, hand_geometry(1, 8, { 2 }), name);
        sim->run(6);
        hits[i++] = sim->result().counters.hits;
    }
    CHECK_EQ(hits[0], 6u);
    CHECK_EQ(hits[1], 6u);
}
