#include "core/policies/replay.h"

TEST(keeps_the_experts_used_last) {
    replay("lru",
           {
               { { 0, 1 }, "0 +1 +0" }, // the later position is the better newcomer
               { { 0, 2 }, "1 1>2" },   // 1 was used before 0
               { { 2, 1 }, "1 0>1" },
               { { 3, 1 }, "1 2>3" },
               { { 3, 1 }, "2" },
               { { 0, 3 }, "1 1>0" },
               { { 1, 2 }, "0 0>2 3>1" }, // in event 5 the expert 0 came before 3
           },
           2);
}

TEST(an_event_larger_than_the_cache_leaves_its_last_experts) {
    replay("lru",
           {
               { { 1, 2 }, "0 +2 +1" },
               { { 1, 0, 3 }, "1 2>3 1>0" }, // 1 is hit and loses its slot to 0, which is more recent
               { { 0, 3 }, "2" },
               { { 4, 5, 6 }, "0 0>6 3>5" }, // 4 is not among the last two
               { { 5, 6 }, "2" },
           },
           2);
}

TEST(no_slot_admits_nothing) {
    replay("lru", { { { 0, 1 }, "0" }, { { 0, 1 }, "0" } }, 0);
}

TEST(one_slot_holds_the_last_expert) {
    replay("lru", { { { 0, 1 }, "0 +1" }, { { 0, 1 }, "1" }, { { 1, 0 }, "1 1>0" }, { { 0, 1 }, "1 0>1" } }, 1);
}

// Two layers of 8 experts; items of layer 1 begin at 8.
TEST(one_budget_for_all_layers_compares_across_layers) {
    const hand_trace trace(
        {
            { { 0 }, "0 +0", 0, 0 },
            { { 0 }, "0 +8", 1, 0 },
            { { 0 }, "1", 0, 1 },
            { { 1 }, "0 8>9", 1, 1 }, // layer 1's expert 0 is the least recent of both layers
            { { 2 }, "0 0>2", 0, 2 },
            { { 1 }, "1", 1, 2 },
        },
        8);
    replay("lru", trace, hand_geometry(2, 8, { 2 }));
}

TEST(a_budget_per_layer_keeps_layers_apart) {
    const hand_trace trace(
        {
            { { 0 }, "0 +0", 0, 0 },
            { { 0 }, "0 +8", 1, 0 },
            { { 1 }, "0 0>1", 0, 1 },
            { { 0 }, "1", 1, 1 },
            { { 0 }, "0 1>0", 0, 2 },
            { { 3 }, "0 8>11", 1, 2 },
        },
        8);
    replay("lru", trace, hand_geometry(2, 8, { 1, 1 }));
}
