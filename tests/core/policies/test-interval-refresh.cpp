#include "core/policies/replay.h"

TEST(the_most_used_experts_are_elected_every_three_tokens) {
    replay("interval-refresh:every=3",
           {
               { { 0, 1 }, "0 +0 +1" }, // empty slots are filled at once
               { { 2, 3 }, "0" },
               { { 2, 0 }, "1" },
               { { 2, 4 }, "0 1>2" }, // 2:3 0:2, then 1, 3 and 4 with 1: 2 and 0 are elected
               { { 3, 1 }, "0" },
               { { 3, 0 }, "1" },
               { { 5, 1 }, "0 2>1 0>3" }, // 1:2 3:2 0:1 5:1 2:0: the worst leaves first
               { { 1, 3 }, "2" },
           },
           2);
}

TEST(an_equal_count_keeps_its_slot_and_zero_is_not_elected) {
    replay("interval-refresh:every=2",
           {
               { { 5 }, "0 +5" },
               { { 0 }, "0 +0" },
               { { 1 }, "0" }, // election: 0:1 1:1 5:1; 0 and 5 keep theirs
               { { 1 }, "0" },
               { { 1 }, "0 5>1" }, // election: 1:2, 0 and 5 with 0, of which the lower stays
           },
           2);
}

TEST(intervals_without_an_event_are_passed_over) {
    replay("interval-refresh:every=2",
           {
               { { 0 }, "0 +0", 0, 0 },
               { { 1 }, "0", 0, 1 },
               { { 1 }, "0 0>1", 0, 7 }, // the election of token 2, four and six are this one
               { { 0 }, "0 1>0", 0, 8 }, // 0:1, 1:0
           },
           1);
}

// At token 4 the counts are 3:1 and 4:1; 3 comes first, but this is the first use of 3 in the session, the second of 4.
TEST(a_newcomer_that_is_filtered_out_is_passed_over) {
    replay("interval-refresh:every=2:admit-after=2",
           {
               { { 2 }, "0" },
               { { 4 }, "0" },
               { { 1 }, "0" },
               { { 3 }, "0" },
               { { 4 }, "0 +4" },
               { { 1, 3 }, "0" },
               { { 1, 3 }, "0 4>1" }, // 1:2 3:2 4:0; once 1 is in, 3 is not better
           },
           1);
}
