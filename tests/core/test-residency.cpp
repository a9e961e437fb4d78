// The way of a snapshot's changes: journal, what is left of them, ring, lines of the log.
#include "check.h"
#include "core/residency-feed.h"
#include "core/residency-lines.h"

#include <algorithm>
#include <random>
#include <thread>

using namespace moecache;

namespace {

// Layer 0 with 4 experts of family exps (items 0 to 3) and 2 of chexps (4, 5); layer 3 with 4 (6 to 9).
std::shared_ptr<const cache_geometry> small_geometry() {
    return std::make_shared<cache_geometry>(
        cache_geometry::make({ { 0, "exps", 4, 100 }, { 0, "chexps", 2, 50 }, { 3, "exps", 4, 100 } }, false));
}

std::vector<uint32_t> items_of(const std::vector<snapshot_change> & changes, bool added) {
    std::vector<uint32_t> items;
    for (const snapshot_change & change : changes) {
        if ((change.added != 0) == added) {
            items.push_back(change.item);
        }
    }
    std::sort(items.begin(), items.end());
    return items;
}

using items = std::vector<uint32_t>;

std::string line(const std::string & rest) {
    return "{\"type\":\"residency\",\"run_id\":\"r\"," + rest + "}\n";
}

} // namespace

TEST(changes_that_cancel_each_other_leave_nothing) {
    net_changes net(8);
    net.add({ 1, 1 });
    net.add({ 5, 0 });
    net.add({ 2, 1 });
    CHECK((items_of(net.list(), true) == items { 1, 2 }));
    CHECK((items_of(net.list(), false) == items { 5 }));
    net.add({ 1, 0 });
    net.add({ 5, 1 });
    CHECK((items_of(net.list(), true) == items { 2 }));
    CHECK(items_of(net.list(), false).empty());
    net.add({ 1, 1 }); // an item that was there before
    CHECK((items_of(net.list(), true) == items { 1, 2 }));
    net.drop_last(1);
    CHECK_EQ(net.list().size(), size_t(1));
    net.clear();
    CHECK(net.list().empty());
    net.add({ 2, 0 });
    CHECK((items_of(net.list(), false) == items { 2 }));
}

// A journal that nobody takes keeps the difference only: here 4 items that change 1,000 times, and one that came once.
TEST(a_journal_that_nobody_takes_stays_short) {
    snapshot_journal             journal(5);
    std::vector<snapshot_change> taken;
    journal.add(4, true);
    for (int i = 0; i < 1001; i++) {
        for (uint32_t item = 0; item < 4; item++) {
            journal.add(item, i % 2 == 0);
        }
        journal.shorten();
        CHECK(journal.size() <= 10);
    }
    journal.take(taken);
    CHECK_EQ(journal.size(), size_t(0));
    net_changes net(5);
    for (const snapshot_change & change : taken) {
        net.add(change);
    }
    CHECK((items_of(net.list(), true) == items { 0, 1, 2, 3, 4 }));
    CHECK(items_of(net.list(), false).empty());
}

TEST(a_journal_in_order_is_taken_as_it_is) {
    snapshot_journal             journal(5);
    std::vector<snapshot_change> taken;
    journal.add(3, true);
    journal.add(3, false);
    journal.add(1, true);
    journal.shorten();
    journal.take(taken);
    CHECK_EQ(taken.size(), size_t(3));
    CHECK_EQ(taken[1].item, 3u);
    CHECK_EQ(taken[1].added, 0u);
    CHECK_EQ(taken[2].item, 1u);
}

TEST(lines_name_families_and_come_once_for_a_generation) {
    residency_lines   lines(small_geometry());
    const std::string prefix = ",\"run_id\":\"r\"";
    std::string       text;
    lines.before_event(0, prefix, text);
    CHECK_EQ(text, line("\"generation\":0,\"full\":[]"));
    text.clear();
    lines.before_event(0, prefix, text);
    CHECK_EQ(text, "");
    const snapshot_change first[] = { { 9, 1 }, { 5, 1 }, { 0, 1 }, { 3, 1 } };
    lines.apply(first, 4);
    lines.before_event(4, prefix, text);
    CHECK_EQ(text, line("\"generation\":4,\"added\":[[0,0],[0,3],[0,1,1],[3,3]],\"removed\":[]"));
    text.clear();
    // Two steps of which nobody heard in between: item 2 came and left, 0 left and came.
    const snapshot_change second[] = { { 2, 1 }, { 0, 0 }, { 5, 0 } };
    const snapshot_change third[]  = { { 0, 1 }, { 2, 0 }, { 4, 1 }, { 9, 0 } };
    lines.apply(second, 3);
    lines.apply(third, 4);
    lines.before_event(11, prefix, text);
    CHECK_EQ(text, line("\"generation\":11,\"added\":[[0,0,1]],\"removed\":[[0,1,1],[3,3]]"));
    text.clear();
    lines.before_event(12, prefix, text); // what changed has changed back: still another generation
    CHECK_EQ(text, line("\"generation\":12,\"added\":[],\"removed\":[]"));
}

