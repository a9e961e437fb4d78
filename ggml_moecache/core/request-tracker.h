// Which request a token belongs to, from positions alone: a GGML backend is told neither sequences nor requests.
//
// A token at position 0 begins a new request. Any other token continues a request whose newest position is one less:
// one that was in the ubatch before, if there is any, else the one used last. Of several in the ubatch before (parallel
// sequences in step) the one whose turn came first is taken, which is the order that llama.cpp's programs keep. A token
// that continues nothing (a restored state, a shifted context) begins a new request too. An id that was set by hand
// takes every following token, until another one is set.
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

class request_tracker {
public:
    request_tracker();

    // Assign the tokens of one ubatch. `positions` may be nullptr (the graph has none): they then count on. Writes one
    // entry per token to `result`. decode = the only token of its request in the ubatch, at a position above 0.
    void assign(const int32_t * positions, size_t n_tokens, std::vector<token_info> & result);

    // For tokens from the next ubatch on. `automatic` goes back to telling requests by their positions.
    void                      set_request_id(uint64_t request_id);
    static constexpr uint64_t automatic = UINT64_MAX;

private:
    struct request {
        uint64_t id;
        int32_t  last_position;
        uint64_t last_use; // number of the assignment
        uint32_t n_in_batch;
        uint64_t batch; // of n_in_batch
    };

    bool      better(const request & a, const request & b) const;
    request & find(int32_t position);

    std::vector<request> requests;
    uint64_t             next_id       = 0;
    uint64_t             n_assigned    = 0;
    uint64_t             n_batches     = 0;
    int32_t              next_position = 0; // without positions
    bool                 by_hand       = false;
    uint64_t             id_by_hand    = 0;
};

} // namespace moecache
