#include "core/event-ring.h"
#include "core/request-tracker.h"

#include "check.h"

#include <cmath>

using namespace moecache;

// "request:position" per token, "d" behind decode tokens
static std::string assign(request_tracker & tracker, std::vector<int32_t> positions,
                          const std::vector<int32_t> * outputs = nullptr) {
    std::vector<token_info> tokens;
    tracker.assign(positions.data(), positions.size(), tokens, nullptr, outputs);
    std::string text;
    for (const token_info & token : tokens) {
        text += (text.empty() ? "" : " ") + std::to_string(token.request_id) + ":" + std::to_string(token.token_index);
        text += token.phase == MOECACHE_PHASE_DECODE ? "d" : "";
    }
    return text;
}

TEST(one_request_after_the_other) {
    request_tracker tracker;
    CHECK_EQ(assign(tracker, { 0, 1, 2 }), "0:0 0:1 0:2");
    CHECK_EQ(assign(tracker, { 3 }), "0:3d");
    CHECK_EQ(assign(tracker, { 4 }), "0:4d");
    CHECK_EQ(assign(tracker, { 0, 1 }), "1:0 1:1");
    CHECK_EQ(assign(tracker, { 2 }), "1:2d");
}

TEST(a_single_first_token_is_prefill) {
    request_tracker tracker;
    CHECK_EQ(assign(tracker, { 0 }), "0:0");
    CHECK_EQ(assign(tracker, { 1 }), "0:1d");
}

TEST(a_prompt_in_several_ubatches_is_one_request) {
    request_tracker tracker;
    CHECK_EQ(assign(tracker, { 0, 1 }), "0:0 0:1");
    CHECK_EQ(assign(tracker, { 2, 3 }), "0:2 0:3");
}

TEST(parallel_sequences_in_step_keep_their_order) {
    request_tracker tracker;
    CHECK_EQ(assign(tracker, { 0, 1, 0, 1 }), "0:0 0:1 1:0 1:1");
    CHECK_EQ(assign(tracker, { 2, 2 }), "0:2d 1:2d");
    CHECK_EQ(assign(tracker, { 3, 3 }), "0:3d 1:3d");
    CHECK_EQ(assign(tracker, { 4, 4 }), "0:4d 1:4d");
}

TEST(decode_beside_the_prefill_of_another) {
    request_tracker tracker;
    assign(tracker, { 0, 1, 2 });
    CHECK_EQ(assign(tracker, { 3, 0, 1 }), "0:3d 1:0 1:1");
    CHECK_EQ(assign(tracker, { 4, 2 }), "0:4d 1:2d");
}

TEST(a_finished_request_does_not_take_anothers_token) {
    request_tracker tracker;
    assign(tracker, { 0, 1, 2 }); // request 0 ends at position 2
    assign(tracker, { 0, 1 });
    CHECK_EQ(assign(tracker, { 2 }), "1:2d");
    CHECK_EQ(assign(tracker, { 3 }), "1:3d"); // both end at 2, request 1 was in the ubatch before
}

TEST(a_token_that_continues_nothing_begins_a_request) {
    request_tracker tracker;
    assign(tracker, { 0, 1 });
    CHECK_EQ(assign(tracker, { 100 }), "1:100d"); // a restored state
    CHECK_EQ(assign(tracker, { 101 }), "1:101d");
}

TEST(an_id_set_by_hand_takes_all_tokens) {
    request_tracker tracker;
    assign(tracker, { 0, 1 });
    tracker.set_request_id(7);
    CHECK_EQ(assign(tracker, { 0, 1 }), "7:0 7:1");
    CHECK_EQ(assign(tracker, { 2 }), "7:2d");
    CHECK_EQ(assign(tracker, { 0 }), "7:0");
    tracker.set_request_id(request_tracker::automatic);
    CHECK_EQ(assign(tracker, { 0 }), "8:0");
}

TEST(automatic_ids_go_on_above_those_set_by_hand) {
    request_tracker tracker;
    CHECK_EQ(assign(tracker, { 0 }), "0:0");
    tracker.set_request_id((uint64_t(1) << 33) + 1);
    CHECK_EQ(assign(tracker, { 0 }), "8589934593:0");
    tracker.set_request_id(5);
    CHECK_EQ(assign(tracker, { 0 }), "5:0");
    tracker.set_request_id(request_tracker::automatic);
    CHECK_EQ(assign(tracker, { 0 }), "8589934594:0");
}