TEST(the_whole_set_comes_again_after_1000_generations) {
    residency_lines       lines(small_geometry());
    std::string           text;
    const snapshot_change change[] = { { 6, 1 }, { 1, 1 } };
    lines.apply(change, 2);
    lines.before_event(7, "", text);
    lines.before_event(1006, "", text);
    lines.before_event(1007, "", text);
    lines.before_event(2006, "", text);
    lines.before_event(3500, "", text);
    const std::string none = "\"added\":[],\"removed\":[]}\n", all = "\"full\":[[0,1],[3,0]]}\n";
    const auto        head = [](int generation) {
        return "{\"type\":\"residency\",\"generation\":" + std::to_string(generation) + ",";
    };
    CHECK_EQ(text, head(7) + all + head(1006) + none + head(1007) + all + head(2006) + none + head(3500) + all);
}

// A ring of 3 slots of at most 2 changes each; 5 changes wait for an event that needs 1 slot.
TEST(changes_without_room_wait_for_a_later_event) {
    event_ring            ring(3, 2, true);
    residency_feed        feed(ring, 10);
    const snapshot_change changes[] = { { 0, 1 }, { 1, 1 }, { 2, 1 }, { 3, 1 }, { 4, 1 } };
    feed.add(changes, 5);
    CHECK(!feed.hand_over(7, 1, false)); // two slots: the third is the event's
    CHECK(ring.has_room(1));
    CHECK(!ring.has_room(2));
    CHECK_EQ(ring.n_committed(), uint64_t(0)); // changes are no events
    CHECK_EQ(ring.n_lost(), uint64_t(0));
    const routing_event * slot = nullptr;
    CHECK_EQ(ring.peek(&slot), size_t(2));
    CHECK_EQ(int(slot->kind), int(MOECACHE_SLOT_CHANGES));
    CHECK_EQ(slot->batch_id, uint64_t(7));
    CHECK_EQ(int(slot->n_used), 2);
    ring.release(2);
    const snapshot_change later[] = { { 9, 1 } };
    feed.add(later, 1);
    CHECK(feed.hand_over(8, 1, false));
    CHECK(feed.hand_over(8, 1, false));    // nothing waits
    CHECK_EQ(ring.peek(&slot), size_t(1)); // the fifth of before and this one; the memory ends here
    CHECK_EQ(int(slot->n_used), 2);
    ring.release(1);
    CHECK_EQ(ring.peek(&slot), size_t(0));
}

// Random changes through a small ring with a slow consumer: whenever all is handed over the consumer's set is the
// producer's, and waiting hands all over.
TEST(the_consumers_set_is_the_producers) {
    for (const bool may_wait : { false, true }) {
        event_ring                        ring(4, 3, true);
        residency_feed                    feed(ring, 40);
        std::vector<uint8_t>              truth(40, 0);
        std::vector<uint8_t>              seen(40, 0);
        std::atomic<bool>                 done { false };
        std::vector<std::vector<uint8_t>> told; // by the producer, at events with the whole set
        uint64_t                          n_equal = 0, n_known = 0;
        std::vector<std::vector<uint8_t>> heard;
        std::thread                       consumer([&] {
            while (true) {
                const bool            last = done.load();
                const routing_event * slot = nullptr;
                const size_t          n    = ring.peek(&slot);
                if (n == 0 && last) {
                    break;
                }
                for (size_t i = 0; i < n; i++) {
                    const auto * at = reinterpret_cast<const routing_event *>(reinterpret_cast<const char *>(slot) +
                                                                                                    i * ring.stride_bytes());
                    if (at->kind == MOECACHE_SLOT_CHANGES) {
                        for (size_t j = 0; j < at->n_used; j++) {
                            seen[ring.changes(at)[j].item] = ring.changes(at)[j].added != 0;
                        }
                    } else if (ring.cache(at)->set_known) {
                        heard.push_back(seen);
                    }
                }
                ring.release(n);
                std::this_thread::yield();
            }
        });
        std::mt19937                      random(11);
        for (int event = 0; event < 3000; event++) {
            std::vector<snapshot_change> changes;
            for (uint32_t i = random() % 12; i > 0; i--) {
                const auto item = static_cast<uint32_t>(random() % 40);
                truth[item] ^= 1;
                changes.push_back({ item, truth[item] });
            }
            feed.add(changes.data(), changes.size());
            const bool known = feed.hand_over(0, 1, may_wait);
            n_known += known;
            CHECK(known || !may_wait);
            while (!ring.has_room()) { // events themselves all get through here
                std::this_thread::yield();
            }
            routing_event * slot        = ring.begin(0);
            ring.cache(slot)->set_known = known;
            ring.commit();
            if (known) {
                told.push_back(truth);
            }
        }
        done = true;
        consumer.join();
        CHECK_EQ(heard.size(), told.size());
        for (size_t i = 0; i < std::min(heard.size(), told.size()); i++) {
            n_equal += heard[i] == told[i];
        }
        CHECK_EQ(n_equal, n_known);
        CHECK(n_known > 0);
    }
}
