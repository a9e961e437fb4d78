#include "core/cache-manager.h"

#include "check.h"

#include <algorithm>

using namespace moecache;

// Decides what the test says, copies complete when the test says.
struct told_policy : policy {
    std::vector<decision> next;

    void on_event(const cache_event &, std::vector<decision> & out) override {
        out = next;
        next.clear();
    }
    void        save(session_state & state) const override { state.put("content", content); }
    std::string load(const session_state & state) override { return state.get("content", content, SIZE_MAX); }

    std::vector<int64_t> content;
};

struct told_transfer : transfer {
    std::vector<copy_request> enqueued;
    std::vector<bool>         done = std::vector<bool>(8);

    void enqueue(const copy_request & copy) override {
        enqueued.push_back(copy);
        done[copy.slot] = false;
    }
    bool complete(uint32_t slot) override { return done[slot]; }
};

// Two layers of 4 experts of 100 bytes, one budget.
struct fixture {
    cache_geometry        geometry;
    told_policy           rules;
    told_transfer         copies;
    std::vector<uint32_t> items;
    uint64_t              index = 0;
    uint8_t               hit[4];

    explicit fixture(uint32_t n_slots) :
        geometry(cache_geometry::make({ { 0, "exps", 4, 100 }, { 3, "exps", 4, 100 } }, false)) {
        CHECK_EQ(geometry.set_slots({ n_slots }), "");
    }

    // Look up, decide and apply; the readers have not finished yet.
    uint32_t run(cache_manager & cache, uint32_t column, std::vector<uint32_t> experts,
                 std::vector<decision> decisions) {
        items = std::move(experts);
        for (uint32_t & item : items) {
            item += 4 * column;
        }
        cache_event event;
        event.index   = index++;
        event.column  = column;
        event.items   = items.data();
        event.n_items = static_cast<uint32_t>(items.size());
        cache.publish(column);
        const uint32_t n_hits = cache.look_up(event, hit);
        rules.next            = std::move(decisions);
        cache.decide(event);
        cache.apply();
        CHECK_EQ(cache.check(), "");
        return n_hits;
    }
};

TEST(a_copy_is_visible_when_complete_at_the_next_publish_of_its_layer) {
    fixture       f(2);
    cache_manager cache(f.geometry, f.rules, f.copies);
    CHECK_EQ(f.run(cache, 0, { 1 }, { { 1, no_item } }), 0u);
    cache.readers_finished(0);
    CHECK_EQ(f.copies.enqueued.size(), 1u);
    CHECK_EQ(f.copies.enqueued[0].item, 1u);
    CHECK_EQ(f.copies.enqueued[0].bytes, 100u);
    CHECK(!f.copies.enqueued[0].after_readers);
    CHECK_EQ(int(cache.state_of(0)), int(MOECACHE_SLOT_STATE_LOADING));
    f.copies.done[0] = true;
    CHECK_EQ(f.run(cache, 1, { 0 }, {}), 0u); // another layer publishes nothing of layer 0
    CHECK(!cache.visible(1));
    const uint64_t generation = cache.generation();
    CHECK_EQ(f.run(cache, 0, { 1 }, {}), 1u);
    CHECK(cache.generation() > generation);
    CHECK_EQ(int(cache.state_of(0)), int(MOECACHE_SLOT_STATE_RESIDENT));
    CHECK_EQ(cache.counters().copies_late, 0u);
}

TEST(a_late_copy_stays_loading_and_is_counted_once) {
    fixture       f(2);
    cache_manager cache(f.geometry, f.rules, f.copies);
    f.run(cache, 0, { 1 }, { { 1, no_item } });
    CHECK_EQ(f.run(cache, 0, { 1 }, {}), 0u);
    CHECK_EQ(f.run(cache, 0, { 1 }, {}), 0u);
    CHECK_EQ(cache.counters().copies_late, 1u);
    f.copies.done[0] = true;
    CHECK_EQ(f.run(cache, 0, { 1 }, {}), 1u);
    CHECK_EQ(cache.counters().copies_late, 1u);
    CHECK_EQ(cache.counters().accesses, 4u);
    CHECK_EQ(cache.counters().hits, 1u);
}

