// A writer for JSON objects and arrays: keys in the order of the calls, strings escaped, UTF-8 passed through.
#pragma once

#include <cstdint>
#include <string>

namespace moecache {

class json_writer {
public:
    json_writer & begin_object(const char * key = nullptr);
    json_writer & end_object();
    json_writer & begin_array(const char * key = nullptr);
    json_writer & end_array();
    json_writer & value(const char * key, const std::string & text); // `key` NULL inside arrays
    json_writer & value(const char * key, const char * text);
    json_writer & value(const char * key, uint64_t number);
    json_writer & value(const char * key, bool truth);
    json_writer & null(const char * key);
    json_writer & raw(const char * key, const std::string & json); // REQUIRES: `json` is one JSON value

    const std::string & text() const { return out; }

private:
    void prefix(const char * key);
    void quote(const std::string & text);

    std::string out;
    bool        first = true; // the next entry is the first of its object or array
};

} // namespace moecache
