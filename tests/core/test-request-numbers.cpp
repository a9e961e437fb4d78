#include "core/request-numbers.h"

#include "check.h"

using namespace moecache;

TEST(requests_are_numbered_in_the_order_in_which_they_came) {
    request_numbers numbers;
    CHECK_EQ(numbers.of(7), 0);
    CHECK_EQ(numbers.of(8), 1);
    CHECK_EQ(numbers.of(7), 0);
    CHECK_EQ(numbers.of(3), 2); // set by hand, below those before
    CHECK_EQ(numbers.of(9), 3); // behind 8, but not with the number behind 8's
    CHECK_EQ(numbers.of(10), 4);
    CHECK_EQ(numbers.of(4), 5);
    CHECK_EQ(numbers.of(8), 1);
    CHECK_EQ(numbers.of(9), 3);
    CHECK_EQ(numbers.of(3), 2);
    CHECK_EQ(numbers.of(10), 4);
    CHECK_EQ(numbers.of(UINT64_MAX), 6);
    CHECK_EQ(numbers.of(0), 7);
    CHECK_EQ(numbers.next(), 8);
}

TEST(a_session_that_goes_on_continues_its_last_request) {
    request_numbers numbers;
    numbers.restart(5);
    numbers.continue_last(40);
    CHECK_EQ(numbers.of(40), 4);
    CHECK_EQ(numbers.of(41), 5);
    CHECK_EQ(numbers.of(40), 4);
    numbers.restart(2);
    CHECK_EQ(numbers.of(40), 2); // forgotten
    CHECK_EQ(numbers.of(41), 3);
}
