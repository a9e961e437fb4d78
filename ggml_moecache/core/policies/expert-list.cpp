#include "core/policies/expert-list.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace moecache {

static std::vector<std::string> fields_of(const std::string & line) {
    std::vector<std::string> fields;
    for (size_t begin = 0; begin <= line.size();) {
        const size_t end = std::min(line.find(',', begin), line.size());
        fields.push_back(line.substr(begin, end - begin));
        begin = end + 1;
    }
    return fields;
}

static bool parse_index(const std::string & text, int64_t & value) {
    if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos) {
        return false;
    }
    value = std::strtoll(text.c_str(), nullptr, 10);
    return true;
}

// The item of `line`, or "" and why not in `error`.
static uint32_t item_of(const std::string & line, bool has_family, const cache_geometry & geometry,
                        std::string & error) {
    const std::vector<std::string> fields = fields_of(line);
    const size_t                   n      = has_family ? 3 : 2;
    int64_t                        layer  = 0;
    int64_t                        expert = 0;
    if (fields.size() != n || !parse_index(fields[0], layer) || !parse_index(fields[n - 1], expert)) {
        error = std::string("must be ") + (has_family ? "layer,family,expert" : "layer,expert") + ". Got '" + line +
                "' instead.";
        return no_item;
    }
    const std::string family = has_family ? fields[1] : "exps";
    for (size_t column = 0; column < geometry.columns.size(); column++) {
        const column_info & info = geometry.columns[column];
        if (info.layer_id == layer && info.family == family) {
            if (expert < info.n_experts) {
                return geometry.first_item[column] + static_cast<uint32_t>(expert);
            }
            error = "layer " + fields[0] + " has " + std::to_string(info.n_experts) + " experts, there is no expert " +
                    fields[n - 1];
            return no_item;
        }
    }
    error = "there is no layer " + fields[0] + " with experts of family " + family;
    return no_item;
}

std::string read_expert_list(const std::string & path, const cache_geometry & geometry, std::vector<uint32_t> & items) {
    errno = 0;
    std::ifstream file(path);
    if (!file) {
        return path + ": cannot be read: " + std::strerror(errno);
    }
    std::vector<bool> named(geometry.n_items());
    std::string       line;
    bool              has_header = false;
    bool              has_family = false;
    for (size_t number = 1; std::getline(file, line); number++) {
        if (!line.empty() && line.back() == '\r') {
            line.pop_back();
        }
        if (line.empty() || line[0] == '#') {
            continue;
        }
        const std::string place = path + ":" + std::to_string(number) + ": ";
        if (!has_header) {
            has_family = line == "layer,family,expert";
            has_header = has_family || line == "layer,expert";
            if (!has_header) {
                return place + "the header must be layer,expert or layer,family,expert. Got '" + line + "' instead.";
            }
            continue;
        }
        std::string    error;
        const uint32_t item = item_of(line, has_family, geometry, error);
        if (!error.empty()) {
            return place + error;
        }
        if (named[item]) {
            return place + "the expert is named twice";
        }
        named[item] = true;
        items.push_back(item);
    }
    if (file.bad()) { // a folder, for one
        return path + ": cannot be read: " + std::strerror(errno);
    }
    if (!has_header) {
        return path + ": has no header layer,expert";
    }
    return items.empty() ? path + ": names no expert: there is no line after the header" : "";
}

} // namespace moecache
