// Numbers of requests for policies: 0, 1, ... in the order in which the requests' ids first came. Ids that follow one
// another with their numbers are one entry, so a server's own ids take one for all time.
#pragma once

#include <cstdint>
#include <map>

namespace moecache {

class request_numbers {
public:
    // The number of the request; the next one if the id has not come yet.
    int64_t of(uint64_t id);

    // `id` is the request that came last. REQUIRES: next() > 0.
    void continue_last(uint64_t id);

    int64_t next() const { return n_requests; } // the number that the next new request gets

    // All ids are unknown again; numbers go on at `next`.
    void restart(int64_t next);

private:
    struct entry {
        uint64_t n_ids; // id, id + 1, ...
        int64_t  first; // number of the first
    };

    std::map<uint64_t, entry> entries; // by their first id
    int64_t                   n_requests  = 0;
    uint64_t                  last_id     = UINT64_MAX; // asked for last: nearly always the one that is asked for next
    int64_t                   last_number = -1;
};

} // namespace moecache
