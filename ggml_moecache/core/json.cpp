#include "core/json.h"

#include <cstdio>

namespace moecache {

void json_writer::quote(const std::string & text) {
    out += '"';
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
            out += escape;
        } else {
            out += c;
        }
    }
    out += '"';
}

void json_writer::prefix(const char * key) {
    if (!first) {
        out += ',';
    }
    first = false;
    if (key != nullptr) {
        quote(key);
        out += ':';
    }
}

json_writer & json_writer::begin_object(const char * key) {
    prefix(key);
    out += '{';
    first = true;
    return *this;
}

json_writer & json_writer::end_object() {
    out += '}';
    first = false;
    return *this;
}

json_writer & json_writer::begin_array(const char * key) {
    prefix(key);
    out += '[';
    first = true;
    return *this;
}

json_writer & json_writer::end_array() {
    out += ']';
    first = false;
    return *this;
}

json_writer & json_writer::value(const char * key, const std::string & text) {
    prefix(key);
    quote(text);
    return *this;
}

json_writer & json_writer::value(const char * key, const char * text) {
    return value(key, std::string(text));
}

json_writer & json_writer::value(const char * key, uint64_t number) {
    prefix(key);
    out += std::to_string(number);
    return *this;
}

json_writer & json_writer::value(const char * key, bool truth) {
    prefix(key);
    out += truth ? "true" : "false";
    return *this;
}

json_writer & json_writer::null(const char * key) {
    return raw(key, "null");
}

json_writer & json_writer::raw(const char * key, const std::string & json) {
    prefix(key);
    out += json;
    return *this;
}

} // namespace moecache
