#include "core/sim/event-stream.h"

#include "check.h"

using namespace moecache;

// Rows in the order of the trace, two layers of 8 experts.
struct rows_fixture {
    std::vector<int64_t> order, column, token, request, unit;
    std::vector<int32_t> ids;
    std::vector<uint8_t> phase;

    void add(int64_t c, int64_t t, int64_t u, std::vector<int32_t> experts, uint8_t decode) {
        order.push_back(static_cast<int64_t>(order.size()));
        column.push_back(c);
        token.push_back(t);
        request.push_back(0);
        unit.push_back(u);
        phase.push_back(decode);
        experts.resize(3, -1);
        ids.insert(ids.end(), experts.begin(), experts.end());
    }

    std::string make(event_stream & out, bool per_access = false) const {
        trace_rows rows;
        rows.n_rows  = order.size();
        rows.k       = 3;
        rows.order   = order.data();
        rows.ids     = ids.data();
        rows.column  = column.data();
        rows.token   = token.data();
        rows.request = request.data();
        rows.phase   = phase.data();
        rows.unit    = unit.data();
        return event_stream::make(rows, cache_geometry::make({ { 0, "exps", 8, 0 }, { 1, "exps", 8, 0 } }, true),
                                  per_access, out);
    }
};

static std::string items_of(const event_stream & stream, size_t index) {
    std::string       text;
    const cache_event event = stream.event(index);
    for (uint32_t i = 0; i < event.n_items; i++) {
        text += (i > 0 ? " " : "") + std::to_string(event.items[i]);
    }
    return text;
}

TEST(prefill_rows_of_a_batch_and_layer_are_one_event) {
    rows_fixture rows;
    rows.add(0, 0, -1, { 1, 2 }, 0);
    rows.add(0, 1, -1, { 3, 1 }, 0);
    rows.add(0, 2, -1, { 3, 5 }, 0);
    rows.add(1, 0, -1, { 7 }, 0);
    rows.add(1, 1, -1, { 6 }, 0);
    rows.add(1, 2, -1, { 7 }, 0);
    rows.add(0, 3, 6, { 2, 4, 0 }, 1);
    rows.add(0, 4, 7, { 2, 4, 0 }, 1);
    event_stream stream;
    CHECK_EQ(rows.make(stream), "");
    CHECK_EQ(stream.n_events(), 4u);
    CHECK_EQ(items_of(stream, 0), "2 1 3 5"); // by last appearance
    CHECK_EQ(items_of(stream, 1), "14 15");
    CHECK_EQ(items_of(stream, 2), "2 4 0");
    CHECK_EQ(stream.row[0], 2);
    CHECK_EQ(stream.token[0], 2); // the clock of a union is its last token
    CHECK_EQ(stream.token[1], 2);
    CHECK_EQ(stream.token[2], 3);
    CHECK_EQ(int(stream.decode[1]), 0);
    CHECK_EQ(int(stream.decode[2]), 1);
    CHECK_EQ(stream.event(2).first_access, 6u);
}

TEST(an_expert_named_twice_counts_at_its_last_position) {
    rows_fixture rows;
    rows.add(0, 0, 0, { 4, 2, 4 }, 1);
    event_stream stream;
    CHECK_EQ(rows.make(stream), "");
    CHECK_EQ(items_of(stream, 0), "2 4");
}

TEST(the_clock_never_goes_back) {
    rows_fixture rows; // two sequences decoded together: layer by layer
    rows.add(0, 0, 0, { 1 }, 1);
    rows.add(0, 1, 1, { 1 }, 1);
    rows.add(1, 0, 2, { 1 }, 1);
    rows.add(1, 1, 3, { 1 }, 1);
    event_stream stream;
    CHECK_EQ(rows.make(stream), "");
    CHECK_EQ(stream.token[2], 1);
}

TEST(per_access_makes_each_expert_an_event) {
    rows_fixture rows;
    rows.add(0, 0, 0, { 4, 2 }, 1);
    rows.add(1, 0, 1, { 1 }, 1);
    event_stream stream;
    CHECK_EQ(rows.make(stream, true), "");
    CHECK_EQ(stream.n_events(), 3u);
    CHECK_EQ(items_of(stream, 1), "2");
    CHECK_EQ(items_of(stream, 2), "9");
}

TEST(next_uses_name_events) {
    rows_fixture rows;
    rows.add(0, 0, 0, { 1, 2 }, 1);
    rows.add(1, 0, 1, { 1 }, 1);
    rows.add(0, 1, 2, { 2, 3 }, 1);
    rows.add(0, 2, 3, { 1 }, 1);
    event_stream stream;
    CHECK_EQ(rows.make(stream), "");
    const future & ahead = stream.ahead();
    CHECK_EQ(ahead.next_use[0], 3u);       // layer 0's expert 1
    CHECK_EQ(ahead.next_use[1], 2u);       // expert 2
    CHECK_EQ(ahead.next_use[2], no_event); // layer 1's expert 1 is another one
    CHECK_EQ(ahead.next_use[3], no_event);
}

TEST(bad_rows_are_refused) {
    event_stream stream;
    rows_fixture too_high;
    too_high.add(0, 0, 0, { 8 }, 1);
    CHECK_EQ(too_high.make(stream), "row 0 names expert 8 of 8");
    rows_fixture no_column;
    no_column.add(2, 0, 0, { 1 }, 1);
    CHECK_EQ(no_column.make(stream), "row 0 has no column 2");
    rows_fixture nothing;
    nothing.add(0, 0, 0, {}, 1);
    CHECK_EQ(nothing.make(stream), "row 0 has no experts");
}
