// Which request a token belongs to. A GGML backend is told neither sequences nor requests; it sees the positions, and
// what llama.cpp passes to attention: the KV cell each token is written to, and which cells it may look at.
//
// A token at position 0 begins a new request. Any other token continues a request whose newest position is one less and
// whose newest cell it may look at; a cell that is written anew ends the request that had it. Where cells are not known
// (several KV streams, no attention) positions alone decide: then a request of the ubatch before is taken first, of
// several (parallel sequences in step) the one whose turn came first, which is the order that llama.cpp's programs
// keep. A token that continues nothing (a restored state, a shifted context) begins a new request too. An id that was
// set by hand takes every following token, until another one is.
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

    bool visible(int64_t cell, size_t token) const;

    // Every token may look at its own cell; otherwise mask and cells do not belong together.
    bool consistent() const;
};

class request_tracker {
public:
    request_tracker();

    // Assign the tokens of one ubatch. `positions` may be nullptr (the graph has none): they then count on. `attention`
    // may be nullptr. Writes one entry per token to `result`. decode = the only token of its request in the ubatch, at
    // a position above 0.
    void assign(const int32_t * positions, size_t n_tokens, std::vector<token_info> & result,
                const attention_view * attention = nullptr);

    // For tokens from the next ubatch on. `automatic` goes back to telling requests apart.
    void                      set_request_id(uint64_t request_id);
    static constexpr uint64_t automatic = UINT64_MAX;

private:
    struct request {
        uint64_t id;
        int32_t  last_position;
        int64_t  last_cell; // -1: not known
        uint64_t last_use;  // number of the assignment
        uint32_t n_in_batch;
        uint64_t batch; // of n_in_batch
    };

    bool      better(const request & a, const request & b) const;
    request & find(int32_t position, size_t token, const attention_view * attention);

    std::vector<request> requests;
    uint64_t             next_id       = 0;
    uint64_t             n_assigned    = 0;
    uint64_t             n_batches     = 0;
    int32_t              next_position = 0; // without positions
    bool                 by_hand       = false;
    uint64_t             id_by_hand    = 0;
};

} // namespace moecache
