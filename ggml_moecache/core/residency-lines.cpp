#include "core/residency-lines.h"

#include "core/expert-name.h"

#include <algorithm>

namespace moecache {

void append_expert(std::string & text, const cache_geometry & geometry, uint32_t item) {
    const column_info & column = geometry.columns[geometry.column_of_item[item]];
    const int           family = expert_family_number(column.family);
    text += '[' + std::to_string(column.layer_id) + ',' + std::to_string(geometry.expert_of_item(item));
    if (family != 0) {
        text += ',' + std::to_string(family);
    }
    text += ']';
}

residency_lines::residency_lines(std::shared_ptr<const cache_geometry> geometry) :
    geometry(std::move(geometry)), resident(this->geometry->n_items(), 0), since(this->geometry->n_items()) {}

void residency_lines::apply(const snapshot_change * changes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        resident[changes[i].item] = changes[i].added != 0;
        since.add(changes[i]);
    }
}

// In the order of (layer, family, expert).
static void append_experts(std::string & text, const cache_geometry & geometry, const std::vector<uint32_t> & items) {
    text += '[';
    for (size_t i = 0; i < items.size(); i++) {
        text += i > 0 ? "," : "";
        append_expert(text, geometry, items[i]);
    }
    text += ']';
}

void residency_lines::append_changes(bool added, std::string & text) const {
    std::vector<uint32_t> items;
    for (const snapshot_change & change : since.list()) {
        if ((change.added != 0) == added) {
            items.push_back(change.item);
        }
    }
    std::sort(items.begin(), items.end());
    append_experts(text, *geometry, items);
}

void residency_lines::before_event(uint64_t generation, const std::string & prefix, std::string & text) {
    if (any && generation == last) {
        return;
    }
    text += "{\"type\":\"residency\"" + prefix + ",\"generation\":" + std::to_string(generation);
    if (!any || generation - last_full >= residency_full_every) {
        std::vector<uint32_t> items;
        for (uint32_t item = 0; item < resident.size(); item++) {
            if (resident[item] != 0) {
                items.push_back(item);
            }
        }
        text += ",\"full\":";
        append_experts(text, *geometry, items);
        last_full = generation;
    } else {
        text += ",\"added\":";
        append_changes(true, text);
        text += ",\"removed\":";
        append_changes(false, text);
    }
    text += "}\n";
    since.clear();
    any  = true;
    last = generation;
}

} // namespace moecache