TEST(a_slot_that_the_event_reads_drains_until_its_readers_have_finished) {
    fixture       f(1);
    cache_manager cache(f.geometry, f.rules, f.copies);
    f.run(cache, 0, { 1 }, { { 1, no_item } });
    cache.readers_finished(0);
    f.copies.done[0] = true;
    CHECK_EQ(f.run(cache, 0, { 1, 2 }, { { 2, 1 } }), 1u); // hit and evicted by the same event
    CHECK_EQ(int(cache.state_of(0)), int(MOECACHE_SLOT_STATE_DRAINING));
    CHECK_EQ(cache.item_of(0), 2u);
    CHECK(!cache.visible(1));
    CHECK(f.copies.enqueued.back().after_readers);
    CHECK_EQ(f.copies.enqueued.back().reader_event, 1u);
    f.copies.done[0] = true; // whatever the device says, the slot is not visible while it drains
    CHECK_EQ(f.run(cache, 0, { 2 }, {}), 0u);
    CHECK_EQ(int(cache.state_of(0)), int(MOECACHE_SLOT_STATE_DRAINING));
    cache.readers_finished(1);
    CHECK_EQ(int(cache.state_of(0)), int(MOECACHE_SLOT_STATE_LOADING));
    CHECK_EQ(f.run(cache, 0, { 2 }, {}), 1u);
}

TEST(a_slot_whose_readers_have_finished_loads_at_once) {
    fixture       f(1);
    cache_manager cache(f.geometry, f.rules, f.copies);
    f.run(cache, 0, { 1 }, { { 1, no_item } });
    f.copies.done[0] = true;
    f.run(cache, 0, { 1 }, {});
    cache.readers_finished(1);
    f.run(cache, 0, { 2 }, { { 2, 1 } });
    CHECK_EQ(int(cache.state_of(0)), int(MOECACHE_SLOT_STATE_LOADING));
    CHECK(!f.copies.enqueued.back().after_readers);
}

TEST(a_loading_or_draining_slot_may_be_evicted) {
    fixture       f(1);
    cache_manager cache(f.geometry, f.rules, f.copies);
    f.run(cache, 0, { 1 }, { { 1, no_item } });
    f.run(cache, 1, { 2 }, { { 6, 1 } }); // 1 never became visible; its slot goes to layer 3's expert 2
    CHECK_EQ(cache.slot_of(1), no_item);
    CHECK_EQ(cache.slot_of(6), 0u);
    f.copies.done[0] = true;
    CHECK_EQ(f.run(cache, 0, { 1 }, {}), 0u);
    CHECK_EQ(f.run(cache, 1, { 2, 3 }, { { 7, 6 } }), 1u); // drains
    CHECK_EQ(f.run(cache, 1, { 0 }, { { 4, 7 } }), 0u);    // still read by the event before
    CHECK_EQ(int(cache.state_of(0)), int(MOECACHE_SLOT_STATE_DRAINING));
    CHECK_EQ(f.copies.enqueued.back().reader_event, 3u);
    cache.readers_finished(4);
    CHECK_EQ(int(cache.state_of(0)), int(MOECACHE_SLOT_STATE_LOADING));
    CHECK_EQ(cache.counters().admissions, 4u);
    CHECK_EQ(cache.counters().evictions, 3u);
    CHECK_EQ(cache.counters().copy_bytes, 400u);
}

// Evicts and admits at random, hits of the event included.
struct wild_policy : policy {
    const cache_manager * cache = nullptr;
    uint32_t              state = 1;
    uint32_t              n_slots;

    explicit wild_policy(uint32_t n) : n_slots(n) {}

    uint32_t draw(uint32_t n) {
        state = state * 1664525u + 1013904223u;
        return (state >> 8) % n;
    }
    void on_event(const cache_event & event, std::vector<decision> & out) override {
        for (uint32_t i = 0; i < event.n_items; i++) {
            const uint32_t item = event.items[i];
            const uint32_t slot = draw(n_slots);
            const uint32_t held = cache->item_of(slot);
            bool           good = cache->slot_of(item) == no_item && draw(3) != 0;
            for (const decision & d : out) {
                good = good && d.evicted != held;
            }
            if (good) {
                out.push_back({ item, held });
            }
        }
    }
    void        save(session_state &) const override {}
    std::string load(const session_state &) override { return ""; }
};

// Knows by itself which event read a slot last, and which events have finished.
struct guarding_transfer : transfer {
    std::vector<uint64_t> last_read; // [slots] 1 + event
    std::vector<uint64_t> waits_for; // [slots] 1 + event, of the copy that counts
    uint64_t              finished = 0;
    uint64_t              n_waited = 0;

