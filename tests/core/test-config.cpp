#include "core/config.h"
#include "core/policies/default-policy.h"

#include "check.h"

#include <cstdlib>
#include <cstring>

using namespace moecache;

static void clean() {
    size_t                n     = 0;
    const variable_info * table = variable_table(n);
    for (size_t i = 0; i < n; i++) {
        config_set(table[i].name, nullptr);
        unsetenv(table[i].name);
    }
}

TEST(defaults_are_valid_and_say_capacity_0) {
    clean();
    CHECK_EQ(config_check(), "");
    CHECK(config_read().capacity.none());
    CHECK(!config_read().require);
    CHECK_EQ(config_standins(), 0u);
    CHECK_EQ(config_device_cap_bytes(), 0u);
}

TEST(environment_is_read_and_a_setting_wins) {
    clean();
    setenv("GGML_MOECACHE_CAPACITY", "all", 1);
    CHECK(config_read().capacity.all());
    CHECK_EQ(config_set("GGML_MOECACHE_CAPACITY", "0"), "");
    CHECK(config_read().capacity.none());
    CHECK_EQ(config_set("GGML_MOECACHE_CAPACITY", nullptr), "");
    CHECK(config_read().capacity.all());
}

TEST(settings_of_the_cache) {
    clean();
    CHECK_EQ(config_read().policy, default_policy);
    CHECK(!config_read().per_layer && !config_read().sync);
    CHECK_EQ(config_read().reserve_bytes, uint64_t(512) << 20);
    setenv("GGML_MOECACHE_CAPACITY", "25%", 1);
    setenv("GGML_MOECACHE_POLICY", "windowed-lfu:window=64", 1);
    setenv("GGML_MOECACHE_PER_LAYER", "1", 1);
    setenv("GGML_MOECACHE_SYNC", "1", 1);
    setenv("GGML_MOECACHE_RESERVE_MIB", "3", 1);
    CHECK_EQ(config_check(), "");
    CHECK(config_read().capacity.partial());
    CHECK_EQ(config_read().policy, "windowed-lfu:window=64");
    CHECK(config_read().per_layer && config_read().sync);
    CHECK_EQ(config_read().reserve_bytes, uint64_t(3) << 20);
    clean();
}

TEST(an_empty_variable_means_the_default) {
    clean();
    setenv("GGML_MOECACHE_CAPACITY", "", 1);
    setenv("GGML_MOECACHE_DEVICE_MIB", "", 1);
    CHECK_EQ(config_check(), "");
    CHECK(config_read().capacity.none());
}

TEST(nonsense_is_refused_with_name_rule_and_value) {
    clean();
    const std::string rule =
        "GGML_MOECACHE_CAPACITY must be a number of experts, a share like 25%, a size like 2GiB or 512MiB, auto, or all.";
    CHECK_EQ(config_set("GGML_MOECACHE_CAPACITY", "120%"), rule + " Got '120%' instead.");
    setenv("GGML_MOECACHE_CAPACITY", "ALL", 1);
    CHECK_EQ(config_check(), rule + " Got 'ALL' instead.");
    clean();
    CHECK_EQ(config_set("GGML_MOECACHE_POLICY", "belady"),
             "GGML_MOECACHE_POLICY must be a policy that can run. Got 'belady', which needs to see the whole trace or "
             "single accesses, instead.");
    CHECK_EQ(config_set("GGML_MOECACHE_POLICY", "request-lfu:tie=recency"), "");
    CHECK_EQ(config_set("GGML_MOECACHE_POLICY", nullptr), "");
    CHECK(config_set("GGML_MOECACHE_POLICY", "lru:weight=3").find("GGML_MOECACHE_POLICY: ") == 0);
    for (const char * bad : { "", "-1", "x", "99999999999999999999" }) {
        CHECK(!config_set("GGML_MOECACHE_RESERVE_MIB", bad).empty());
    }
    for (const char * bad : { "", "0%", "101%", "50", "2GiB", "auto", "all", "x%" }) {
        CHECK(!config_set("GGML_MOECACHE_EXPERT_SHARE", bad).empty());
    }
    CHECK_EQ(config_read().expert_share, 0.5);
    CHECK_EQ(config_set("GGML_MOECACHE_EXPERT_SHARE", "12.5%"), "");
    CHECK_EQ(config_read().expert_share, 0.125);
    CHECK_EQ(config_set("GGML_MOECACHE_EXPERT_SHARE", nullptr), "");
    for (const char * bad : { "0", "-1", "+8", " 8", "8 ", "8.5", "1e3", "0x10", "99999999999999999999", "MiB" }) {
        CHECK(!config_set("GGML_MOECACHE_DEVICE_MIB", bad).empty());
    }
    for (const char * bad : { "yes", "9", "-1", "1.5", "true", "" }) {
        CHECK(!config_set("GGML_MOECACHE_STANDIN", bad).empty());
    }
    for (const char * bad : { "yes", "2", "true", "" }) {
        CHECK(!config_set("MOECACHE_REQUIRE", bad).empty());
    }
    CHECK_EQ(config_check(), "");
}

