#include "core/status.h"

#include "check.h"
#include "core/json.h"

#include <cstring>
#include <fstream>
#include <sstream>

#include <unistd.h>

using namespace moecache;

static context_facts active_facts() {
    context_facts facts;
    facts.state              = context_state::active;
    facts.device             = "MoECache0";
    facts.inner              = "CUDA0 (a GPU)";
    facts.capacity           = "all";
    facts.n_experts          = 1024;
    facts.n_resident         = 256;
    facts.n_layers           = 8;
    facts.resident_bytes     = 3 << 20;
    facts.store_bytes        = 12 << 20;
    facts.store_pinned_bytes = 12 << 20;
    return facts;
}

TEST(json_escapes_text) {
    json_writer json;
    json.begin_object().value("a\"b", "line\n\\ \x01").value("n", uint64_t(18446744073709551615u)).value("t", true);
    json.begin_array("list")
        .value(nullptr, "x")
        .value(nullptr, uint64_t(2))
        .begin_object()
        .end_object()
        .end_array()
        .end_object();
    CHECK_EQ(json.text(),
             "{\"a\\\"b\":\"line\\u000a\\\\ \\u0001\",\"n\":18446744073709551615,\"t\":true,\"list\":[\"x\",2,{}]}");
}

TEST(the_status_line_says_what_where_and_how_much) {
    const auto status = context_status::create(active_facts());
    CHECK_EQ(status->status_line(),
             "moecache: active: 256 of 1024 experts (25 %) in 3.0 MiB on MoECache0 over CUDA0 (a GPU), capacity "
             "all, 12.0 MiB of experts in host memory (pinned)");
    context_facts facts      = active_facts();
    facts.store_pinned_bytes = 1 << 20;
    facts.n_layers_elsewhere = 3;
    facts.per_layer          = true;
    status->update(facts);
    CHECK(status->status_line().find("(partly pinned), 3 MoE layers elsewhere") != std::string::npos);
    CHECK(status->status_line().find(", capacity all per layer, ") != std::string::npos);
    status->close();
}

TEST(what_is_no_whole_share_is_not_rounded_to_one) {
    const auto    status = context_status::create(active_facts());
    context_facts facts  = active_facts();
    for (const auto & [n_resident, share] :
         { std::pair(uint64_t(1023), "(99.9 %)"), { 1, "(0.0 %)" }, { 128, "(12.5 %)" }, { 0, "(0 %)" } }) {
        facts.n_resident = n_resident;
        status->update(facts);
        CHECK(status->status_line().find(share) != std::string::npos);
    }
    status->close();
}

TEST(an_inactive_line_names_the_reason_and_the_figures) {
    context_facts facts = active_facts();
    facts.state         = context_state::inactive;
    facts.why           = reason::no_room;
    facts.detail        = "22.5 MiB wanted, 3.1 MiB free";
    const auto status   = context_status::create(facts);
    CHECK(status->status_line().find("moecache: inactive: no_room: 22.5 MiB wanted, 3.1 MiB free - ") == 0);
    status->close();
}

TEST(the_exit_line_counts) {
    const auto status           = context_status::create(active_facts());
    status->counters.n_hits     = 10;
    status->counters.n_misses   = 3;
    status->counters.n_copies   = 2;
    status->counters.copy_bytes = 5 << 20;
    status->counters.n_graphs   = 7;
    CHECK_EQ(status->exit_line(),
             "moecache: exit: 10 hits, 3 misses, 2 copies, 5.0 MiB copied, 7 graphs, 0 warm-up graphs");
    status->close();
}

TEST(a_context_that_never_computed_is_forgotten_others_stay) {
    const size_t  before = status_json().size();
    context_facts idle;
    idle.device       = "MoECache-idle";
    const auto status = context_status::create(idle);
    CHECK(status_json().find("MoECache-idle") != std::string::npos);
    status->close();
    CHECK_EQ(status_json().size(), before);
    const auto kept = context_status::create(active_facts());
    kept->add_fallback(reason::no_room);
    kept->add_fallback(reason::no_room);
    kept->close();
    CHECK(status_json().find("\"closed\":true") != std::string::npos);
    CHECK(status_json().find("\"fallbacks\":[\"no_room\"]") != std::string::npos);
    CHECK(status_any_known());
}

TEST(every_field_of_the_json_stands_there_once) {
    const auto        only = context_status::create(active_facts());
    const std::string json = status_json();
    size_t            n    = 0;
    for (size_t at = json.find("\"context_id\""); at != std::string::npos; at = json.find("\"context_id\"", at + 1)) {
        n++;
    }
    for (const char * name : { "\"n_hits\"", "\"copy_bytes\"", "\"n_log_events\"", "\"n_log_lost\"", "\"log_ns\"" }) {
        size_t found = 0;
        for (size_t at = json.find(name); at != std::string::npos; at = json.find(name, at + 1)) {
            found++;
        }
        CHECK_EQ(found, n);
    }
    only->close();
}

TEST(the_status_file_is_replaced_as_a_whole) {
    const std::string path = "/tmp/moecache-test-status-" + std::to_string(getpid()) + ".json";
    std::ofstream(path) << "old";
    CHECK_EQ(status_write(path), "");
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    CHECK_EQ(text.str(), status_json() + "\n");
    CHECK(access((path + ".tmp" + std::to_string(getpid())).c_str(), F_OK) != 0);
    unlink(path.c_str());
}

TEST(an_unwritable_status_file_is_an_error_that_names_it) {
    const std::string error = status_write("/nonexistent-folder/status.json");
    CHECK(error.find("cannot write /nonexistent-folder/status.json: ") == 0);
}

TEST(reasons_are_in_the_order_of_their_codes) {
    size_t              n     = 0;
    const reason_info * table = reason_table(n);
    for (size_t i = 0; i < n; i++) {
        CHECK_EQ(static_cast<size_t>(table[i].code), i);
        CHECK(std::strlen(table[i].text) > 0);
    }
    CHECK_EQ(std::string(reason_name(reason::log_full)), table[n - 1].name); // the last one of the enumeration
}
