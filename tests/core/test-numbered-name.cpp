#include "core/numbered-name.h"

#include "check.h"

#include <memory>

using namespace moecache;

TEST(each_holder_has_the_lowest_free_number) {
    auto first  = std::make_unique<numbered_name>("a");
    auto second = std::make_unique<numbered_name>("a");
    auto other  = std::make_unique<numbered_name>("b");
    CHECK_EQ(first->apply("state.json"), "state.json");
    CHECK_EQ(second->apply("state.json"), "state.json.1");
    CHECK_EQ(other->apply("state.json"), "state.json");
    CHECK_EQ(second->apply(""), "");
    first.reset();
    const numbered_name third("a");
    const numbered_name fourth("a");
    CHECK_EQ(third.apply("s"), "s");
    CHECK_EQ(fourth.apply("s"), "s.2");
}
