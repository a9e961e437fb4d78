#include "core/routing-log.h"

#include "check.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace moecache;

namespace {

struct scratch_folder {
    std::string path;

    scratch_folder() {
        char name[] = "/tmp/moecache-log-XXXXXX";
        path        = mkdtemp(name);
    }

    ~scratch_folder() { CHECK_EQ(std::system(("rm -rf " + path).c_str()), 0); }
};

std::vector<std::string> lines_of(const std::string & path) {
    std::ifstream            file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
        lines.push_back(line);
    }
    return lines;
}

routing_log_options options(const std::string & folder, size_t n_ring_events = 64) {
    routing_log_options result;
    result.folder        = folder;
    result.file_name     = "routing.jsonl";
    result.context_id    = 2;
    result.n_ring_events = n_ring_events;
    result.k_max         = 3;
    return result;
}

void put(routing_log & log, int32_t token, float weight = 0.75f) {
    routing_event * event = log.ring().begin(9);
    if (event == nullptr) {
        return;
    }
    event->request_id            = 4;
    event->token_index           = token;
    event->layer_id              = 7;
    event->family                = 0;
    event->phase                 = MOECACHE_PHASE_DECODE;
    event->n_used                = 2;
    event->has_weights           = 1;
    event->ids()[0]              = 11;
    event->ids()[1]              = 5;
    log.ring().weights(event)[0] = weight;
    log.ring().weights(event)[1] = 0.1f;
    log.ring().commit();
}

std::unique_ptr<routing_log> open(const routing_log_options & options) {
    std::string error;
    auto        log = routing_log::open(options, error);
    CHECK_EQ(error, "");
    return log;
}

} // namespace

TEST(an_event_is_a_line_and_the_log_ends_with_a_count) {
    scratch_folder folder;
    auto           log = open(options(folder.path + "/a/b"));
    put(*log, 3);
    log.reset();
    const auto lines = lines_of(folder.path + "/a/b/routing.jsonl");
    CHECK_EQ(lines.size(), 2u);
    CHECK_EQ(
        lines[0],
        "{\"type\":\"event\",\"run_id\":\"" + routing_run_id() +
            "\",\"context_id\":2,\"batch_id\":9,\"request_id\":4,\"token_index\":3,\"layer_id\":7,\"family\":\"exps\","
            "\"phase\":\"decode\",\"expert_ids\":[11,5],\"router_weights\":[0.75,0.1],\"resident_experts\":null,"
            "\"cache_hit\":[],\"admitted\":[],\"evicted\":[],\"copy_enqueued_ns\":null,\"copy_ready_ns\":null,"
            "\"ready_before_next_token\":null,\"copy_bytes\":0,\"copy_duration_ns\":null,\"cpu_duration_ns\":null,"
            "\"cuda_duration_ns\":null}");
    CHECK_EQ(lines[1], "{\"type\":\"end\",\"run_id\":\"" + routing_run_id() +
                           "\",\"context_id\":2,\"events\":1,\"lost_events\":0}");
}

TEST(weights_that_json_cannot_write_are_null) {
    scratch_folder folder;
    auto           log = open(options(folder.path));
    put(*log, 0, std::numeric_limits<float>::quiet_NaN());
    log.reset();
    CHECK(lines_of(folder.path + "/routing.jsonl")[0].find("\"router_weights\":null") != std::string::npos);
}

