#include "core/policies/replay.h"

// The first outputs of SplitMix64 with seed 0 (its published test vector) end in af f4 4f ec 9b ea: modulo 2 they are
// 1 0 1 0 1 0.
TEST(the_draws_are_those_of_splitmix64) {
    replay("random:seed=0",
           {
               { { 0, 1 }, "0 +0 +1" },
               { { 0, 2 }, "1 1>2" },        // draw 1
               { { 3, 4 }, "0 0>3 2>4" },    // draws 0, 1
               { { 4, 5 }, "1 3>5" },        // draw 0
               { { 6, 7, 0 }, "0 4>6 5>7" }, // draws 1, 0; no slot is left for 0
               { { 6, 7 }, "2" },
           },
           2);
}

// The first two outputs are 1 and 0 modulo 3, the next four 1 1 1 0: only slot 2 is left for the third miss.
TEST(a_slot_given_away_by_the_event_is_drawn_again) {
    replay("random", { { { 0, 1, 2 }, "0 +0 +1 +2" }, { { 3, 4, 5 }, "0 1>3 0>4 2>5" }, { { 3, 4, 5 }, "3" } }, 3);
}

TEST(an_event_gives_each_slot_away_once) {
    replay("random", { { { 0, 1 }, "0 +0" }, { { 2, 3 }, "0 0>2" }, { { 2, 3 }, "1 2>3" } }, 1);
}
