#include "core/snapshot-changes.h"

namespace moecache {

net_changes::net_changes(uint32_t n_items) : place(n_items, UINT32_MAX) {
    changes.reserve(n_items);
}

void net_changes::add(const snapshot_change & change) {
    uint32_t & at = place[change.item];
    if (at == UINT32_MAX) {
        at = static_cast<uint32_t>(changes.size());
        changes.push_back(change);
        return;
    }
    const snapshot_change last = changes.back(); // takes the place of the two that cancel each other
    changes[at]                = last;
    place[last.item]           = at;
    changes.pop_back();
    place[change.item] = UINT32_MAX;
}

void net_changes::drop_last(size_t n) {
    for (; n > 0; n--) {
        place[changes.back().item] = UINT32_MAX;
        changes.pop_back();
    }
}

// Between two graphs every expert may come once and leave once; a graph's own changes come on top.
snapshot_journal::snapshot_journal(uint32_t n_items) : most(size_t(2) * n_items), net(n_items) {
    changes.reserve(2 * most);
}

void snapshot_journal::take(std::vector<snapshot_change> & out) {
    out.assign(changes.begin(), changes.end());
    changes.clear();
}

void snapshot_journal::shorten() {
    if (changes.size() <= most) {
        return;
    }
    for (const snapshot_change & change : changes) {
        net.add(change);
    }
    changes.assign(net.list().begin(), net.list().end());
    net.clear();
}

} // namespace moecache
