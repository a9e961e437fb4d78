#include "core/config.h"

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
    CHECK(!config_standin());
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

TEST(an_empty_variable_means_the_default) {
    clean();
    setenv("GGML_MOECACHE_CAPACITY", "", 1);
    setenv("GGML_MOECACHE_DEVICE_MIB", "", 1);
    CHECK_EQ(config_check(), "");
    CHECK(config_read().capacity.none());
}

TEST(nonsense_is_refused_with_name_rule_and_value) {
    clean();
    CHECK_EQ(config_set("GGML_MOECACHE_CAPACITY", "120%"),
             "GGML_MOECACHE_CAPACITY must be 0 or all. Got '120%' instead.");
    setenv("GGML_MOECACHE_CAPACITY", "ALL", 1);
    CHECK_EQ(config_check(), "GGML_MOECACHE_CAPACITY must be 0 or all. Got 'ALL' instead.");
    clean();
    for (const char * bad : { "0", "-1", "+8", " 8", "8 ", "8.5", "1e3", "0x10", "99999999999999999999", "MiB" }) {
        CHECK(!config_set("GGML_MOECACHE_DEVICE_MIB", bad).empty());
    }
    for (const char * bad : { "yes", "2", "true", "" }) {
        CHECK(!config_set("GGML_MOECACHE_STANDIN", bad).empty());
        CHECK(!config_set("MOECACHE_REQUIRE", bad).empty());
    }
    CHECK_EQ(config_check(), "");
}

TEST(an_unknown_name_is_refused) {
    clean();
    CHECK(config_set("GGML_MOECACHE_CAPACTIY", "0").find("'GGML_MOECACHE_CAPACTIY'") == 0);
    CHECK(!config_set(nullptr, "0").empty());
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
