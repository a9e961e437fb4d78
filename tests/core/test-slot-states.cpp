// Random walks through the life of slots, with a record of their own beside the cache manager's: only the transitions
// of its header happen, a slot never has two owners, and an expert is never visible before its copy is complete or
// while an event that reads the slot's former content runs.
#include "core/cache-manager.h"

#include "check.h"

#include <random>
#include <set>

using namespace moecache;

namespace {

// Copies complete one after the other, when advance() is called, and not before the readers they wait for.
struct queued_transfer : transfer {
    std::vector<copy_request> queue;
    size_t                    n_done            = 0;
    uint64_t                  n_events_finished = 0;

    void enqueue(const copy_request & copy) override { queue.push_back(copy); }

    bool complete(uint32_t slot) override {
        size_t last = queue.size();
        for (size_t i = 0; i < queue.size(); i++) {
            last = queue[i].slot == slot ? i : last;
        }
        return last < n_done;
    }

    void advance() {
        const bool blocked =
            n_done < queue.size() && queue[n_done].after_readers && queue[n_done].reader_event >= n_events_finished;
        n_done += n_done < queue.size() && !blocked ? 1 : 0;
    }

    // The expert whose weights lie in the slot: of the last copy that is complete, no_item while one is under way.
    uint32_t content(uint32_t slot) const {
        uint32_t found = no_item;
        for (size_t i = 0; i < queue.size(); i++) {
            if (queue[i].slot == slot) {
                found = i < n_done ? queue[i].item : no_item;
            }
        }
        return found;
    }
};

// Gives slots at random: of hits of the same event too, of loading and draining ones.
struct random_policy : policy {
    const cache_manager *  cache = nullptr;
    std::mt19937 *         random;
    const cache_geometry * geometry;

    void on_event(const cache_event & event, std::vector<decision> & out) override {
        std::set<uint32_t> given;
        for (uint32_t i = 0; i < event.n_items; i++) {
            const uint32_t budget  = geometry->budget_of_item(event.items[i]);
            const uint32_t n_slots = geometry->slots_of_budget[budget];
            if (cache->slot_of(event.items[i]) != no_item || n_slots == 0 || (*random)() % 3 == 0) {
                continue;
            }
            const uint32_t first = static_cast<uint32_t>(cache->held(budget) - cache->held(0));
            const uint32_t n_new = count_new(out, budget);
            if (cache->n_held(budget) + n_new < n_slots) {
                out.push_back({ event.items[i], no_item });
                continue;
            }
            const uint32_t victim = cache->item_of(first + (*random)() % n_slots);
            if (victim != no_item && given.insert(victim).second) {
                out.push_back({ event.items[i], victim });
            }
        }
    }
    uint32_t count_new(const std::vector<decision> & made, uint32_t budget) const {
        uint32_t n = 0;
        for (const decision & d : made) {
            n += d.evicted == no_item && geometry->budget_of_item(d.admitted) == budget ? 1 : 0;
        }
        return n;
    }
    void        save(session_state &) const override {}
    std::string load(const session_state &) override { return ""; }
};

// What may follow on what when the manager is told something.
enum class step { publish, apply, readers_finished };

bool legal(step now, slot_state from, slot_state to) {
    if (from == to) {
        return true;
    }
    switch (now) {
        case step::publish:
            return from == MOECACHE_SLOT_STATE_LOADING && to == MOECACHE_SLOT_STATE_RESIDENT;
        case step::apply: // a slot that is given away loads at once, or drains first
            return to == MOECACHE_SLOT_STATE_LOADING ?
                       from != MOECACHE_SLOT_STATE_DRAINING :
                       to == MOECACHE_SLOT_STATE_DRAINING && from != MOECACHE_SLOT_STATE_EMPTY;
        case step::readers_finished:
            return from == MOECACHE_SLOT_STATE_DRAINING && to == MOECACHE_SLOT_STATE_LOADING;
    }
    return false;
}

struct walk {
    cache_geometry          geometry;
    random_policy           rules;
    queued_transfer         copies;
    std::mt19937            random;
    cache_manager           cache;
    std::vector<slot_state> states;
    uint64_t                n_transitions = 0;

    walk(uint32_t seed, cache_geometry g) : geometry(std::move(g)), random(seed), cache(geometry, rules, copies) {
        rules.cache    = &cache;
        rules.random   = &random;
        rules.geometry = &geometry;
        states.assign(cache.n_slots(), MOECACHE_SLOT_STATE_EMPTY);
    }

    void look(step now) {
        std::set<uint32_t> owners;
        for (uint32_t slot = 0; slot < cache.n_slots(); slot++) {
            const slot_state state = cache.state_of(slot);
            const uint32_t   item  = cache.item_of(slot);
            CHECK(legal(now, states[slot], state));
            n_transitions += state != states[slot] ? 1 : 0;
            states[slot] = state;
            CHECK(item == no_item || owners.insert(item).second); // one slot an expert
            if (item != no_item && cache.visible(item)) {
                CHECK_EQ(cache.slot_of(item), slot);
                CHECK_EQ(copies.content(slot), item); // its own weights, all of them
            }
        }
        CHECK_EQ(cache.check(), "");
    }

    void event(uint64_t index) {
        const auto            column = static_cast<uint32_t>(random() % geometry.columns.size());
        const uint32_t        n      = geometry.columns[column].n_experts;
        std::vector<uint32_t> items;
        for (uint32_t expert = 0; expert < n; expert++) {
            if (random() % 2 == 0) {
                items.push_back(geometry.first_item[column] + expert);
            }
        }
        if (items.empty()) {
            items.push_back(geometry.first_item[column]);
        }
        std::shuffle(items.begin(), items.end(), random);
        std::vector<uint8_t> hit(items.size());
        cache_event          made;
        made.index   = index;
        made.column  = column;
        made.items   = items.data();
        made.n_items = static_cast<uint32_t>(items.size());
        cache.publish(column);
        look(step::publish);
        cache.look_up(made, hit.data());
        for (size_t i = 0; i < items.size(); i++) {
            CHECK_EQ(hit[i] != 0, cache.visible(items[i]));
        }
        cache.decide(made);
        cache.apply();
        look(step::apply);
        for (uint32_t i = random() % 3; i > 0; i--) {
            copies.advance();
        }
        if (random() % 2 == 0 && copies.n_events_finished <= index) {
            copies.n_events_finished += 1 + random() % (index + 1 - copies.n_events_finished);
            cache.readers_finished(copies.n_events_finished - 1);
            look(step::readers_finished);
        }
    }
};

} // namespace

TEST(slots_go_through_legal_states_only) {
    uint64_t n_transitions = 0;
    uint64_t n_evictions   = 0;
    for (uint32_t seed = 1; seed <= 40; seed++) {
        std::mt19937   random(seed);
        const bool     per_column = seed % 2 == 0;
        cache_geometry geometry   = cache_geometry::make(
            { { 0, "exps", 4, 10 }, { 1, "exps", 6, 10 }, { 2, "exps", 5, 30 }, { 2, "chexps", 3, 10 } }, per_column);
        std::vector<uint32_t> slots;
        for (const uint32_t n : geometry.items_of_budget) {
            slots.push_back(static_cast<uint32_t>(random() % (n + 1)));
        }
        CHECK_EQ(geometry.set_slots(slots), "");
        walk made(seed, geometry);
        for (uint64_t index = 0; index < 300; index++) {
            made.event(index);
        }
        n_transitions += made.n_transitions;
        n_evictions += made.cache.counters().evictions;
    }
    CHECK(n_transitions > 5000);
    CHECK(n_evictions > 1000);
}