TEST(an_id_at_the_end_of_the_range_does_not_use_the_range_up) {
    request_tracker tracker;
    CHECK_EQ(assign(tracker, { 0 }), "0:0");
    for (const uint64_t id : { request_tracker::max_id, request_tracker::id_limit }) {
        tracker.set_request_id(id);
        assign(tracker, { 0 });
    }
    tracker.set_request_id(request_tracker::automatic);
    CHECK_EQ(assign(tracker, { 0 }), "1:0");
    tracker.set_request_id(request_tracker::id_limit - 1);
    CHECK_EQ(assign(tracker, { 0 }), "4611686018427387903:0"); // 2^62 - 1
    tracker.set_request_id(request_tracker::automatic);
    CHECK_EQ(assign(tracker, { 0 }), "4611686018427387904:0");
}

TEST(without_positions_tokens_count_on) {
    request_tracker         tracker;
    std::vector<token_info> tokens;
    tracker.assign(nullptr, 2, tokens);
    tracker.assign(nullptr, 1, tokens);
    CHECK_EQ(tokens[0].token_index, 2);
    CHECK_EQ(tokens[0].request_id, 0u);
}

TEST(an_empty_ubatch_is_nothing) {
    request_tracker tracker;
    CHECK_EQ(assign(tracker, {}), "");
}

TEST(many_requests_do_not_grow_without_bound) {
    request_tracker tracker;
    for (int i = 0; i < 1000; i++) {
        assign(tracker, { 0 });
    }
    CHECK_EQ(assign(tracker, { 1 }), "999:1d");
}

// A KV cache of 8 cells; `visible[i]` lists the cells that token i may look at, its own included.
static std::string assign_cells(request_tracker & tracker, std::vector<int32_t> positions, std::vector<int64_t> cells,
                                std::vector<std::vector<int>> visible) {
    const size_t       n_cells = 8;
    std::vector<float> mask(positions.size() * n_cells, -INFINITY);
    for (size_t token = 0; token < positions.size(); token++) {
        for (const int cell : visible[token]) {
            mask[token * n_cells + static_cast<size_t>(cell)] = 0.0f;
        }
    }
    const attention_view    attention { cells.data(), mask.data(), false, n_cells, positions.size(), false };
    std::vector<token_info> tokens;
    CHECK(attention.consistent());
    tracker.assign(positions.data(), positions.size(), tokens, &attention);
    std::string text;
    for (const token_info & token : tokens) {
        text += (text.empty() ? "" : " ") + std::to_string(token.request_id) + ":" + std::to_string(token.token_index);
    }
    return text;
}

TEST(cells_tell_a_warm_up_from_the_request_after_it) {
    request_tracker tracker;
    CHECK_EQ(assign_cells(tracker, { 0, 1 }, { 0, 1 }, { { 0 }, { 0, 1 } }), "0:0 0:1");
    // the memory was cleared: the same cells, written anew
    CHECK_EQ(assign_cells(tracker, { 0, 1, 2 }, { 0, 1, 2 }, { { 0 }, { 0, 1 }, { 0, 1, 2 } }), "1:0 1:1 1:2");
}

TEST(cells_tell_sequences_apart_whatever_their_positions) {
    request_tracker tracker;
    CHECK_EQ(assign_cells(tracker, { 0, 1 }, { 0, 1 }, { { 0 }, { 0, 1 } }), "0:0 0:1");
    // request 0 decodes position 2, beside the prompt of request 1
    CHECK_EQ(assign_cells(tracker, { 2, 0, 1, 2 }, { 2, 3, 4, 5 }, { { 0, 1, 2 }, { 3 }, { 3, 4 }, { 3, 4, 5 } }),
             "0:2 1:0 1:1 1:2");
    // both at position 3, in the other order
    CHECK_EQ(assign_cells(tracker, { 3, 3 }, { 6, 7 }, { { 3, 4, 5, 6 }, { 0, 1, 2, 7 } }), "1:3 0:3");
}