// Two layers, 7 and 9, of 16 experts: items 0 to 15 and 16 to 31. Four decisions do not fit one slot of k_max = 3.
TEST(what_a_cache_did_stands_in_the_line) {
    scratch_folder folder;
    column_info    layer;
    layer.layer_id    = 7;
    layer.n_experts   = 16;
    column_info later = layer;
    later.layer_id    = 9;
    auto with_cache   = options(folder.path);
    with_cache.cache  = std::make_shared<cache_geometry>(cache_geometry::make({ layer, later }, false));
    auto       log    = open(with_cache);
    const auto decide = [&](std::vector<routing_decision> made) {
        routing_event * slot = log->ring().begin(9);
        slot->kind           = MOECACHE_SLOT_DECISIONS;
        slot->n_used         = static_cast<uint16_t>(made.size());
        std::copy(made.begin(), made.end(), log->ring().decisions(slot));
        log->ring().commit();
    };
    decide({ { 11, no_item }, { 5, 16 + 3 }, { 4, 2 } });
    decide({ { 16 + 6, 16 + 15 } });
    routing_event * event     = log->ring().begin(9);
    event->layer_id           = 7;
    event->n_used             = 2;
    event->ids()[0]           = 11;
    event->ids()[1]           = 5;
    *log->ring().cache(event) = { 2, 40, 1000, 0, 77, 0, 300, 0, 0, 1, 0, {} };
    log->ring().commit();
    put(*log, 4); // it passed the cache by
    CHECK_EQ(log->ring().n_committed(), uint64_t(2));
    log.reset();
    const auto lines = lines_of(folder.path + "/routing.jsonl");
    CHECK_EQ(lines.size(), size_t(3));
    const std::string made =
        "\"resident_experts\":40,\"cache_hit\":[false,true],\"admitted\":[[7,11],[7,5],[7,4],[9,6]],\"evicted\":[[9,3],[7,2],[9,15]],"
        "\"copy_enqueued_ns\":1000,\"copy_ready_ns\":null,\"ready_before_next_token\":false,\"copy_bytes\":77,"
        "\"copy_duration_ns\":null,\"cpu_duration_ns\":300,\"cuda_duration_ns\":null}";
    CHECK(lines[0].find(made) != std::string::npos);
    CHECK(lines[1].find("\"resident_experts\":null,\"cache_hit\":[],\"admitted\":[],\"evicted\":[],") !=
          std::string::npos);
    CHECK(lines[2].find("\"events\":2") != std::string::npos);
}

// The set is told in front of the first event that is known to have been looked up in it; an event that comes before
// all changes are there, and one that passed the cache by, have no line.
TEST(resident_experts_stand_before_their_first_event) {
    scratch_folder folder;
    column_info    layer;
    layer.layer_id         = 7;
    layer.n_experts        = 16;
    auto with_cache        = options(folder.path);
    with_cache.cache       = std::make_shared<cache_geometry>(cache_geometry::make({ layer }, false));
    auto       log         = open(with_cache);
    const auto put_changes = [&](std::vector<snapshot_change> changes) {
        routing_event * slot = log->ring().begin(9);
        slot->kind           = MOECACHE_SLOT_CHANGES;
        slot->n_used         = static_cast<uint16_t>(changes.size());
        std::copy(changes.begin(), changes.end(), log->ring().changes(slot));
        log->ring().commit();
    };
    const auto put_event = [&](uint64_t generation, bool set_known) {
        routing_event * event                = log->ring().begin(9);
        event->layer_id                      = 7;
        event->n_used                        = 1;
        event->ids()[0]                      = 2;
        log->ring().cache(event)->cached     = 1;
        log->ring().cache(event)->generation = generation;
        log->ring().cache(event)->set_known  = set_known;
        log->ring().commit();
    };
    put_changes({ { 2, 1 }, { 4, 1 } });
    put_event(3, false);
    put_changes({ { 1, 1 } });
    put_event(3, true);
    put_event(3, true);
    put(*log, 4);
    put_changes({ { 4, 0 } });
    put_event(4, true);
    log.reset();
    std::vector<std::string> shown;
    for (const std::string & line : lines_of(folder.path + "/routing.jsonl")) {
        const size_t at = line.find("\"generation\"");
        shown.push_back(at != std::string::npos ? line.substr(at) : line.substr(9, 5));
    }
    const std::vector<std::string> expected = { "event", "\"generation\":3,\"full\":[[7,1],[7,2],[7,4]]}",
                                                "event", "event",
                                                "event", "\"generation\":4,\"added\":[],\"removed\":[[7,4]]}",
                                                "event", "end\"," };
    CHECK(shown == expected);
}

TEST(nothing_is_lost_silently_under_load) {
    scratch_folder folder;
    auto           log      = open(options(folder.path, 64));
    const int      n_events = 100000;
    for (int token = 0; token < n_events; token++) {
        put(*log, token);
    }
    const uint64_t lost = log->ring().n_lost();
    log.reset();
    uint64_t n_lines = 0;
    uint64_t n_gap   = 0;
    for (const std::string & line : lines_of(folder.path + "/routing.jsonl")) {
        n_lines += line.find("\"type\":\"event\"") != std::string::npos;
        const size_t at = line.find("\"lost_events\":");
        if (line.find("\"type\":\"overflow\"") != std::string::npos) {
            n_gap += std::strtoull(line.c_str() + at + 14, nullptr, 10);
        }
    }
    CHECK_EQ(n_lines + lost, static_cast<uint64_t>(n_events));
    CHECK_EQ(n_gap, lost);
}

