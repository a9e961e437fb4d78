#include "core/policies/expert-list.h"
#include "core/policies/replay.h"
#include "core/policies/table.h"

#include <cstdio>
#include <fstream>

TEST(cold_static_takes_the_first_used_for_good) {
    replay("cold-static",
           {
               { { 5, 2 }, "0 +5 +2" },
               { { 5, 1 }, "1 +1" },
               { { 3, 4 }, "0" },
               { { 1, 2 }, "2" },
               { { 3, 4 }, "0" },
               { { 5, 4 }, "1" },
           },
           3);
}

TEST(cold_static_by_id_is_placed_before_the_first_event) {
    replay("cold-static:order=id", { { { 5, 2 }, "1" }, { { 0, 1 }, "2" }, { { 3, 2 }, "1" } }, 3, 8, " +0 +1 +2");
}

TEST(hindsight_static_places_the_most_used) {
    // 2:3, 0:2 and 1:2, 3:1: of 0 and 1 the lower
    replay("hindsight-static",
           {
               { { 0, 1 }, "1" },
               { { 2, 1 }, "1" },
               { { 2, 3 }, "1" },
               { { 2, 0 }, "2" },
           },
           2, 8, " +2 +0");
}

static std::string temporary_file(const std::string & text) {
    static int        n_files = 0;
    const std::string path    = "test-static-" + std::to_string(n_files++) + ".csv"; // where ctest runs it: the build
    std::ofstream(path) << text;
    return path;
}

TEST(static_places_what_the_file_names) {
    const std::string path = temporary_file("# best first\nlayer,expert\n0,6\n0,1\n\n0,3\r\n");
    replay("static:file=" + path, { { { 6, 1 }, "2" }, { { 3, 6 }, "1" }, { { 0, 2 }, "0" } }, 2, 8, " +6 +1");
    replay("static:file=" + path, { { { 6, 3 }, "2" } }, 5, 8, " +6 +1 +3"); // fewer than slots
    std::remove(path.c_str());
}

TEST(bad_expert_lists_name_file_line_and_reason) {
    const cache_geometry geometry = hand_geometry(2, 4, { 2 });
    const struct {
        const char * text;
        const char * error;
    } cases[] = {
        { "", ": has no header layer,expert" },
        { "layer,expert\n# none\n", ": names no expert: there is no line after the header" },
        { "0,1\n", ":1: the header must be layer,expert or layer,family,expert. Got '0,1' instead." },
        { "layer,expert\n0,1\n0,1\n", ":3: the expert is named twice" },
        { "layer,expert\n0,4\n", ":2: layer 0 has 4 experts, there is no expert 4" },
        { "layer,expert\n2,0\n", ":2: there is no layer 2 with experts of family exps" },
        { "layer,family,expert\n0,chexps,0\n", ":2: there is no layer 0 with experts of family chexps" },
        { "layer,expert\n0,-1\n", ":2: must be layer,expert. Got '0,-1' instead." },
        { "layer,expert\n0,1,2\n", ":2: must be layer,expert. Got '0,1,2' instead." },
        { "layer,family,expert\n0,1\n", ":2: must be layer,family,expert. Got '0,1' instead." },
    };
    for (const auto & one : cases) {
        const std::string     path = temporary_file(one.text);
        std::vector<uint32_t> items;
        CHECK_EQ(read_expert_list(path, geometry, items), path + one.error);
        std::remove(path.c_str());
    }
    std::vector<uint32_t> items;
    CHECK_EQ(read_expert_list("/no/such/file", geometry, items),
             "/no/such/file: cannot be read: No such file or directory");
    const std::string path = temporary_file("layer,family,expert\n1,exps,3\n0,exps,2\n");
    CHECK_EQ(read_expert_list(path, geometry, items), "");
    CHECK_EQ(items.size(), 2u);
    CHECK_EQ(items[0], 7u);
    CHECK_EQ(items[1], 2u);
    std::remove(path.c_str());
}
