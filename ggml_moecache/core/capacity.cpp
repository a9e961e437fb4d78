#include "core/capacity.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

namespace moecache {

const char * capacity_setting::rule() {
    return "a number of experts, a share like 25%, a size like 2GiB or 512MiB, auto, or all";
}

// A decimal number at the start of `text`, digits and at most one point; returns its length, 0 if there is none.
static size_t number_length(const std::string & text) {
    size_t n = text.find_first_not_of("0123456789");
    n        = n == std::string::npos ? text.size() : n;
    if (n == 0 || n >= text.size() || text[n] != '.') {
        return n;
    }
    const size_t end = text.find_first_not_of("0123456789", n + 1);
    return end == n + 1 ? 0 : (end == std::string::npos ? text.size() : end);
}

static bool parse_amount(const std::string & text, capacity_setting & out) {
    out      = {};
    out.text = text;
    if (text == "all" || text == "auto") {
        out.kind = text == "all" ? capacity_kind::all : capacity_kind::automatic;
        return true;
    }
    const size_t n = number_length(text);
    if (n == 0 || n > 15) {
        return false;
    }
    out.amount             = std::strtod(text.substr(0, n).c_str(), nullptr);
    const std::string unit = text.substr(n);
    if (unit.empty()) {
        return text.find('.') == std::string::npos;
    }
    if (unit == "%") {
        out.kind = capacity_kind::percent;
        return out.amount <= 100;
    }
    static const struct {
        const char * name;
        int          shift;
    } units[] = { { "KiB", 10 }, { "MiB", 20 }, { "GiB", 30 }, { "TiB", 40 } };
    for (const auto & known : units) {
        if (unit == known.name) {
            out.kind   = capacity_kind::bytes;
            out.amount = std::floor(std::ldexp(out.amount, known.shift));
            return out.amount < std::ldexp(1.0, 62);
        }
    }
    return false;
}

bool capacity_setting::parse(const std::string & text, capacity_setting & out) {
    const bool good = parse_amount(text, out);
    if (good && out.amount == 0 && (out.kind == capacity_kind::percent || out.kind == capacity_kind::bytes)) {
        out.kind = capacity_kind::experts; // 0% and 0MiB are 0; any other share has at least one slot
    }
    return good;
}

// --- slots ----------------------------------------------------------------------------------------------------------------------

// `number` slots in proportion to the budgets' experts; the rest goes to the largest remainders, earlier ones first.
static std::vector<uint32_t> apportion(uint64_t number, const std::vector<uint32_t> & experts) {
    const uint64_t        total = std::accumulate(experts.begin(), experts.end(), uint64_t(0));
    std::vector<uint32_t> slots;
    std::vector<size_t>   order(experts.size());
    uint64_t              given = 0;
    for (const uint32_t n : experts) {
        slots.push_back(static_cast<uint32_t>(number * n / total));
        given += slots.back();
    }
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return number * experts[a] % total > number * experts[b] % total; });
    for (size_t i = 0; i < number - given; i++) {
        slots[order[i]]++;
    }
    return slots;
}

// Experts times bytes: 2^20 of 2^40 bytes, times a number of experts again.
__extension__ typedef unsigned __int128 wide;

// Bytes of an expert of each budget.
static std::vector<uint64_t> sizes_of(const cache_geometry & geometry) {
    std::vector<uint64_t> sizes(geometry.n_budgets(), 0);
    for (size_t column = 0; column < geometry.columns.size(); column++) {
        sizes[geometry.budget_of_column[column]] = geometry.columns[column].expert_bytes;
    }
    return sizes;
}

static std::vector<uint32_t> fill(const cache_geometry & geometry, bool per_column, uint64_t bytes) {
    const std::vector<uint32_t> & experts = geometry.items_of_budget;
    const std::vector<uint64_t>   sizes   = sizes_of(geometry);
    std::vector<uint32_t>         slots(experts.size());
    uint64_t                      total = 0;
    for (size_t i = 0; i < experts.size(); i++) {
        total += experts[i] * sizes[i];
    }
    if (bytes >= total) {
        return experts;
    }
    if (per_column) {
        for (size_t i = 0; i < experts.size(); i++) {
            slots[i] = static_cast<uint32_t>(std::min<uint64_t>(experts[i], bytes / experts.size() / sizes[i]));
        }
        return slots;
    }
    uint64_t left = bytes;
    for (size_t i = 0; i < experts.size(); i++) {
        slots[i] = static_cast<uint32_t>(static_cast<wide>(experts[i]) * bytes / total);
        left -= slots[i] * sizes[i];
    }
    for (size_t i = 0; i < experts.size(); i++) {
        const auto more = static_cast<uint32_t>(std::min<uint64_t>(experts[i] - slots[i], left / sizes[i]));
        slots[i] += more;
        left -= more * sizes[i];
    }
    return slots;
}

std::string capacity_setting::slots(const cache_geometry & geometry, bool per_column, uint64_t free_bytes,
                                    std::vector<uint32_t> & out) const {
    const std::vector<uint32_t> & experts = geometry.items_of_budget;
    switch (kind) {
        case capacity_kind::all:
            out = experts;
            return "";
        case capacity_kind::percent:
            out.clear();
            for (const uint32_t n : experts) {
                out.push_back(std::max<uint32_t>(1, static_cast<uint32_t>(std::floor(n * amount / 100 + 0.5))));
            }
            return "";
        case capacity_kind::bytes:
        case capacity_kind::automatic:
            for (const uint64_t size : sizes_of(geometry)) {
                if (size == 0) {
                    return "capacity " + text +
                           " needs the bytes of an expert, which are not known; give it as a number";
                }
            }
            out = fill(geometry, per_column, kind == capacity_kind::bytes ? static_cast<uint64_t>(amount) : free_bytes);
            return "";
        case capacity_kind::experts:
            break;
    }
    const uint64_t number = static_cast<uint64_t>(amount);
    const uint64_t most   = per_column ? *std::max_element(experts.begin(), experts.end()) :
                                         std::accumulate(experts.begin(), experts.end(), uint64_t(0));
    if (number > most) {
        return "capacity must be at most the " + std::to_string(most) + " experts of " +
               (per_column ? "a layer" : "all layers") + ". Got " + std::to_string(number) + " instead.";
    }
    if (!per_column) {
        out = apportion(number, experts);
        return "";
    }
    out.clear();
    for (const uint32_t n : experts) {
        out.push_back(static_cast<uint32_t>(std::min<uint64_t>(number, n)));
    }
    return "";
}

} // namespace moecache
