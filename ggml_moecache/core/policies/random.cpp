// random: admits every miss and evicts by a seeded draw.
#include "core/policies/admission-filter.h"
#include "core/policies/residency.h"
#include "core/policies/table.h"

namespace moecache {

namespace {

class random_policy final : public policy {
public:
    random_policy(const cache_geometry & g, admission_filter f, int64_t seed) :
        geometry(g), filter(std::move(f)), generator(static_cast<uint64_t>(seed)), held(g.n_items(), 0),
        slots(g.n_budgets()) {
        for (uint32_t budget = 0; budget < g.n_budgets(); budget++) {
            slots[budget].reserve(g.slots_of_budget[budget]);
        }
        given_at.assign(g.most_slots(), 0);
        hits.reserve(g.most_experts());
    }

    void on_event(const cache_event & event, std::vector<decision> & out) override {
        const uint32_t budget  = geometry.budget_of_column[event.column];
        const uint32_t n_slots = geometry.slots_of_budget[budget];
        auto &         taken   = slots[budget];
        filter.count(event);
        event_mark++;
        uint32_t n_given = 0;
        hits.assign(event.n_items, 0);
        for (uint32_t i = 0; i < event.n_items; i++) {
            hits[i] = held[event.items[i]];
        }
        for (uint32_t i = 0; i < event.n_items && n_given < n_slots; i++) {
            const uint32_t item = event.items[i];
            if (hits[i]) {
                continue;
            }
            size_t slot = taken.size();
            if (slot == n_slots) {
                do {
                    slot = static_cast<size_t>(draw() % n_slots);
                } while (given_at[slot] == event_mark);
            }
            const uint32_t victim = slot < taken.size() ? taken[slot] : no_item;
            if (!filter.admits(item, victim)) {
                continue;
            }
            if (victim == no_item) {
                taken.push_back(item);
            } else {
                held[victim] = 0;
                taken[slot]  = item;
            }
            held[item]     = 1;
            given_at[slot] = event_mark;
            n_given++;
            out.push_back({ item, victim });
        }
    }

    // The order of the slots is part of the state: a draw names a slot.
    void save(session_state & state) const override {
        std::vector<int64_t> content;
        std::vector<int64_t> order;
        for (const auto & taken : slots) {
            content.insert(content.end(), taken.begin(), taken.end());
            order.insert(order.end(), taken.begin(), taken.end());
        }
        save_content(state, std::move(content));
        state.put("slot_order", std::move(order));
        state.put("generator", { static_cast<int64_t>(generator) });
        filter.save(state);
    }

    std::string load(const session_state & state) override {
        std::vector<int64_t> content;
        std::vector<int64_t> order;
        int64_t              bits  = 0;
        std::string          error = load_content(state, geometry, content);
        error = error.empty() ? state.get("slot_order", order, content.size(), 0, geometry.n_items()) : error;
        error = error.empty() ? state.get("generator", bits, INT64_MIN, INT64_MAX) : error;
        error = error.empty() ? filter.load(state) : error;
        std::vector<int64_t> sorted = order;
        std::sort(sorted.begin(), sorted.end());
        if (error.empty() && sorted != content) {
            error = "the session state's array slot_order must hold the experts of content";
        }
        if (error.empty()) {
            generator = static_cast<uint64_t>(bits);
            for (const int64_t item : order) {
                const auto index = static_cast<uint32_t>(item);
                slots[geometry.budget_of_item(index)].push_back(index);
                held[index] = 1;
            }
        }
        return error;
    }

private:
    // SplitMix64 (Steele, Lea, Flood 2014).
    uint64_t draw() {
        generator += 0x9e3779b97f4a7c15u;
        uint64_t z = generator;
        z          = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z          = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    const cache_geometry &             geometry;
    admission_filter                   filter;
    uint64_t                           generator;
    std::vector<uint8_t>               held;     // [items]
    std::vector<std::vector<uint32_t>> slots;    // [budgets][slots taken]
    std::vector<uint8_t>               hits;     // of the event at hand: held before it
    std::vector<uint64_t>              given_at; // [slots] event_mark of the event that last gave the slot away
    uint64_t                           event_mark = 0;
};

} // namespace

policy_entry random_entry() {
    return { { "random", "admits every miss, evicts by a seeded draw",
               with_admission_options({ { "seed", value_kind::whole, "", "0", "a whole number, 0 to 1000000000", 0, 1e9,
                                          "seed of the generator" } }),
               false },
             [](const policy_inputs & in, std::unique_ptr<policy> & out) {
                 admission_filter filter(in.spec, in.geometry.n_items());
                 out = std::make_unique<random_policy>(in.geometry, std::move(filter), in.spec.whole("seed"));
                 return std::string();
             },
             nullptr };
}

} // namespace moecache