    void enqueue(const copy_request & copy) override {
        const bool in_use = last_read[copy.slot] > finished;
        CHECK_EQ(copy.after_readers, in_use);
        CHECK(!in_use || copy.reader_event + 1 == last_read[copy.slot]);
        waits_for[copy.slot] = in_use ? last_read[copy.slot] : 0;
        n_waited += in_use ? 1 : 0;
    }
    bool complete(uint32_t slot) override {
        CHECK(waits_for[slot] <= finished); // never asked before the copy could have begun
        return true;
    }
};

// The device is up to three events behind: no copy may begin to overwrite a slot that an unfinished event reads.
TEST(an_event_s_experts_keep_their_slots_until_its_readers_have_finished) {
    const uint32_t n_slots  = 6;
    cache_geometry geometry = cache_geometry::make({ { 0, "exps", 5, 1 }, { 1, "exps", 5, 1 } }, false);
    CHECK_EQ(geometry.set_slots({ n_slots }), "");
    wild_policy       rules(n_slots);
    guarding_transfer copies;
    copies.last_read.assign(n_slots, 0);
    copies.waits_for.assign(n_slots, 0);
    cache_manager cache(geometry, rules, copies);
    rules.cache = &cache;
    uint8_t hit[3];
    for (uint64_t index = 0; index < 20000; index++) {
        uint32_t    items[3];
        cache_event event;
        event.index   = index;
        event.column  = rules.draw(2);
        event.items   = items;
        event.n_items = 1 + rules.draw(3);
        items[0]      = rules.draw(5);
        items[1]      = (items[0] + 1 + rules.draw(2)) % 5;
        items[2]      = (items[0] + 3 + rules.draw(2)) % 5;
        for (uint32_t & item : items) {
            item += 5 * event.column;
        }
        cache.publish(event.column);
        cache.look_up(event, hit);
        for (uint32_t i = 0; i < event.n_items; i++) {
            if (hit[i]) {
                copies.last_read[cache.slot_of(items[i])] = index + 1;
            }
        }
        cache.decide(event);
        cache.apply();
        CHECK_EQ(cache.check(), "");
        if (rules.draw(2) != 0 && index >= 3) {
            copies.finished = std::max<uint64_t>(copies.finished, index + 1 - rules.draw(4));
            cache.readers_finished(copies.finished - 1);
        }
    }
    CHECK(cache.counters().hits > 1000);
    CHECK(copies.n_waited > 100);
}

TEST(an_imported_residency_is_visible_at_once) {
    fixture       f(2);
    session_state state;
    state.put("content", { 1, 6 });
    cache_manager cache(f.geometry, f.rules, f.copies);
    CHECK_EQ(cache.load(state), "");
    CHECK_EQ(cache.check(), "");
    CHECK_EQ(f.run(cache, 0, { 1, 2 }, {}), 1u);
    CHECK_EQ(f.run(cache, 1, { 2 }, {}), 1u);
    CHECK_EQ(f.copies.enqueued.size(), 0u);
}

TEST(experts_of_different_size_never_share_a_budget) {
    const auto geometry = cache_geometry::make(
        { { 0, "exps", 4, 100 }, { 1, "exps", 4, 200 }, { 2, "exps", 8, 100 }, { 2, "chexps", 2, 50 } }, false);
    CHECK_EQ(geometry.n_budgets(), 3u);
    CHECK_EQ(geometry.budget_of_column[2], 0u);
    CHECK_EQ(geometry.items_of_budget[0], 12u);
    CHECK_EQ(geometry.n_items(), 18u);
    CHECK_EQ(geometry.budget_of_item(16), 2u);
    CHECK_EQ(geometry.expert_of_item(9), 1u);
    cache_geometry sized = geometry;
    CHECK_EQ(sized.set_slots({ 1, 2 }), "the capacity must name 3 numbers of slots, one per budget. Got 2 instead.");
    CHECK_EQ(sized.set_slots({ 1, 5, 0 }), "the capacity of budget 1 must be at most its 4 experts. Got 5 instead.");
}

// Slots of a budget in order: item and state, "-" for an empty one.
static std::string slots_of(const cache_manager & cache) {
    static const char * const states[] = { "", "loading", "resident", "draining" };
    std::string               text;
    for (uint32_t slot = 0; slot < cache.n_slots(); slot++) {
        const bool empty = cache.item_of(slot) == no_item;
        text += (text.empty() ? "" : " ") +
                (empty ? std::string("-") : std::to_string(cache.item_of(slot)) + ":" + states[cache.state_of(slot)]);
    }
    return text;
}

