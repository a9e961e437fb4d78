// Capacities as users write them. Slots are worked out by hand from the rules in core/capacity.h.
#include "core/capacity.h"

#include "check.h"

using namespace moecache;

namespace {

using numbers = std::vector<uint32_t>;

// Three layers of 8, 8 and 4 experts of 100, 100 and 50 bytes.
cache_geometry three_layers(bool per_column) {
    column_info a;
    a.n_experts    = 8;
    a.expert_bytes = 100;
    column_info b  = a;
    b.layer_id     = 1;
    column_info c;
    c.layer_id     = 2;
    c.n_experts    = 4;
    c.expert_bytes = 50;
    return cache_geometry::make({ a, b, c }, per_column);
}

numbers slots(const char * text, bool per_column, uint64_t free_bytes = 0) {
    capacity_setting setting;
    CHECK(capacity_setting::parse(text, setting));
    numbers           result;
    const std::string error = setting.slots(three_layers(per_column), per_column, free_bytes, result);
    CHECK_EQ(error, "");
    return result;
}

std::string refusal(const char * text, bool per_column) {
    capacity_setting setting;
    CHECK(capacity_setting::parse(text, setting));
    numbers result;
    return setting.slots(three_layers(per_column), per_column, 0, result);
}

} // namespace

TEST(what_is_a_capacity) {
    capacity_setting setting;
    for (const char * good : { "0", "12", "5%", "12.5%", "100%", "2GiB", "0.5MiB", "100KiB", "all", "auto" }) {
        CHECK(capacity_setting::parse(good, setting));
        CHECK_EQ(setting.text, good);
    }
    for (const char * bad : { "", "x", "-1", "+1", "1.5", "5 %", "-0%", "101%", "2GB", "2gib", "ALL", "1e3", ".5MiB",
                              "5.%", "%", "99999999TiB", "1MiB " }) {
        CHECK(!capacity_setting::parse(bad, setting));
    }
}

TEST(none_partial_and_all_are_told_apart) {
    capacity_setting setting;
    for (const char * nothing : { "0", "0%", "0.0%", "0GiB" }) {
        CHECK(capacity_setting::parse(nothing, setting));
        CHECK(setting.none() && !setting.partial() && !setting.all());
    }
    capacity_setting::parse("all", setting);
    CHECK(!setting.none() && !setting.partial() && setting.all());
    capacity_setting::parse("1", setting);
    CHECK(!setting.none() && setting.partial() && !setting.all());
}

// Budgets of one size: 16 experts of 100 bytes, 4 of 50.
TEST(all_layers_share) {
    CHECK(slots("all", false) == numbers({ 16, 4 }));
    CHECK(slots("10", false) == numbers({ 8, 2 })); // 10 in proportion 16 : 4
    CHECK(slots("1", false) == numbers({ 1, 0 }));  // 0.8 and 0.2: the larger remainder
    CHECK(slots("50%", false) == numbers({ 8, 2 }));
    CHECK(slots("1%", false) == numbers({ 1, 1 }));  // at least one
    CHECK(slots("10%", false) == numbers({ 2, 1 })); // 1.6 and 0.4: the nearest, at least one
}

TEST(each_layer_has_its_own) {
    CHECK(slots("all", true) == numbers({ 8, 8, 4 }));
    CHECK(slots("3", true) == numbers({ 3, 3, 3 }));
    CHECK(slots("6", true) == numbers({ 6, 6, 4 })); // a layer has no more than its experts
    CHECK(slots("25%", true) == numbers({ 2, 2, 1 }));
}

// 1,800 bytes together.
TEST(a_size_is_of_all_layers) {
    CHECK(slots("1KiB", false) ==
          numbers({ 9, 2 })); // 16 * 1024 / 1800 = 9.1, 4 * 1024 / 1800 = 2.3; 24 bytes are left
    CHECK(slots("1KiB", true) == numbers({ 3, 3, 4 })); // 341 bytes each
    CHECK(slots("2KiB", false) == numbers({ 16, 4 }));
    CHECK(slots("auto", false, 250) ==
          numbers({ 2, 1 })); // 16 * 250 / 1800 = 2.2, 0.6; the 50 bytes left hold a small one
}

TEST(more_than_there_are_is_refused) {
    CHECK_EQ(refusal("21", false), "capacity must be at most the 20 experts of all layers. Got 21 instead.");
    CHECK_EQ(refusal("9", true), "capacity must be at most the 8 experts of a layer. Got 9 instead.");
}
