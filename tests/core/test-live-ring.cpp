#include "core/live-ring.h"

#include "check.h"

using namespace moecache;

TEST(a_consumer_that_came_before_the_ring_has_it_after_the_context_is_gone) {
    std::shared_ptr<live_channel> consumer;
    {
        const auto context = live_channel_open(7);
        consumer           = live_channel_find(7);
        CHECK(consumer == context);
        CHECK(consumer->take());
        CHECK(consumer->ring() == nullptr);
        const auto ring             = std::make_shared<event_ring>(4, 2);
        ring->begin(3)->token_index = 11;
        ring->commit();
        context->set_ring(ring);
        live_channel_close(7);
    }
    CHECK(live_channel_find(7) == nullptr);
    const routing_event * event = nullptr;
    CHECK_EQ(consumer->ring()->peek(&event), 1u);
    CHECK_EQ(event->token_index, 11);
}

TEST(there_is_one_consumer_at_a_time) {
    const auto channel = live_channel_open(8);
    CHECK(channel->take());
    CHECK(!live_channel_find(8)->take());
    channel->leave();
    CHECK(live_channel_find(8)->take());
    live_channel_close(8);
}

TEST(contexts_have_channels_of_their_own) {
    CHECK(live_channel_find(9) == nullptr);
    const auto one   = live_channel_open(9);
    const auto other = live_channel_open(10);
    CHECK(one != other);
    CHECK(live_channel_find(9) == one);
    CHECK(live_channel_find(10) == other);
    live_channel_close(9);
    CHECK(live_channel_find(9) == nullptr);
    CHECK(live_channel_find(10) == other);
    live_channel_close(10);
}