TEST(an_unknown_name_is_refused) {
    clean();
    CHECK(config_set("GGML_MOECACHE_CAPACTIY", "0").find("'GGML_MOECACHE_CAPACTIY'") == 0);
    CHECK(!config_set(nullptr, "0").empty());
}

TEST(misspelt_names_in_the_environment_are_found) {
    setenv("GGML_MOECACHE_POLICI", "lru", 1);
    setenv("GGML_MOECACHE_CAPASITY", "25%", 1);
    setenv("GGML_MOECACHE_EMPTY", "", 1);
    setenv("GGML_MOECACHE_HOME", "/tmp", 1); // scripts/setup's
    setenv("OTHER_GGML_MOECACHE_POLICY", "lru", 1);
    CHECK(config_unknown() == (std::vector<std::string> { "GGML_MOECACHE_CAPASITY", "GGML_MOECACHE_POLICI" }));
    CHECK_EQ(config_check(), "");
    setenv("MOECACHE_REQUIRE", "1", 1);
    CHECK_EQ(config_check(),
             "GGML_MOECACHE_CAPASITY is set and is no variable of ggml_moecache; `moecache config` lists them");
    for (const char * name : { "GGML_MOECACHE_POLICI", "GGML_MOECACHE_CAPASITY", "GGML_MOECACHE_EMPTY",
                               "GGML_MOECACHE_HOME", "OTHER_GGML_MOECACHE_POLICY" }) {
        unsetenv(name);
    }
    CHECK_EQ(config_check(), "");
    unsetenv("MOECACHE_REQUIRE");
}

TEST(device_cap_is_in_mib) {
    clean();
    CHECK_EQ(config_set("GGML_MOECACHE_DEVICE_MIB", "8"), "");
    CHECK_EQ(config_device_cap_bytes(), uint64_t(8) * 1024 * 1024);
    CHECK_EQ(config_set("GGML_MOECACHE_DEVICE_MIB", "8192"), "");
    CHECK_EQ(config_device_cap_bytes(), uint64_t(8) * 1024 * 1024 * 1024);
}

TEST(the_logs_settings_are_checked) {
    clean();
    CHECK_EQ(config_read().n_log_ring_events, 262144u);
    for (const char * bad : { "0", "63", "67108865", "1099511627776", "many" }) {
        CHECK(!config_set("GGML_MOECACHE_LOG_RING_EVENTS", bad).empty());
    }
    CHECK_EQ(config_set("GGML_MOECACHE_LOG_RING_EVENTS", "64"), "");
    CHECK_EQ(config_set("GGML_MOECACHE_LOG_FULL", "wait"), "");
    CHECK(!config_set("GGML_MOECACHE_LOG_FULL", "block").empty());
    CHECK(config_read().log_wait);
    CHECK_EQ(config_set("GGML_MOECACHE_LOG", "folder"), "");
    CHECK_EQ(config_read().log_folder, "folder");
    CHECK_EQ(config_set("GGML_MOECACHE_LOG_LIVE", "1"), "");
    CHECK(config_check().find("the ring has one consumer") != std::string::npos);
    clean();
}

TEST(every_variable_is_documented) {
    size_t                n     = 0;
    const variable_info * table = variable_table(n);
    CHECK(n >= 5);
    for (size_t i = 0; i < n; i++) {
        CHECK(std::strlen(table[i].values) > 0);
        CHECK(std::strlen(table[i].summary) > 20);
    }
}
