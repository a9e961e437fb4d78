#include "core/policies/replay.h"

TEST(admit_after_two_uses) {
    replay("lru:admit-after=2",
           {
               { { 0, 1 }, "0" },
               { { 0, 2 }, "0 +0" },
               { { 0, 1 }, "1 +1" },
               { { 3, 1 }, "1" },
               { { 3, 2 }, "0 0>2 1>3" }, // both for the second time; 0 was used in event 2, 1 in event 3
               { { 3, 4 }, "1" },
           },
           2);
}

// 4 * (uses - victim's uses) must be at least 2 * tokens so far.
TEST(payback_wants_more_hits_than_the_victim_gives) {
    replay("lru:payback=2:payback-horizon=4",
           {
               { { 0, 1 }, "0 +1 +0" }, // 4 * 1 >= 2 * 1
               { { 0, 2 }, "1" },       // 4 * (1 - 1) < 2 * 2
               { { 2, 3 }, "0" },       // 3: 4 * (1 - 1), then 2: 4 * (2 - 1) < 2 * 3
               { { 2, 0 }, "1 1>2" },   // 4 * (3 - 1) >= 2 * 4
               { { 4, 5 }, "0" },
           },
           2);
}

TEST(a_filtered_newcomer_leaves_the_victim_to_the_next) {
    replay("lru:admit-after=2",
           {
               { { 0 }, "0" },
               { { 0 }, "0 +0" },
               { { 1 }, "0" },
               { { 1, 2 }, "0 0>1" }, // 2 is the better newcomer, but used once only
           },
           1);
}

TEST(options_hold_for_random_and_interval_refresh) {
    replay("random:admit-after=2", { { { 0 }, "0" }, { { 0, 1 }, "0 +0" }, { { 1 }, "0 0>1" } }, 1);
    replay("interval-refresh:every=2:admit-after=3",
           {
               { { 0 }, "0" },
               { { 0 }, "0" },
               { { 1 }, "0" }, // election: 0:2 1:1, neither was used three times
               { { 0 }, "0 +0" },
           },
           1);
}
