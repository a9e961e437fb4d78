#include "core/event-ring.h"

#include "check.h"

#include <thread>

using namespace moecache;

static bool put(event_ring & ring, uint64_t batch_id, int32_t token) {
    routing_event * event = ring.begin(batch_id);
    if (event == nullptr) {
        return false;
    }
    event->token_index     = token;
    event->n_used          = 2;
    event->ids()[0]        = token;
    event->ids()[1]        = token + 1;
    ring.weights(event)[1] = 0.5f * static_cast<float>(token);
    ring.commit();
    return true;
}

TEST(what_goes_in_comes_out) {
    event_ring ring(4, 2);
    CHECK_EQ(ring.stride_bytes(), 48u + 16u);
    const routing_event * event = nullptr;
    CHECK_EQ(ring.peek(&event), 0u);
    CHECK(put(ring, 3, 10));
    CHECK(put(ring, 3, 11));
    CHECK_EQ(ring.peek(&event), 2u);
    CHECK_EQ(event->batch_id, 3u);
    CHECK_EQ(event->token_index, 10);
    CHECK_EQ(event->ids()[1], 11);
    CHECK_EQ(ring.weights(event)[1], 5.0f);
    ring.release(2);
    CHECK_EQ(ring.peek(&event), 0u);
}

TEST(a_slot_that_was_not_committed_is_not_seen) {
    event_ring ring(4, 2);
    CHECK(ring.begin(0) != nullptr);
    const routing_event * event = nullptr;
    CHECK_EQ(ring.peek(&event), 0u);
    CHECK(ring.begin(0) != nullptr);
    ring.commit();
    CHECK_EQ(ring.peek(&event), 1u);
}

TEST(a_full_ring_loses_counts_and_marks_the_gap) {
    event_ring ring(2, 2);
    CHECK(put(ring, 0, 0));
    CHECK(put(ring, 0, 1));
    CHECK(!put(ring, 5, 2)); // lost, ubatch 5
    CHECK(!put(ring, 6, 3)); // lost
    CHECK_EQ(ring.n_lost(), 2u);
    const routing_event * event = nullptr;
    CHECK_EQ(ring.peek(&event), 2u);
    CHECK_EQ(event->lost_before, 0u);
    ring.release(1);
    CHECK(put(ring, 7, 4));
    ring.release(1);
    CHECK_EQ(ring.peek(&event), 1u);
    CHECK_EQ(event->token_index, 4);
    CHECK_EQ(event->lost_before, 2u);
    CHECK_EQ(event->lost_batch_id, 5u);
    ring.release(1);
    CHECK(put(ring, 8, 5));
    CHECK_EQ(ring.peek(&event), 1u);
    CHECK_EQ(event->lost_before, 0u);
}

TEST(reading_stops_where_memory_begins_again) {
    event_ring            ring(3, 2);
    const routing_event * event = nullptr;
    for (int token = 0; token < 2; token++) {
        put(ring, 0, token);
    }
    ring.peek(&event);
    ring.release(2);
    for (int token = 2; token < 5; token++) {
        put(ring, 0, token);
    }
    CHECK_EQ(ring.peek(&event), 1u); // slot 2, then the memory's end
    CHECK_EQ(event->token_index, 2);
    ring.release(1);
    CHECK_EQ(ring.peek(&event), 2u);
    CHECK_EQ(event->token_index, 3);
}

// Every event is read once and in order, or counted as lost: records + lost = events.
TEST(two_threads_lose_nothing_silently) {
    event_ring        ring(64, 2);
    const int         n_events = 200000;
    uint64_t          n_read   = 0;
    uint64_t          n_gaps   = 0;
    bool              ordered  = true;
    std::atomic<bool> done { false };
    std::thread       consumer([&] {
        int32_t last = -1;
        while (true) {
            const bool            last_round = done.load();
            const routing_event * event      = nullptr;
            const size_t          n          = ring.peek(&event);
            for (size_t i = 0; i < n; i++) {
                const auto * e = reinterpret_cast<const routing_event *>(reinterpret_cast<const char *>(event) +
                                                                               i * ring.stride_bytes());
                ordered &= e->token_index > last && e->ids()[1] == e->token_index + 1;
                ordered &= e->token_index - last - 1 == static_cast<int32_t>(e->lost_before);
                last = e->token_index;
                n_gaps += e->lost_before;
            }
            n_read += n;
            ring.release(n);
            if (n == 0 && last_round) {
                break;
            }
        }
    });
    for (int token = 0; token < n_events; token++) {
        put(ring, 0, token);
    }
    done = true;
    consumer.join();
    CHECK(ordered);
    CHECK_EQ(n_read + ring.n_lost(), static_cast<uint64_t>(n_events));
    CHECK(n_gaps <= ring.n_lost());
    CHECK_EQ(ring.n_committed(), n_read);
}
