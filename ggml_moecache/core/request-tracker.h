// Which request a token belongs to. A GGML backend is told neither sequences nor requests; it sees the positions, and
// what llama.cpp passes to attention: the KV cell each token is written to, and which cells it may look at.
//
// A token at position 0 begins a new request. Any other token continues the request that has the position before it
// (its newest, or one of the last few: speculative decoding takes rejected tokens back) in a KV cell that the token may
// look at and that no other request has written since; a cell that is written anew ends the request whose newest token
// lay there. With several KV streams the cells of a stream follow each other, so the token continues the request whose
// newest cell is the one before. Where cells do not tell, positions alone decide: then the request of the token before
// in the ubatch is taken first, unless every request of the ubatch before gets one token; else a request of the ubatch
// before, of several (sequences in step) the one whose turn came first, which is the order that llama.cpp's programs
// keep. A token that continues nothing (a restored state, a shifted context) begins a new request too. An id that was
// set by hand takes every following token, until another one is.
//
// Nor is it told which tokens were generated. A prompt's logits are wanted of its last token only, those of a draft of
// every token. A program that wants the logits of a whole prompt (perplexity) never shows a token that is no output, so
// its later ubatches are not taken for drafts; one that wants those of the second half of it does, so what is longer
// than a draft can be is not taken for one either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moecache {

struct token_info {
    uint64_t request_id  = 0;
    int32_t  token_index = 0; // position in its sequence
    uint8_t  phase       = 0; // MOECACHE_PHASE_*
};

// llama.cpp's attention inputs of one ubatch.
struct attention_view {
    const int64_t * cells    = nullptr; // KV cell of each token
    const void *    mask     = nullptr; // [n_tokens][n_cells] of F32, or F16: minus infinity hides a cell
    bool            mask_f16 = false;
    size_t          n_cells  = 0;
    size_t          n_tokens = 0;
    bool            streams  = false; // several KV streams: `mask` is not used, cells of a stream follow each other

    bool visible(int64_t cell, size_t token) const;

    // Every token may look at its own cell; otherwise mask and cells do not belong together.
    bool consistent() const;

    // Whether the cells can be cells of a KV cache at all; if not, their memory holds something else.
    bool plausible() const;
};

class request_tracker {
public:
    // Tokens of one request that are verified at once: also what the expert cache takes for decode work.
    static constexpr uint32_t max_draft_tokens = 32;

    request_tracker();

    // Assign the tokens of one ubatch. `positions` may be nullptr (the graph has none): they then count on. `attention`
    // may be nullptr. `outputs` are the rows whose logits are wanted; nullptr: not known. Writes one entry per token to
    // `result`. decode = the only token of its request in the ubatch, at a position above 0; or one of several whose
    // logits are all wanted, at most max_draft_tokens, of a request whose prompt was seen: a draft that is verified.
    void assign(const int32_t * positions, size_t n_tokens, std::vector<token_info> & result,
                const attention_view * attention = nullptr, const std::vector<int32_t> * outputs = nullptr);

    // For tokens from the next ubatch on. `automatic` goes back to telling requests apart: under ids above all before,
    // of which those set by hand count below `id_limit` only, so that ids never run out.
    // REQUIRES: request_id <= max_id, or automatic.
    void                      set_request_id(uint64_t request_id);
    static constexpr uint64_t automatic = UINT64_MAX;
    static constexpr uint64_t max_id    = INT64_MAX;
    static constexpr uint64_t id_limit  = uint64_t(1) << 62;

private:
    static constexpr int32_t n_remembered = 64; // positions that a request may be taken back by

    struct request {
        uint64_t id;
        int32_t  last_position;
        int32_t  first_remembered;    // oldest position in `cells`
        int64_t  cells[n_remembered]; // by position modulo n_remembered; -1: not known
        uint64_t last_use;            // number of the assignment
        uint32_t n_in_batch;
        uint32_t n_outputs_in_batch;
        uint64_t batch;       // of n_in_batch and n_outputs_in_batch
        bool     prompt_seen; // in a ubatch before, not all of its tokens were outputs: they were given, not generated

        int64_t cell_at(int32_t position) const { return cells[position % n_remembered]; }
    };

    bool      follows(const request & known, int32_t position, size_t token, const attention_view * attention) const;
    bool      better(const request & a, const request & b) const;
    bool      wrote_last(const request & known, int64_t cell) const;
    request * best(int32_t position, size_t token, const attention_view * attention);
    request & find(int32_t position, size_t token, const attention_view * attention);
    void      set_phases(std::vector<token_info> & tokens, const std::vector<int32_t> * outputs);

    std::vector<request>  requests;
    std::vector<uint64_t> writers; // by KV cell: 1 + id of the request that wrote it last, 0: none that is known
    uint64_t              next_id       = 0;
    uint64_t              n_assigned    = 0;
    uint64_t              n_batches     = 0;
    int32_t               next_position = 0; // without positions
    bool                  by_hand       = false;
    bool                  in_step       = false; // every request of the ubatch before gets one token
    uint64_t              id_by_hand    = 0;
};

} // namespace moecache
