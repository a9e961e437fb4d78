// What a session has learnt: counters and residency, as named arrays of whole numbers. Export, import into a new cache
// of the same geometry and policy, continue: the decisions are those of a session that was never interrupted.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace moecache {

class session_state {
public:
    std::string policy; // canonical name with parameters

    void put(const std::string & name, std::vector<int64_t> values);

    // What may have been counted, at most: there is room to count on.
    static constexpr int64_t most_count = INT64_MAX / 4;

    // A token of the session has a smaller number than this, the state's `next_token`.
    int64_t most_token() const;

    // The array `name` into `values`. Returns "" or why not: missing, or not of `size` entries (SIZE_MAX: any number),
    // or an entry outside of [least, most].
    std::string get(const std::string & name, std::vector<int64_t> & values, size_t size, int64_t least = 0,
                    int64_t most = most_count) const;
    std::string get(const std::string & name, int64_t & value, int64_t least = 0, int64_t most = most_count) const;

    const std::vector<std::pair<std::string, std::vector<int64_t>>> & arrays() const { return entries; }

private:
    std::vector<std::pair<std::string, std::vector<int64_t>>> entries; // in the order of put()
};

// How many of each a session has counted, so that another one goes on with the next number. In a state: next_event,
// next_access, next_token, next_request.
struct session_clock {
    int64_t events   = 0;
    int64_t accesses = 0; // experts of all events
    int64_t tokens   = 0;
    int64_t requests = 0;

    void save(session_state & state) const;

    // Returns "" or what is wrong.
    std::string load(const session_state & state);
};

} // namespace moecache