TEST(losses_at_the_very_end_are_reported_too) {
    scratch_folder folder;
    auto           log = open(options(folder.path, 1));
    for (int token = 0; token < 5000; token++) { // faster than a writer that sleeps a millisecond
        put(*log, token);
    }
    const uint64_t lost = log->ring().n_lost();
    CHECK(lost > 0);
    log.reset();
    uint64_t n_gap = 0;
    for (const std::string & line : lines_of(folder.path + "/routing.jsonl")) {
        if (line.find("\"type\":\"overflow\"") != std::string::npos) {
            CHECK(line.find("\"batch_id\":9,") != std::string::npos);
            n_gap += std::strtoull(line.c_str() + line.find("\"lost_events\":") + 14, nullptr, 10);
        }
    }
    CHECK_EQ(n_gap, lost);
}

TEST(a_log_is_never_overwritten) {
    scratch_folder folder;
    std::ofstream(folder.path + "/routing.jsonl") << "mine\n";
    std::string error;
    CHECK(routing_log::open(options(folder.path), error) == nullptr);
    CHECK_EQ(error,
             folder.path + "/routing.jsonl exists already and is not overwritten; name another folder or remove it");
    CHECK_EQ(lines_of(folder.path + "/routing.jsonl")[0], "mine");
}

TEST(a_folder_that_is_a_file_is_refused) {
    scratch_folder folder;
    std::ofstream(folder.path + "/file") << "x";
    std::string error;
    CHECK(routing_log::open(options(folder.path + "/file"), error) == nullptr);
    CHECK_EQ(error, folder.path + "/file is a file, not a folder; name another one");
    CHECK(routing_log::open(options(folder.path + "/file/below"), error) == nullptr);
    CHECK(error.find("cannot make the folder " + folder.path + "/file/below: ") == 0 || error.find("cannot use") == 0);
}

TEST(a_full_disk_is_an_error_and_counts_as_lost) {
    if (access("/dev/full", W_OK) != 0) {
        return; // not every system has it
    }
    scratch_folder folder;
    // O_EXCL refuses a link, so the log is opened on a file and its descriptor is pointed to /dev/full
    auto log = open(options(folder.path));
    for (int fd = 3; fd < 64; fd++) {
        char       target[256] = { 0 };
        const auto n           = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof(target) - 1);
        if (n > 0 && std::string(target) == folder.path + "/routing.jsonl") {
            FILE * full = std::fopen("/dev/full", "w");
            CHECK(dup2(fileno(full), fd) == fd);
            std::fclose(full);
        }
    }
    for (int token = 0; token < 10; token++) {
        put(*log, token);
    }
    for (int i = 0; i < 2000 && log->error().empty(); i++) {
        usleep(1000);
    }
    CHECK_EQ(log->error(), "No space left on device");
    CHECK_EQ(log->n_written(), 0u);
    CHECK_EQ(log->n_lost(), 10u);
}

// A limit on the length of files stands for a disk that has room for some lines and a part of the next. The signal that
// the system sends then ends a program that has not blocked it.
TEST(what_a_full_disk_has_taken_counts_as_stored) {
    scratch_folder folder;
    rlimit         before {};
    getrlimit(RLIMIT_FSIZE, &before);
    std::string error;
    auto        log = routing_log::open(options(folder.path + "/log", 4096), error);
    rlimit      low = before;
    low.rlim_cur    = 10000;
    setrlimit(RLIMIT_FSIZE, &low);
    for (int32_t token = 0; token < 100; token++) {
        put(*log, token);
    }
    log->close();
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK(log->failed());
    const std::vector<std::string> lines = lines_of(folder.path + "/log/routing.jsonl");
    CHECK(lines.size() > 1 && lines.size() < 100);
    CHECK(lines.back().back() != '}'); // cut off
    CHECK_EQ(log->n_written(), lines.size() - 1);
    CHECK_EQ(log->n_written() + log->n_lost(), 100u);
}
