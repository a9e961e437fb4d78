#include "core/policies/replay.h"

// A use at token t is worth 2^t.
TEST(with_a_half_life_of_one_token_the_last_uses_decide) {
    replay("decayed-lfu:half-life=1",
           {
               { { 0, 1 }, "0 +0 +1" },   // 0:1 1:1
               { { 0, 2 }, "1 1>2" },     // 0:3 2:2
               { { 1, 3 }, "0 2>1 0>3" }, // 1:1+4 3:4 above 2:2 and 0:3
               { { 0, 2 }, "0 3>0 1>2" }, // 0:3+8 2:2+8 above 3:4 and 1:5
               { { 0, 3 }, "1 2>3" },     // 0:11+16 3:4+16 above 2:10
           },
           2);
}

// A use at token t is worth 2^(t/2): 1, 1.41, 2, 2.83, 4.
TEST(with_a_half_life_of_two_tokens_older_uses_count_more) {
    replay("decayed-lfu:half-life=2",
           {
               { { 0, 1 }, "0 +0 +1" },
               { { 0, 2 }, "1 1>2" },     // 0:2.41 2:1.41 above 1:1
               { { 1, 3 }, "0 2>1" },     // 1:3 above 2:1.41; 3:2 is not above 0:2.41
               { { 3, 2 }, "0 0>3 1>2" }, // 3:4.83 2:4.24 above 0:2.41 1:3
               { { 1, 3 }, "1 2>1" },     // 1:7 above 2:4.24
           },
           2);
}

// Every 512 half-lives the scores get a new epoch, an exact power of two.
TEST(a_long_pause_keeps_the_order_of_old_scores) {
    replay("decayed-lfu:half-life=1",
           {
               { { 0, 1 }, "0 +0 +1", 0, 0 },
               { { 0 }, "1", 0, 1 },        // 0:3 1:1
               { { 2 }, "0 1>2", 0, 600 },  // 2:2^600
               { { 3 }, "0 0>3", 0, 601 },  // 3:2^601 above 0:3
               { { 1 }, "0 2>1", 0, 1100 }, // of 2 and 3 the former is still the lower
           },
           2);
}

TEST(what_is_too_old_for_a_double_counts_as_never_used) {
    replay("decayed-lfu:half-life=1",
           {
               { { 2 }, "0 +2", 0, 600 },
               { { 3 }, "0 +3", 0, 601 },
               { { 1 }, "0 3>1", 0, 100000 }, // 2 and 3 are both 0: the higher goes
           },
           2);
}

// A session may go on from any token number that a state file names: the epochs in between are not gone through.
TEST(a_pause_of_any_length_takes_no_time) {
    replay("decayed-lfu:half-life=1",
           {
               { { 0 }, "0 +0", 0, 0 },
               { { 1 }, "0 0>1", 0, 2000000000000000000 },
               { { 2 }, "0 1>2", 0, 2000000000000000001 },
               { { 1 }, "0 2>1", 0, 2000000000000000002 }, // 1: 2^0 + 2^2, 2: 2^1
           },
           1);
}