// Before: 0 and 1 resident, 2 under way, 3 resident. Three slots are taken afterwards, so 3, in the fourth, is copied
// anew.
TEST(another_session_keeps_what_it_can_and_copies_the_rest) {
    fixture       f(4);
    told_policy   other;
    cache_manager cache(f.geometry, f.rules, f.copies);
    f.run(cache, 0, { 0, 1, 2, 3 }, { { 0, no_item }, { 1, no_item }, { 2, no_item }, { 3, no_item } });
    cache.readers_finished(0);
    f.copies.done[0] = f.copies.done[1] = f.copies.done[3] = true;
    f.run(cache, 0, { 0, 1 }, {});
    CHECK_EQ(slots_of(cache), "0:resident 1:resident 2:loading 3:resident");
    cache.replace(other, { 0, 2, 3 });
    CHECK_EQ(cache.check(), "");
    CHECK_EQ(slots_of(cache), "0:resident 3:loading 2:loading -");
    CHECK_EQ(f.copies.enqueued.size(), 5u);
    CHECK_EQ(f.copies.enqueued[4].item, 3u);
    CHECK(!f.copies.enqueued[4].after_readers); // all readers have finished
    CHECK_EQ(cache.counters().evictions, 0u);
    f.copies.done[1] = f.copies.done[2] = true;
    other.next                          = { { 6, no_item } };
    cache_event event;
    event.index   = 0; // of the new session
    event.n_items = 1;
    f.items       = { 3 };
    event.items   = f.items.data();
    cache.publish(0);
    CHECK_EQ(cache.look_up(event, f.hit), 1u);
    CHECK_EQ(cache.decide(event).size(), 1u); // by the other policy
    cache.apply();
    CHECK_EQ(slots_of(cache), "0:resident 3:resident 2:resident 6:loading");
    CHECK_EQ(cache.check(), "");
}

TEST(a_slot_that_drains_is_free_for_another_session) {
    fixture       f(1);
    told_policy   other;
    cache_manager cache(f.geometry, f.rules, f.copies);
    f.run(cache, 0, { 1 }, { { 1, no_item } });
    f.copies.done[0] = true;
    f.run(cache, 0, { 1 }, { { 2, 1 } });
    CHECK_EQ(slots_of(cache), "2:draining");
    cache.replace(other, { 2 });
    CHECK_EQ(slots_of(cache), "2:loading");
    CHECK_EQ(f.copies.enqueued.size(), 2u);
    cache.replace(f.rules, {});
    CHECK_EQ(slots_of(cache), "-");
    CHECK_EQ(cache.check(), "");
    f.copies.done[0] = true;
    CHECK_EQ(f.run(cache, 0, { 2 }, { { 2, no_item } }), 0u);
}

// The journal begins with what is visible, then has every change in order: as many as the generation counts.
TEST(a_journal_has_every_change_of_the_snapshot) {
    fixture                      f(2);
    cache_manager                cache(f.geometry, f.rules, f.copies);
    std::vector<snapshot_change> changes;
    f.run(cache, 0, { 1 }, { { 1, no_item } });
    cache.readers_finished(0);
    f.copies.done[0] = true;
    f.run(cache, 0, { 1, 2 }, { { 2, no_item } }); // 1 becomes visible
    snapshot_journal journal(8);
    cache.keep_journal(journal);
    const uint64_t before = cache.generation();
    journal.take(changes);
    CHECK_EQ(changes.size(), size_t(1));
    CHECK_EQ(changes[0].item, 1u);
    CHECK_EQ(changes[0].added, 1u);
    cache.readers_finished(1);
    f.copies.done[1] = true;
    f.run(cache, 0, { 1, 3 }, { { 3, 1 } }); // 2 becomes visible, 1 leaves
    journal.take(changes);
    CHECK_EQ(changes.size(), size_t(2));
    CHECK_EQ(changes[0].item, 2u);
    CHECK_EQ(changes[0].added, 1u);
    CHECK_EQ(changes[1].item, 1u);
    CHECK_EQ(changes[1].added, 0u);
    CHECK_EQ(cache.generation(), before + 2);
    f.run(cache, 0, { 3 }, { { 0, 3 } }); // 3 was never visible
    CHECK_EQ(journal.size(), size_t(0));
    told_policy other;
    cache.replace(other, { 0 }); // another session: 2 leaves
    journal.take(changes);
    CHECK_EQ(changes.size(), size_t(1));
    CHECK_EQ(changes[0].item, 2u);
    CHECK_EQ(changes[0].added, 0u);
}
