// Which experts came into a cache's snapshot and which left it, on the way from the cache to the routing log.
//
// The cache notes every change in a journal, in order. What the log's ring has no room for is kept as the difference
// that it makes, so nothing is lost and memory is bounded by the number of experts, however long the ring is full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moecache {

// Items as in core/cache-geometry.h. The changes of one item alternate: it is added, removed, added, ...
struct snapshot_change {
    uint32_t item;
    uint32_t added; // 0: removed
};

// What is left of a sequence of changes: an item that was added and removed again is not in it. At most one change per
// item; memory is taken when it is made.
class net_changes {
public:
    explicit net_changes(uint32_t n_items);

    void add(const snapshot_change & change);
    void drop_last(size_t n); // REQUIRES: n <= list().size()
    void clear() { drop_last(changes.size()); }

    const std::vector<snapshot_change> & list() const { return changes; } // in no particular order

private:
    std::vector<snapshot_change> changes;
    std::vector<uint32_t>        place; // [items] in `changes`, UINT32_MAX: not there
};

// The changes of one cache in order, until they are taken. Owned by the cache's thread.
class snapshot_journal {
public:
    explicit snapshot_journal(uint32_t n_items);

    void   add(uint32_t item, bool added) { changes.push_back({ item, added ? 1u : 0u }); }
    size_t size() const { return changes.size(); }

    // `out` = all of them, for good.
    void take(std::vector<snapshot_change> & out);

    // Should nobody take them: a long journal becomes what is left of it. REQUIRES: nobody counts its entries
    // meanwhile.
    void shorten();

private:
    const size_t                 most; // entries that may wait
    std::vector<snapshot_change> changes;
    net_changes                  net;
};

} // namespace moecache
