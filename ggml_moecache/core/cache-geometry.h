// What there is to cache and how many slots there are: columns, items, budgets. Constant for the life of a cache.
//
// A column is one (layer, expert family) of the model, columns in rising order of both. An item is one expert of one
// column; items are numbered column by column, so comparing item numbers compares (layer, family, expert).
// A budget is a number of slots that some columns share; every column belongs to exactly one, and all experts of a
// budget have the same size and layout, because a slot is as large as the expert in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moecache {

constexpr uint32_t no_item = UINT32_MAX;

// Ubatches with more tokens are not the cache's: they would flush what decode needs. Speculative verification and
// parallel decoding stay below.
constexpr uint32_t max_ubatch_tokens = 32;

struct column_info {
    int32_t     layer_id     = 0;
    std::string family       = "exps";
    uint32_t    n_experts    = 0;
    uint64_t    expert_bytes = 0; // of one expert, 0 = not known
    uint32_t    layout       = 0; // experts of equal size, but of other tensor types or shapes, have another number
};

struct cache_geometry {
    std::vector<column_info> columns;
    std::vector<uint32_t>    first_item;       // [columns + 1] item of expert 0; the last entry is the number of items
    std::vector<uint32_t>    column_of_item;   // [items]
    std::vector<uint32_t>    budget_of_column; // [columns]
    std::vector<uint32_t>    slots_of_budget;  // [budgets] at most the items of the budget
    std::vector<uint32_t>    items_of_budget;  // [budgets] number of experts that compete for its slots

    uint32_t n_items() const { return first_item.back(); }
    uint32_t n_budgets() const { return static_cast<uint32_t>(slots_of_budget.size()); }
    uint32_t budget_of_item(uint32_t item) const { return budget_of_column[column_of_item[item]]; }
    uint32_t expert_of_item(uint32_t item) const { return item - first_item[column_of_item[item]]; }
    uint32_t most_slots() const;   // of one budget
    uint32_t most_experts() const; // of one column: no event has more

    // Budgets without slots yet: one per column, or one for all columns whose experts have the same size and layout, in
    // the order of their first columns.
    static cache_geometry make(std::vector<column_info> columns, bool per_column);

    // Give budget i `slots[i]` slots. Returns "" or why not: another number of budgets, or more slots than experts.
    std::string set_slots(const std::vector<uint32_t> & slots);
};

} // namespace moecache