TEST(cells_of_requests_that_ended_belong_to_the_next_one) {
    request_tracker tracker;
    CHECK_EQ(assign_cells(tracker, { 0, 1 }, { 0, 1 }, { { 0 }, { 0, 1 } }), "0:0 0:1");
    CHECK_EQ(assign_cells(tracker, { 0 }, { 2 }, { { 2 } }), "1:0");
    CHECK_EQ(assign_cells(tracker, { 2, 1 }, { 3, 4 }, { { 0, 1, 3 }, { 2, 4 } }), "0:2 1:1");
    // Both end. A prompt of as many tokens as there were requests takes the cells in which request 0 began.
    CHECK_EQ(assign_cells(tracker, { 0, 1 }, { 0, 1 }, { { 0 }, { 0, 1 } }), "2:0 2:1");
}

TEST(half_precision_masks_are_read) {
    const int64_t        cells[1] = { 1 };
    const uint16_t       mask[2]  = { 0xfc00, 0x0000 };
    const attention_view attention { cells, mask, true, 2, 1, false };
    CHECK(!attention.visible(0, 0));
    CHECK(attention.visible(1, 0));
    CHECK(!attention.visible(2, 0)); // no such cell
    CHECK(attention.consistent());
}

// Several KV streams: cells count through all of them (here 100 to a stream), the mask is not used.
static std::string assign_streams(request_tracker & tracker, std::vector<int32_t> positions,
                                  std::vector<int64_t> cells) {
    const attention_view    attention { cells.data(), nullptr, false, 0, positions.size(), true };
    std::vector<token_info> tokens;
    tracker.assign(positions.data(), positions.size(), tokens, &attention);
    std::string text;
    for (const token_info & token : tokens) {
        text += (text.empty() ? "" : " ") + std::to_string(token.request_id) + ":" + std::to_string(token.token_index);
    }
    return text;
}

TEST(streams_are_told_by_their_cells) {
    request_tracker tracker;
    CHECK_EQ(assign_streams(tracker, { 0, 1 }, { 0, 1 }), "0:0 0:1"); // a warm-up, then its cells anew
    CHECK_EQ(assign_streams(tracker, { 0, 1, 2, 0, 1, 2 }, { 0, 1, 2, 100, 101, 102 }), "1:0 1:1 1:2 2:0 2:1 2:2");
    CHECK_EQ(assign_streams(tracker, { 3, 3 }, { 103, 3 }), "2:3 1:3"); // in the other order
    CHECK_EQ(assign_streams(tracker, { 4, 0 }, { 4, 200 }), "1:4 3:0");
    CHECK_EQ(assign_streams(tracker, { 4 }, { 150 }), "2:4"); // a hole in the stream: positions decide
}

TEST(rejected_drafts_stay_in_their_request) {
    request_tracker tracker;
    CHECK_EQ(assign_cells(tracker, { 0, 1 }, { 0, 1 }, { { 0 }, { 0, 1 } }), "0:0 0:1");
    CHECK_EQ(assign_cells(tracker, { 2, 3, 4 }, { 2, 3, 4 }, { { 0, 1, 2 }, { 0, 1, 2, 3 }, { 0, 1, 2, 3, 4 } }),
             "0:2 0:3 0:4");
    // 3 and 4 were rejected: position 3 again, in the same cells
    CHECK_EQ(assign_cells(tracker, { 3, 4 }, { 3, 4 }, { { 0, 1, 2, 3 }, { 0, 1, 2, 3, 4 } }), "0:3 0:4");
    // only the newest was rejected
    CHECK_EQ(assign_cells(tracker, { 4 }, { 4 }, { { 0, 1, 2, 3, 4 } }), "0:4");
}

TEST(without_cells_a_prompt_after_a_warm_up_is_one_request) {
    request_tracker tracker;
    CHECK_EQ(assign(tracker, { 0, 1 }), "0:0 0:1");
    CHECK_EQ(assign(tracker, { 0, 1, 2, 3 }), "1:0 1:1 1:2 1:3");
}

// `outputs`: rows whose logits are wanted.
static std::string assign_outputs(request_tracker & tracker, std::vector<int32_t> positions,
                                  const std::vector<int32_t> & outputs) {
    return assign(tracker, std::move(positions), &outputs);
}

TEST(a_draft_that_is_verified_is_decode) {
    request_tracker tracker;
    CHECK_EQ(assign_outputs(tracker, { 0, 1 }, {}), "0:0 0:1");
    CHECK_EQ(assign_outputs(tracker, { 2, 3 }, { 1 }), "0:2 0:3"); // the prompt's last token
    CHECK_EQ(assign_outputs(tracker, { 4, 5, 6, 7 }, { 0, 1, 2, 3 }), "0:4d 0:5d 0:6d 0:7d");
    CHECK_EQ(assign_outputs(tracker, { 8 }, { 0 }), "0:8d");
    CHECK_EQ(assign_outputs(tracker, { 9, 10, 11 }, { 2 }), "0:9 0:10 0:11"); // the next part of a conversation
}

