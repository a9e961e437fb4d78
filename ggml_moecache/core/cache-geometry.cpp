#include "core/cache-geometry.h"

#include <algorithm>

namespace moecache {

cache_geometry cache_geometry::make(std::vector<column_info> columns, bool per_column) {
    cache_geometry        result;
    std::vector<uint64_t> size_of_budget; // bytes of an expert
    result.columns = std::move(columns);
    result.first_item.push_back(0);
    for (const column_info & column : result.columns) {
        const auto known  = std::find(size_of_budget.begin(), size_of_budget.end(), column.expert_bytes);
        auto       budget = static_cast<uint32_t>(known - size_of_budget.begin());
        if (per_column || known == size_of_budget.end()) {
            budget = static_cast<uint32_t>(size_of_budget.size());
            size_of_budget.push_back(column.expert_bytes);
            result.items_of_budget.push_back(0);
        }
        const auto index = static_cast<uint32_t>(result.budget_of_column.size());
        result.budget_of_column.push_back(budget);
        result.items_of_budget[budget] += column.n_experts;
        result.first_item.push_back(result.first_item.back() + column.n_experts);
        result.column_of_item.insert(result.column_of_item.end(), column.n_experts, index);
    }
    result.slots_of_budget.assign(result.items_of_budget.size(), 0);
    return result;
}

std::string cache_geometry::set_slots(const std::vector<uint32_t> & slots) {
    if (slots.size() != slots_of_budget.size()) {
        return "the capacity must name " + std::to_string(slots_of_budget.size()) +
               " numbers of slots, one per budget. Got " + std::to_string(slots.size()) + " instead.";
    }
    for (size_t budget = 0; budget < slots.size(); budget++) {
        if (slots[budget] > items_of_budget[budget]) {
            return "the capacity of budget " + std::to_string(budget) + " must be at most its " +
                   std::to_string(items_of_budget[budget]) + " experts. Got " + std::to_string(slots[budget]) +
                   " instead.";
        }
    }
    slots_of_budget = slots;
    return "";
}

uint32_t cache_geometry::most_slots() const {
    return slots_of_budget.empty() ? 0 : *std::max_element(slots_of_budget.begin(), slots_of_budget.end());
}

uint32_t cache_geometry::most_experts() const {
    uint32_t most = 0;
    for (const column_info & column : columns) {
        most = std::max(most, column.n_experts);
    }
    return most;
}

} // namespace moecache
