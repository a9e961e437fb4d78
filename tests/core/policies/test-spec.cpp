#include "core/policies/table.h"

#include "check.h"

using namespace moecache;

static std::string error_of(const std::string & text) {
    policy_spec spec;
    return policy_spec::parse(text, spec);
}

static std::string canonical(const std::string & text) {
    policy_spec spec;
    CHECK_EQ(policy_spec::parse(text, spec), "");
    return spec.canonical();
}

TEST(the_table_has_the_names_that_users_type) {
    CHECK_EQ(
        policy_names(),
        "cumulative-lfu, lru, decayed-lfu, windowed-lfu, lfru, request-lfu, interval-refresh, static, cold-static, "
        "hindsight-static, random, belady, belady-forced, lfu");
}

TEST(defaults_satisfy_their_own_rules) {
    for (const policy_entry & entry : policy_table()) {
        std::string text = entry.info.name;
        for (const parameter_info & parameter : entry.info.parameters) {
            if (*parameter.default_value != '\0') {
                text += std::string(":") + parameter.name + "=" + parameter.default_value;
            } else {
                text += std::string(":") + parameter.name + "=x";
            }
        }
        CHECK_EQ(error_of(text), "");
    }
}

TEST(what_is_not_the_default_is_named_in_the_order_of_the_table) {
    CHECK_EQ(canonical("lru"), "lru");
    CHECK_EQ(canonical("cumulative-lfu:tie=strict"), "cumulative-lfu");
    CHECK_EQ(canonical("cumulative-lfu:admit-after=02:tie=recency"), "cumulative-lfu:tie=recency:admit-after=2");
    CHECK_EQ(canonical("windowed-lfu:window=256"), "windowed-lfu");
    CHECK_EQ(canonical("lru:payback=2.50"), "lru:payback=2.5");
    CHECK_EQ(canonical("lru:payback=0.0"), "lru");
    CHECK_EQ(canonical("belady:horizon=8"), "belady:horizon=8");
    CHECK_EQ(canonical("static:file=a=b.csv"), "static:file=a=b.csv");
}

TEST(bad_specifications_say_what_is_wrong) {
    CHECK_EQ(error_of("mru"), "there is no policy 'mru'. The policies are: " + policy_names());
    CHECK_EQ(error_of(""), "there is no policy ''. The policies are: " + policy_names());
    CHECK_EQ(error_of("hindsight-static:x=1"),
             "policy hindsight-static: 'x=1' must be parameter=value with one of: none");
    CHECK_EQ(error_of("lru:admit-after"), "policy lru: 'admit-after' must be parameter=value with one of: admit-after, "
                                          "payback, payback-horizon");
    CHECK_EQ(error_of("lru:"),
             "policy lru: '' must be parameter=value with one of: admit-after, payback, payback-horizon");
    CHECK_EQ(error_of("decayed-lfu:half-life=0"),
             "policy decayed-lfu: half-life must be a whole number of tokens, 1 to 1000000000. Got '0' instead.");
    for (const char * value : { "-1", "1.5", "1e3", "", " 1", "9999999999999999999999" }) {
        CHECK_EQ(error_of(std::string("windowed-lfu:window=") + value),
                 std::string("policy windowed-lfu: window must be a whole number of tokens, 1 to 1000000. Got '") +
                     value + "' instead.");
    }
    CHECK_EQ(error_of("cumulative-lfu:tie=strict|recency"),
             "policy cumulative-lfu: tie must be strict|recency. Got 'strict|recency' instead.");
    CHECK_EQ(error_of("lru:payback=1:payback=2"), "policy lru: payback is given twice");
    CHECK_EQ(error_of("lru:payback=1.2.3"),
             "policy lru: payback must be a number of hits, 0 to 1000000. Got '1.2.3' instead.");
    CHECK_EQ(error_of("static"), "policy static: file= must be given: CSV with the header layer,expert or "
                                 "layer,family,expert, best first");
}

TEST(a_runtime_refuses_what_needs_the_future) {
    policy_spec spec;
    CHECK_EQ(policy_spec::parse("belady", spec), "");
    const cache_geometry    geometry = cache_geometry::make({ { 0, "exps", 4, 0 } }, true);
    std::unique_ptr<policy> made;
    CHECK_EQ(make_policy({ spec, geometry, nullptr }, made),
             "policy belady needs to see the whole trace beforehand: it can be simulated, not run");
}
