// The content of one budget in a binary heap, the worst expert on top: what ranked policies decide with.
#pragma once

#include "core/cache-geometry.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace moecache {

// Higher is better: by `first`, then by `second`. Of equal ranks the lower item is better.
struct rank {
    int64_t first  = 0;
    int64_t second = 0;

    bool operator<(const rank & other) const {
        return first != other.first ? first < other.first : second < other.second;
    }
    bool operator==(const rank & other) const { return first == other.first && second == other.second; }
};

struct ranked_item {
    moecache::rank rank;
    uint32_t       item = no_item;

    bool worse_than(const ranked_item & other) const {
        return rank == other.rank ? item > other.item : rank < other.rank;
    }
};

// Heap order: no entry is worse than its parent. `place[item]` is the entry of an item, or `absent`; items belong to
// one budget, so the heaps of all budgets share that array.
class rank_heap {
public:
    static constexpr uint32_t absent = UINT32_MAX;

    rank_heap(uint32_t n_slots, std::vector<uint32_t> & place_of_item) : place(place_of_item) {
        entries.reserve(n_slots);
    }

    size_t                           size() const { return entries.size(); }
    const ranked_item &              worst() const { return entries.front(); } // REQUIRES: not empty
    const std::vector<ranked_item> & all() const { return entries; }

    void push(const ranked_item & entry) {
        entries.push_back(entry);
        up(entries.size() - 1);
    }

    // Take the worst out and put `entry` in.
    void replace_worst(const ranked_item & entry) {
        place[entries.front().item] = absent;
        entries.front()             = entry;
        down(0);
    }

    // Take `item` out and put `entry` in. REQUIRES: `item` is in the heap.
    void replace(uint32_t item, const ranked_item & entry) {
        const size_t index = place[item];
        const bool   worse = entry.worse_than(entries[index]);
        place[item]        = absent;
        entries[index]     = entry;
        worse ? up(index) : down(index);
    }

    void pop_worst() {
        place[entries.front().item] = absent;
        const ranked_item last      = entries.back();
        entries.pop_back();
        if (!entries.empty()) {
            entries.front() = last;
            down(0);
        }
    }

    // The rank of an item in the heap has changed.
    void update(uint32_t item, const rank & now) {
        const size_t index    = place[item];
        const bool   improved = entries[index].rank < now;
        entries[index].rank   = now;
        improved ? down(index) : up(index);
    }

    // For ranks that never fall while an expert is in the content: they may be left as they were when they rise, if
    // this is called before worst(). The top is then up to date and all others are at least what the heap thinks.
    template <class RankOf>
    void settle(RankOf rank_of) {
        while (!entries.empty()) {
            const rank now = rank_of(entries.front().item);
            if (entries.front().rank == now) {
                return;
            }
            entries.front().rank = now;
            down(0);
        }
    }

    // Any ranks may have changed: `rank_of(item)` gives the present ones.
    template <class RankOf>
    void rebuild(RankOf rank_of) {
        for (ranked_item & entry : entries) {
            entry.rank = rank_of(entry.item);
        }
        for (size_t index = entries.size(); index-- > 0;) {
            down(index);
        }
    }

private:
    void set(size_t index, const ranked_item & entry) {
        entries[index]    = entry;
        place[entry.item] = static_cast<uint32_t>(index);
    }

    void up(size_t index) {
        const ranked_item entry = entries[index];
        while (index > 0 && entry.worse_than(entries[(index - 1) / 2])) {
            set(index, entries[(index - 1) / 2]);
            index = (index - 1) / 2;
        }
        set(index, entry);
    }

    void down(size_t index) {
        const ranked_item entry = entries[index];
        while (2 * index + 1 < entries.size()) {
            size_t child = 2 * index + 1;
            if (child + 1 < entries.size() && entries[child + 1].worse_than(entries[child])) {
                child++;
            }
            if (!entries[child].worse_than(entry)) {
                break;
            }
            set(index, entries[child]);
            index = child;
        }
        set(index, entry);
    }

    std::vector<ranked_item> entries;
    std::vector<uint32_t> &  place;
};

// The items of all heaps, in no order.
inline std::vector<int64_t> items_of(const std::vector<rank_heap> & heaps) {
    std::vector<int64_t> items;
    for (const rank_heap & heap : heaps) {
        for (const ranked_item & entry : heap.all()) {
            items.push_back(entry.item);
        }
    }
    return items;
}

} // namespace moecache
