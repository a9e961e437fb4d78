#include "core/policies/replay.h"

TEST(a_newcomer_needs_a_strictly_higher_count) {
    replay("cumulative-lfu",
           {
               { { 0, 1 }, "0 +0 +1" }, // equal newcomers: the lower expert first
               { { 0, 2 }, "1" },       // 2 counts 1, not above 1's 1
               { { 0, 2 }, "1 1>2" },   // 2 counts 2
               { { 1, 2 }, "1" },       // 1 counts 2, below 3 and 3
               { { 1, 3 }, "0" },       // 1 counts 3, not above 3
               { { 1, 3 }, "0 2>1" },   // 1 counts 4; of 0 and 2 with 3 each the higher expert goes
           },
           2);
}

TEST(with_tie_recency_an_equal_count_is_replaced_by_the_later_use) {
    replay("cumulative-lfu:tie=recency",
           {
               { { 0, 1 }, "0 +1 +0" }, // equal counts: the later position is better
               { { 0, 2 }, "1 1>2" },   // 2 counts 1 like expert 1, used later
               { { 0, 2 }, "2" },
               { { 1, 2 }, "1" },     // 1 counts 2, below 3 and 3
               { { 1, 3 }, "0 0>1" }, // 1 counts 3 like 0 and 2; 0 was used last in event 2, 2 in event 3
               { { 0, 3 }, "0 2>0" }, // 0 counts 4; 2 is older than 1 at 3
           },
           2);
}

TEST(the_best_of_an_event_larger_than_the_cache_stay) {
    replay("cumulative-lfu",
           {
               { { 3 }, "0 +3" },
               { { 0, 1, 2, 3 }, "1 +0" }, // counts 3:2 0:1 1:1 2:1
               { { 1, 2 }, "0 0>1" },      // 1:2 2:2; once 1 is in, 2 is not above it
               { { 2 }, "0 3>2" },         // 2:3; of 1 and 3 with 2 each the higher expert goes
               { { 1, 2 }, "2" },
           },
           2);
}
