#include "core/policies/replay.h"

TEST(counts_begin_at_zero_with_each_new_request) {
    replay("request-lfu",
           {
               { { 0, 1 }, "0 +0 +1", 0, 0, 0 },
               { { 0, 2 }, "1", 0, 1, 0 },
               { { 2, 3 }, "0 1>2 0>3", 0, 2, 1 }, // 2:1 3:1, residents 0:0 1:0
               { { 0, 1 }, "0", 0, 3, 0 },         // an older request begins nothing: 0:1 1:1, not above 2:1 3:1
               { { 0, 3 }, "1 2>0", 0, 4, 1 },     // 0:2 3:2, 2:1
               { { 2, 1 }, "0 3>1 0>2", 0, 5, 2 }, // 1:1 2:1, residents 0:0 3:0; the higher one goes first
           },
           2);
}

TEST(tie_recency_is_that_of_cumulative_lfu) {
    replay("request-lfu:tie=recency",
           {
               { { 0, 1 }, "0 +1 +0", 0, 0, 0 },
               { { 0, 2 }, "1 1>2", 0, 1, 0 },
               { { 1, 3 }, "0 0>3 2>1", 0, 2, 1 }, // all counts are 0; of 0 and 2 the former was used first
               { { 2, 3 }, "1 1>2", 0, 3, 1 },     // 3:2, 1:1, 2:1 is later
               { { 2, 3 }, "2", 0, 4, 1 },
           },
           2);
}
