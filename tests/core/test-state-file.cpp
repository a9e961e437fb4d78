#include "core/json-reader.h"
#include "core/state-file.h"

#include "check.h"

using namespace moecache;

static saved_session example() {
    saved_session saved;
    saved.state.policy = "lru:admit-after=2";
    saved.per_layer    = true;
    saved.slots        = { 2, 1 };
    saved.columns      = { { 0, "exps", 4, 100 }, { 3, "chexps", 8, 0 } };
    saved.state.put("content", { 1, 3, 9 });
    saved.state.put("last_use", { -5, INT64_MAX, INT64_MIN });
    saved.state.put("none", {});
    return saved;
}

static const char * const example_text =
    R"({"format":{"name":"ggml_moecache session state","version":1},"policy":"lru:admit-after=2","per_layer":true,)"
    R"("slots":[2,1],"columns":[{"layer_id":0,"family":"exps","n_experts":4,"expert_bytes":100},)"
    R"({"layer_id":3,"family":"chexps","n_experts":8,"expert_bytes":0}],)"
    R"("arrays":{"content":[1,3,9],"last_use":[-5,9223372036854775807,-9223372036854775808],"none":[]}})";

TEST(a_state_is_written_as_documented_and_read_back) {
    CHECK_EQ(saved_session_text(example()), example_text);
    saved_session read;
    CHECK_EQ(saved_session_parse(example_text, read), "");
    CHECK_EQ(saved_session_text(read), example_text);
    CHECK_EQ(saved_session_parse(" \n" + std::string(example_text) + "\n", read), "");
}

// Cut anywhere it is no state, and nothing is read beyond the end; in the middle of a word the word is what is named.
TEST(a_part_of_a_state_is_none) {
    const std::string whole = example_text;
    for (size_t n = 0; n < whole.size(); n++) {
        saved_session     read;
        const std::string error   = saved_session_parse(whole.substr(0, n), read);
        const bool        in_word = n > 0 && std::string("-0123456789trufalse").find(whole[n - 1]) != std::string::npos;
        CHECK(error.find("it is no JSON: line 1: ") == 0);
        CHECK(in_word || error == "it is no JSON: line 1: the text ends early");
    }
}

// Any byte replaced: read or refused, but never a crash or a state with other layers than slots say.
TEST(a_damaged_state_is_read_or_refused) {
    const std::string whole   = example_text;
    size_t            refused = 0;
    for (size_t n = 0; n < whole.size(); n++) {
        for (const char c : { '\0', '"', '{', ']', ',', '9', '-', '\\', 'x', '\xff' }) {
            std::string text = whole;
            text[n]          = c;
            saved_session read;
            refused += saved_session_parse(text, read).empty() ? 0 : 1;
        }
    }
    CHECK(refused > 10 * whole.size() / 2);
}

static std::string with(const char * from, const char * to) {
    std::string  text  = example_text;
    const size_t place = text.find(from);
    CHECK(place != std::string::npos);
    text.replace(place, std::string(from).size(), to);
    saved_session read;
    return saved_session_parse(text, read);
}

TEST(what_is_wrong_with_a_state_is_named) {
    CHECK_EQ(with("session state", "routing log"),
             "it is no session state: \"format\" does not name it \"ggml_moecache session state\"");
    CHECK_EQ(with("\"version\":1", "\"version\":2"),
             "its format has another version than 1, the one that this version of ggml_moecache reads");
    CHECK_EQ(with("\"per_layer\":true", "\"per_layer\":1"),
             "\"policy\" must be a string and \"per_layer\" true or false");
    CHECK_EQ(with("[2,1]", "[2,-1]"), "\"slots\" must be a list of numbers of slots");
    CHECK_EQ(with("\"n_experts\":8", "\"n_experts\":0"),
             "\"columns\"[1] must have layer_id, family, n_experts and expert_bytes, numbers of at least 0");
    CHECK_EQ(with("[1,3,9]", "[1,3,\"9\"]"), "\"arrays\".\"content\" must be a list of whole numbers of 64 bits");
    CHECK_EQ(with("[1,3,9]", "[1,3,9.0]"), "\"arrays\".\"content\" must be a list of whole numbers of 64 bits");
    CHECK_EQ(with("9223372036854775807", "9223372036854775808"),
             "it is no JSON: line 1: '9223372036854775808' is no number, or too large");
    CHECK_EQ(with("\"none\"", "\"content\""), "it is no JSON: line 1: \"content\" is there twice");
    CHECK_EQ(with("\"none\":[]}}", "\"none\":[]}}}"), "it is no JSON: line 1: nothing may follow the value");
    CHECK_EQ(with("{\"format\"", "\n{\n\"other\":null,\"format\""), ""); // members that are not known are skipped
}