TEST(a_prompt_of_which_all_logits_are_wanted_is_prefill) {
    request_tracker tracker;
    CHECK_EQ(assign_outputs(tracker, { 0, 1 }, { 0, 1 }), "0:0 0:1");
    CHECK_EQ(assign_outputs(tracker, { 2, 3 }, { 0, 1 }), "0:2 0:3");
}

TEST(drafts_and_prompts_of_several_requests_in_one_ubatch) {
    request_tracker tracker;
    CHECK_EQ(assign_outputs(tracker, { 0, 1, 2 }, { 2 }), "0:0 0:1 0:2");
    CHECK_EQ(assign_outputs(tracker, { 3, 4, 0, 1 }, { 0, 1, 3 }), "0:3d 0:4d 1:0 1:1");
    CHECK_EQ(assign_outputs(tracker, { 2, 3 }, { 0, 1 }), "1:2d 1:3d");
}

TEST(where_outputs_are_not_known_only_single_tokens_are_decode) {
    request_tracker tracker;
    CHECK_EQ(assign_outputs(tracker, { 0, 1 }, { 1 }), "0:0 0:1");
    CHECK_EQ(assign(tracker, { 2, 3 }), "0:2 0:3");
    CHECK_EQ(assign(tracker, { 4 }), "0:4d");
}

TEST(more_requests_in_a_ubatch_than_are_kept) {
    request_tracker            tracker;
    const std::vector<int32_t> positions(300, 0);
    std::vector<int32_t>       outputs(300);
    for (int32_t i = 0; i < 300; i++) {
        outputs[static_cast<size_t>(i)] = i;
    }
    std::vector<token_info> tokens;
    tracker.assign(positions.data(), positions.size(), tokens, nullptr, &outputs);
    CHECK_EQ(tokens.back().request_id, 299u);
    CHECK_EQ(static_cast<int>(tokens.front().phase), static_cast<int>(MOECACHE_PHASE_PREFILL));
}

static std::vector<int32_t> counted(int32_t first, int32_t end) {
    std::vector<int32_t> numbers;
    for (int32_t number = first; number < end; number++) {
        numbers.push_back(number);
    }
    return numbers;
}

// A prompt of which the second half's logits are wanted (llama-perplexity), in ubatches of 64 tokens, then drafts.
TEST(what_is_longer_than_a_draft_can_be_is_prefill) {
    request_tracker            tracker;
    std::vector<token_info>    tokens;
    const std::vector<int32_t> none;
    const auto                 n_decode = [&](int32_t first, int32_t n_tokens, const std::vector<int32_t> & outputs) {
        const std::vector<int32_t> positions = counted(first, first + n_tokens);
        tracker.assign(positions.data(), positions.size(), tokens, nullptr, &outputs);
        size_t n = 0;
        for (const token_info & token : tokens) {
            n += token.phase == MOECACHE_PHASE_DECODE;
        }
        return n;
    };
    CHECK_EQ(n_decode(0, 64, none), 0u);
    CHECK_EQ(n_decode(64, 64, counted(0, 64)), 0u);
    CHECK_EQ(n_decode(128, 33, counted(0, 33)), 0u);
    CHECK_EQ(n_decode(161, 32, counted(0, 32)), 32u);
    CHECK_EQ(n_decode(193, 2, counted(0, 2)), 2u);
    CHECK_EQ(n_decode(195, 2, counted(1, 2)), 0u);
    CHECK_EQ(n_decode(197, 1, none), 1u);
}

// What is no cell must not become an index. Cells count through all streams, beyond the part of one that is in use.
TEST(numbers_that_are_no_cells_are_told) {
    attention_view attention;
    attention.n_cells  = 8;
    attention.n_tokens = 2;
    for (const auto & [cell, is_one] : { std::pair(int64_t(0), true),
                                         { (int64_t(1) << 27) - 1, true },
                                         { int64_t(1) << 27, false },
                                         { -1, false },
                                         { INT64_MAX, false },
                                         { INT64_MIN, false } }) {
        const int64_t cells[] = { 7, cell };
        attention.cells       = cells;
        CHECK_EQ(attention.plausible(), is_one);
    }
}
