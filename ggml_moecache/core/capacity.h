// Capacities as users write them - 12, 25%, 2GiB, all - as slots of each budget. Runtime and simulator call this code,
// so the same text means the same cache (`auto` is the runtime's alone).
#pragma once

#include "core/cache-geometry.h"

#include <cstdint>
#include <string>
#include <vector>

namespace moecache {

enum class capacity_kind { experts, percent, bytes, all, automatic };

struct capacity_setting {
    capacity_kind kind   = capacity_kind::experts;
    double        amount = 0; // experts, percent, or bytes
    std::string   text;       // as it was written

    bool none() const { return kind == capacity_kind::experts && amount == 0; }
    bool all() const { return kind == capacity_kind::all; }

    // Between none and all: there are slots.
    bool partial() const { return !none() && !all(); }

    // What it takes, for messages.
    static const char * rule();

    // False when `text` is no capacity.
    static bool parse(const std::string & text, capacity_setting & out);

    // Slots of each budget of `geometry`; `free_bytes` is what `auto` may take. Returns "" or why not: more than there
    // are, or a size where the bytes of an expert are not known.
    //
    // A number or a share is of each layer where every column has a budget of its own (`per_column`), else of all
    // together; a number then goes to the budgets in proportion to their experts. A share is rounded to the nearest
    // whole expert, at least 1. A size is always of all together, in equal parts with `per_column`.
    std::string slots(const cache_geometry & geometry, bool per_column, uint64_t free_bytes,
                      std::vector<uint32_t> & out) const;
};

} // namespace moecache