TEST(a_state_belongs_to_one_cache) {
    const saved_session saved    = example();
    cache_geometry      geometry = cache_geometry::make({ { 0, "exps", 4, 100 }, { 3, "chexps", 8, 50 } }, true);
    CHECK_EQ(geometry.set_slots({ 2, 1 }), "");
    CHECK_EQ(saved_session_misfit(saved, geometry, true, "lru:admit-after=2", ""), "");
    CHECK_EQ(saved_session_misfit(saved, geometry, true, "lru", ""),
             "the session state is of policy lru:admit-after=2, this cache's is lru");
    CHECK_EQ(saved_session_misfit(saved, geometry, false, "lru:admit-after=2", ""),
             "the session state is of a cache with slots for each layer, this one has them for all layers together");
    geometry.columns[0].expert_bytes = 101;
    CHECK_EQ(
        saved_session_misfit(saved, geometry, true, "lru:admit-after=2", ""),
        "the session state is of another model, or of other layers on the device: it has layer 0 (exps), 4 experts of 100 bytes where this cache has "
        "layer 0 (exps), 4 experts of 101 bytes");
    saved_session many = example();
    many.slots.assign(1000, 7);
    geometry.columns[0].expert_bytes = 100;
    CHECK_EQ(
        saved_session_misfit(many, geometry, true, "lru:admit-after=2", ""),
        "the session state is of a cache with [7,7,7,7,7,7,7,7,... 1000 numbers] slots, this one has [2,1]; a state "
        "holds for one capacity");
    geometry = cache_geometry::make({ { 0, "exps", 4, 100 } }, true);
    CHECK_EQ(
        saved_session_misfit(saved, geometry, true, "lru:admit-after=2", ""),
        "the session state is of another model, or of other layers on the device: it has 2 MoE layers (and families), this cache 1");
    geometry = cache_geometry::make({ { 0, "exps", 4, 100 }, { 3, "chexps", 8, 50 } }, true);
    CHECK_EQ(geometry.set_slots({ 3, 1 }), "");
    CHECK_EQ(saved_session_misfit(saved, geometry, true, "lru:admit-after=2", ""),
             "the session state is of a cache with [2,1] slots, this one has [3,1]; a state holds for one capacity");
}

TEST(two_fingerprints_that_are_known_must_agree) {
    saved_session  saved    = example();
    cache_geometry geometry = cache_geometry::make({ { 0, "exps", 4, 100 }, { 3, "chexps", 8, 50 } }, true);
    CHECK_EQ(geometry.set_slots({ 2, 1 }), "");
    CHECK_EQ(saved_session_misfit(saved, geometry, true, "lru:admit-after=2", "00000000000000aa"), "");
    saved.model            = "00000000000000aa";
    const std::string text = saved_session_text(saved);
    CHECK(text.find("\"version\":1},\"model\":\"00000000000000aa\",\"policy\"") != std::string::npos);
    saved_session read;
    CHECK_EQ(saved_session_parse(text, read), "");
    CHECK_EQ(saved_session_misfit(read, geometry, true, "lru:admit-after=2", "00000000000000aa"), "");
    CHECK_EQ(saved_session_misfit(read, geometry, true, "lru:admit-after=2", ""), "");
    CHECK_EQ(saved_session_misfit(read, geometry, true, "lru:admit-after=2", "00000000000000ab"),
             "the session state is of another model with the same layers and experts: its fingerprint is "
             "00000000000000aa, this one's is 00000000000000ab (each quantization has its own)");
    CHECK_EQ(with("\"policy\"", "\"model\":1,\"policy\""), "\"model\" must be a string");
}

TEST(json_values) {
    json_value value;
    CHECK_EQ(json_parse(R"({"a":[true,false,null,-0,1e3],"b":"\u0041\n\"\\ü"})", value), "");
    CHECK_EQ(value.find("a")->items.size(), 5u);
    CHECK_EQ(value.find("a")->items[4].text, "1e3");
    CHECK_EQ(value.find("b")->text, "A\n\"\\ü");
    CHECK(value.find("c") == nullptr);
    CHECK_EQ(json_parse("[1,2,\"x\"]", value), "");
    CHECK_EQ(value.items[1].number, 2);
    CHECK_EQ(json_parse("[\n1,\n]", value), "line 3: a value was expected");
    CHECK_EQ(json_parse("[-]", value), "line 1: '-' is no number, or too large");
    CHECK_EQ(json_parse("\"\\u1234\"", value), "line 1: an escape that is not known");
    CHECK_EQ(json_parse(std::string(100, '['), value), "line 1: values are nested too deeply");
}
