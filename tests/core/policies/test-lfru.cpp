#include "core/policies/replay.h"

// Rank: W * count + token of the last use * n, n tokens so far.
TEST(a_low_weight_follows_recency) {
    replay("lfru:weight=2",
           {
               { { 0, 1 }, "0 +1 +0" },   // n 1: 2 and 2, by last use
               { { 0, 2 }, "1 1>2" },     // n 2: 0: 4+2, 1: 2, 2: 2+2
               { { 1, 3 }, "0 2>1 0>3" }, // n 3: 1: 4+6, 3: 2+6, 0: 4+3, 2: 2+3
               { { 1, 3 }, "2" },
           },
           2);
}

TEST(a_high_weight_keeps_the_frequent_expert) {
    replay("lfru:weight=8",
           {
               { { 0, 1 }, "0 +1 +0" },
               { { 0, 2 }, "1 1>2" },     // n 2: 0: 16+2, 1: 8, 2: 8+2
               { { 0, 3 }, "1 2>3" },     // n 3: 0: 24+6, 2: 8+3, 3: 8+6
               { { 1, 2 }, "0 3>2" },     // n 4: 0: 24+8, 3: 8+8, 1 and 2: 16+12; 1 is earlier than 2, the worst then
               { { 1, 3 }, "0 2>1 0>3" }, // n 5: 0: 24+10, 2: 16+15, 1: 24+20, 3: 16+20
           },
           2);
}

// Nobody uses 0 and 1 meanwhile, yet their order turns as n grows: 0 is frequent, 1 recent.
TEST(the_order_of_unused_experts_turns_with_time) {
    const std::vector<hand_event> begin = {
        { { 0 }, "0 +0", 0, 0 },
        { { 0 }, "1", 0, 1 },
        { { 0 }, "1", 0, 2 },
        { { 1 }, "0 +1", 0, 4 },
    };
    std::vector<hand_event> soon  = begin;
    std::vector<hand_event> later = begin;
    soon.push_back({ { 2 }, "0 1>2", 0, 5 });   // n 6: 0: 42+12 = 54, 1: 14+24 = 38
    later.push_back({ { 2 }, "0 0>2", 0, 19 }); // n 20: 0: 42+40 = 82, 1: 14+80 = 94
    replay("lfru:weight=14", soon, 2);
    replay("lfru:weight=14", later, 2);
}
