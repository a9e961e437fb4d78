#include "core/cache-manager.h"

#include <algorithm>

namespace moecache {

cache_manager::cache_manager(const cache_geometry & g, policy & p, transfer & t) : geometry(g), rules(&p), copies(t) {
    first_slots.push_back(0);
    for (const uint32_t n : g.slots_of_budget) {
        first_slots.push_back(first_slots.back() + n);
    }
    n_taken.assign(g.n_budgets(), 0);
    slots.resize(n_slots());
    item_of_slot.assign(n_slots(), no_item);
    slot_of_item.assign(g.n_items(), no_item);
    snapshot.assign(g.n_items(), 0);
    pending.resize(g.columns.size());
    for (size_t column = 0; column < g.columns.size(); column++) {
        pending[column].reserve(std::min(g.columns[column].n_experts, g.slots_of_budget[g.budget_of_column[column]]));
    }
    draining.reserve(n_slots());
    decisions.reserve(n_slots());
    outcomes.reserve(g.most_experts());
}

void cache_manager::place() {
    decisions.clear();
    rules->place(decisions);
    for (const decision & d : decisions) {
        const uint32_t budget = geometry.budget_of_item(d.admitted);
        take(first_slots[budget] + n_taken[budget]++, d.admitted);
    }
}

void cache_manager::publish_all() {
    for (uint32_t column = 0; column < pending.size(); column++) {
        publish(column);
    }
}

const std::vector<copy_outcome> & cache_manager::publish(uint32_t column) {
    outcomes.clear();
    std::vector<uint32_t> & waiting = pending[column];
    for (size_t i = 0; i < waiting.size();) {
        const uint32_t slot  = waiting[i];
        slot_entry &   entry = slots[slot];
        const bool     ready = entry.state == MOECACHE_SLOT_STATE_LOADING && copies.complete(slot);
        if (!entry.late) {
            outcomes.push_back({ slot, ready });
        }
        if (ready) {
            remove_pending(slot); // the last one takes its place
            show(slot);
            continue;
        }
        counts.copies_late += entry.late ? 0 : 1;
        entry.late = true;
        i++;
    }
    return outcomes;
}

void cache_manager::show(uint32_t slot) {
    slots[slot].state = MOECACHE_SLOT_STATE_RESIDENT;
    set_visible(item_of_slot[slot], true);
}

void cache_manager::set_visible(uint32_t item, bool on) {
    snapshot[item] = on ? 1 : 0;
    snapshot_generation++;
    if (journal != nullptr) {
        journal->add(item, on);
    }
}

void cache_manager::keep_journal(snapshot_journal & into) {
    journal = &into;
    for (uint32_t item = 0; item < snapshot.size(); item++) {
        if (snapshot[item] != 0) {
            journal->add(item, true);
        }
    }
}

uint32_t cache_manager::look_up(const cache_event & event, uint8_t * hit) {
    uint32_t n_hits = 0;
    for (uint32_t i = 0; i < event.n_items; i++) {
        hit[i] = snapshot[event.items[i]];
        if (hit[i]) {
            n_hits++;
            slots[slot_of_item[event.items[i]]].last_read = event.index + 1;
        }
    }
    counts.n_events++;
    counts.accesses += event.n_items;
    counts.hits += n_hits;
    return n_hits;
}

const std::vector<decision> & cache_manager::decide(const cache_event & event) {
    decisions.clear();
    rules->on_event(event, decisions);
    return decisions;
}

void cache_manager::apply() {
    for (const decision & d : decisions) {
        uint32_t slot = 0;
        if (d.evicted == no_item) {
            const uint32_t budget = geometry.budget_of_item(d.admitted);
            slot                  = first_slots[budget] + n_taken[budget]++;
        } else {
            slot = slot_of_item[d.evicted];
            release(slot);
            counts.evictions++;
        }
        take(slot, d.admitted);
    }
}

// The slot's expert leaves the snapshot; the slot goes to another one at once.
void cache_manager::release(uint32_t slot) {
    slot_entry & entry = slots[slot];
    if (entry.state == MOECACHE_SLOT_STATE_RESIDENT) {
        set_visible(item_of_slot[slot], false);
    } else {
        remove_pending(slot);
    }
    if (entry.state == MOECACHE_SLOT_STATE_DRAINING) {
        draining.erase(std::find(draining.begin(), draining.end(), slot));
    }
    slot_of_item[item_of_slot[slot]] = no_item;
}

void cache_manager::take(uint32_t slot, uint32_t item) {
    slot_entry &   entry  = slots[slot];
    const bool     read   = entry.last_read > finished;
    const uint32_t column = geometry.column_of_item[item];
    const uint64_t bytes  = geometry.columns[column].expert_bytes;
    item_of_slot[slot]    = item;
    entry.late            = false;
    entry.state           = read ? MOECACHE_SLOT_STATE_DRAINING : MOECACHE_SLOT_STATE_LOADING;
    entry.pending_place   = static_cast<uint32_t>(pending[column].size());
    slot_of_item[item]    = slot;
    pending[column].push_back(slot);
    if (read) {
        draining.push_back(slot);
    }
    copies.enqueue({ item, slot, bytes, read, read ? entry.last_read - 1 : 0 });
    counts.admissions++;
    counts.copy_bytes += bytes;
}

void cache_manager::remove_pending(uint32_t slot) {
    std::vector<uint32_t> & waiting     = pending[geometry.column_of_item[item_of_slot[slot]]];
    const uint32_t          place       = slots[slot].pending_place;
    waiting[place]                      = waiting.back();
    slots[waiting[place]].pending_place = place;
    waiting.pop_back();
}

void cache_manager::readers_finished(uint64_t event_index) {
    finished = event_index + 1;
    for (size_t i = 0; i < draining.size();) {
        slot_entry & entry = slots[draining[i]];
        if (entry.last_read > finished) {
            i++;
            continue;
        }
        entry.state = MOECACHE_SLOT_STATE_LOADING;
        draining[i] = draining.back();
        draining.pop_back();
    }
}

void cache_manager::save(session_state & state) const {
    rules->save(state);
}

std::string cache_manager::load(const session_state & state) {
    const std::string error = rules->load(state);
    if (!error.empty()) {
        return error;
    }
    std::vector<int64_t> content;
    const std::string    missing = state.get("content", content, SIZE_MAX);
    for (const int64_t value : content) {
        const auto     item   = static_cast<uint32_t>(value);
        const uint32_t budget = geometry.budget_of_item(item);
        const uint32_t slot   = first_slots[budget] + n_taken[budget]++;
        item_of_slot[slot]    = item;
        slot_of_item[item]    = slot;
        show(slot);
    }
    return missing;
}

void cache_manager::empty(uint32_t slot) {
    release(slot);
    item_of_slot[slot] = no_item;
    slots[slot].state  = MOECACHE_SLOT_STATE_EMPTY;
}

// The slots that are taken are the first of their budget, so an expert beyond that is copied once more.
void cache_manager::replace(policy & other, const std::vector<int64_t> & content) {
    rules = &other;
    if (finished < UINT64_MAX) {
        readers_finished(UINT64_MAX - 1);
    }
    finished = 0;
    std::vector<uint8_t> wanted(geometry.n_items(), 0);
    std::fill(n_taken.begin(), n_taken.end(), 0);
    for (const int64_t item : content) {
        wanted[static_cast<size_t>(item)] = 1;
        n_taken[geometry.budget_of_item(static_cast<uint32_t>(item))]++;
    }
    for (uint32_t budget = 0; budget < geometry.n_budgets(); budget++) {
        for (uint32_t slot = first_slots[budget]; slot < first_slots[budget + 1]; slot++) {
            const uint32_t item   = item_of_slot[slot];
            slots[slot].last_read = 0;
            if (item != no_item && (!wanted[item] || slot >= first_slots[budget] + n_taken[budget])) {
                empty(slot);
            }
        }
    }
    std::vector<uint32_t> next(first_slots.begin(), first_slots.end() - 1); // [budgets] where a free slot may be
    for (const int64_t value : content) {
        const auto item = static_cast<uint32_t>(value);
        if (slot_of_item[item] != no_item) {
            continue;
        }
        uint32_t & slot = next[geometry.budget_of_item(item)];
        while (item_of_slot[slot] != no_item) {
            slot++;
        }
        take(slot, item);
    }
}

std::string cache_manager::check() const {
    uint64_t n_visible = 0;
    for (uint32_t slot = 0; slot < slots.size(); slot++) {
        const slot_entry & entry = slots[slot];
        const uint32_t     item  = item_of_slot[slot];
        const std::string  name  = "slot " + std::to_string(slot);
        if ((item == no_item) != (entry.state == MOECACHE_SLOT_STATE_EMPTY)) {
            return name + " is empty and holds an expert, or neither";
        }
        if (item == no_item) {
            continue;
        }
        if (slot_of_item[item] != slot) {
            return name + " holds an expert that has another slot";
        }
        const uint32_t budget = geometry.budget_of_item(item);
        if (slot < first_slots[budget] || slot >= first_slots[budget + 1]) {
            return name + " holds an expert of another budget";
        }
        const bool resident = entry.state == MOECACHE_SLOT_STATE_RESIDENT;
        if ((snapshot[item] != 0) != resident) {
            return name + " is resident and not in the snapshot, or the reverse";
        }
        n_visible += resident ? 1 : 0;
        if (entry.state == MOECACHE_SLOT_STATE_LOADING && entry.last_read > finished) {
            return name + " is being written while an event reads it";
        }
    }
    const auto n_in_snapshot = static_cast<uint64_t>(std::count(snapshot.begin(), snapshot.end(), uint8_t(1)));
    return n_visible == n_in_snapshot ? "" : "the snapshot holds an expert without a slot";
}

} // namespace moecache
