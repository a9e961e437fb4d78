#include "core/sim/content-replay.h"

#include <algorithm>

namespace moecache {

content_replay::content_replay(const cache_geometry & g, std::unique_ptr<policy> p, victim_agreement * agreement) :
    geometry(g), rules(std::move(p)), meter(agreement), n_taken(g.n_budgets(), 0), slot_of_item(g.n_items(), no_item) {
    first_slots.push_back(0);
    for (const uint32_t n : g.slots_of_budget) {
        first_slots.push_back(first_slots.back() + n);
    }
    item_of_slot.assign(first_slots.back(), no_item);
    decisions.reserve(first_slots.back());
}

void content_replay::apply(const std::vector<decision> & list) {
    for (const decision & d : list) {
        uint32_t slot = 0;
        if (d.evicted == no_item) {
            const uint32_t budget = geometry.budget_of_item(d.admitted);
            slot                  = first_slots[budget] + n_taken[budget]++;
        } else {
            slot                    = slot_of_item[d.evicted];
            slot_of_item[d.evicted] = no_item;
            result.counters.evictions++;
        }
        item_of_slot[slot]       = d.admitted;
        slot_of_item[d.admitted] = slot;
        result.counters.copy_bytes += geometry.columns[geometry.column_of_item[d.admitted]].expert_bytes;
    }
    result.counters.admissions += list.size();
}

void content_replay::step(const cache_event & event, bool decode) {
    uint32_t n_hits = 0;
    for (uint32_t i = 0; i < event.n_items; i++) {
        n_hits += slot_of_item[event.items[i]] != no_item ? 1 : 0;
    }
    count_hits(result, event.column, event.n_items, n_hits, decode);
    decisions.clear();
    rules->on_event(event, decisions);
    if (meter != nullptr) {
        const uint32_t budget = geometry.budget_of_column[event.column];
        meter->count(event, decisions, item_of_slot.data() + first_slots[budget], n_taken[budget]);
    }
    apply(decisions);
}

std::vector<sim_result> content_replay::run(const event_stream & events, const std::vector<std::vector<uint32_t>> &) {
    result = common_result(events, geometry);
    rules->place(decisions);
    apply(decisions);
    for (size_t index = 0; index < events.n_events(); index++) {
        step(events.event(index), events.decode[index] != 0);
    }
    result.agreed = meter != nullptr ? meter->agreed() : 0;
    return { std::move(result) };
}

} // namespace moecache
