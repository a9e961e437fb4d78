// The residency lines of a routing log: which experts are in the snapshot that events are looked up in. Of one writer.
#pragma once

#include "core/cache-geometry.h"
#include "core/snapshot-changes.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace moecache {

// The whole set is written again when a snapshot is this many generations after the last one that was.
constexpr uint64_t residency_full_every = 1000;

// An expert of the log: [layer, expert], and [layer, expert, family] in a family other than 0.
void append_expert(std::string & text, const cache_geometry & geometry, uint32_t item);

class residency_lines {
public:
    explicit residency_lines(std::shared_ptr<const cache_geometry> geometry);

    void apply(const snapshot_change * changes, size_t n);

    // The next event was looked up in `generation`, whose changes have all been applied: append the line that says so,
    // unless the last one did. `prefix`: of every line of the log.
    void before_event(uint64_t generation, const std::string & prefix, std::string & text);

private:
    void append_changes(bool added, std::string & text) const;

    const std::shared_ptr<const cache_geometry> geometry;
    std::vector<uint8_t>                        resident;          // [items]
    net_changes                                 since;             // the last line
    bool                                        any       = false; // line yet
    uint64_t                                    last      = 0;     // generation of the last line
    uint64_t                                    last_full = 0;
};

} // namespace moecache
