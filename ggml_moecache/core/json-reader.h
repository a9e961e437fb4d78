// A reader for JSON documents of ours: whole numbers, strings, arrays, objects. Fractions are read and kept as text,
// since nothing of ours has any.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace moecache {

enum class json_kind { null, boolean, whole, fraction, text, array, object };

struct json_value {
    json_kind                                       kind   = json_kind::null;
    bool                                            truth  = false;
    int64_t                                         number = 0;
    std::string                                     text;    // of a string or a fraction
    std::vector<int64_t>                            numbers; // of an array of whole numbers only; `items` is then empty
    std::vector<json_value>                         items;   // of any other array
    std::vector<std::pair<std::string, json_value>> members; // in their order, each name once

    const json_value * find(const std::string & name) const; // nullptr: no such member, or no object
    bool               is_array() const { return kind == json_kind::array; }
    bool               is_array_of_whole() const { return is_array() && items.empty(); }
};

// The one value that `text` holds. Returns "" or what is wrong, with its line.
std::string json_parse(const std::string & text, json_value & out);

} // namespace moecache
