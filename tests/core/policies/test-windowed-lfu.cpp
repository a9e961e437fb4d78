#include "core/policies/replay.h"

TEST(uses_older_than_the_window_do_not_count) {
    replay("windowed-lfu:window=2",
           {
               { { 0, 1 }, "0 +0 +1" },
               { { 0, 2 }, "1" },         // 0:2 1:1 2:1
               { { 2, 3 }, "0 1>2" },     // token 0 is out: 0:1 1:0, 2:2 3:1; 3 is not above 0
               { { 3, 1 }, "0 0>3" },     // token 1 is out: 0:0 2:1, 3:2 1:1; 1 is not above 2
               { { 3, 2 }, "2" },         // token 2 is out: 2:1 3:2
               { { 0, 1 }, "0" },         // token 3 is out: 3:1 2:1, 0:1 1:1
               { { 0, 1 }, "0 3>0 2>1" }, // token 4 is out: 0:2 1:2, 2:0 3:0
           },
           2);
}

TEST(tie_recency_lets_the_later_use_win) {
    replay("windowed-lfu:window=2:tie=recency",
           {
               { { 0, 1 }, "0 +1 +0" },
               { { 0, 2 }, "1 1>2" },     // 1 each: 2 is later
               { { 2, 3 }, "1 0>3" },     // token 0 is out: 0:1 2:2 3:1, 3 is later than 0
               { { 1, 4 }, "0 2>4 3>1" }, // token 1 is out: 2:1 3:1 1:1 4:1, by last use
               { { 4, 1 }, "2" },
           },
           2);
}

// 3,000 tokens of one use outgrow the queue's first 1,024 places.
TEST(the_queue_grows_with_the_window) {
    std::vector<hand_event> events;
    for (int64_t token = 0; token < 3000; token++) {
        events.push_back({ { token < 1500 ? 0u : 1u }, token == 0 ? "0 +0" : token < 1500 ? "1" : "0", 0, token });
    }
    events[2250].expected = "0 0>1"; // window 1500: tokens 751 .. 2250 are 749 of expert 0, 751 of expert 1
    for (size_t token = 2251; token < 3000; token++) {
        events[token].expected = "1";
    }
    replay("windowed-lfu:window=1500", events, 1);
}
