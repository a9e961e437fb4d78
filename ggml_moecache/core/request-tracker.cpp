#include "core/request-tracker.h"

#include "core/event-ring.h"

#include <algorithm>
#include <limits>

namespace moecache {

// Requests that can be in flight at once; the one that was used least recently makes room. llama.cpp allows 256
// sequences.
static const size_t max_requests = 256;

bool attention_view::visible(int64_t cell, size_t token) const {
    if (cell < 0 || static_cast<size_t>(cell) >= n_cells) {
        return false;
    }
    const size_t index = token * n_cells + static_cast<size_t>(cell);
    if (mask_f16) {
        return static_cast<const uint16_t *>(mask)[index] != 0xfc00; // minus infinity
    }
    return static_cast<const float *>(mask)[index] > -std::numeric_limits<float>::infinity();
}

bool attention_view::consistent() const {
    for (size_t token = 0; token < n_tokens; token++) {
        if (!visible(cells[token], token)) {
            return false;
        }
    }
    return true;
}

request_tracker::request_tracker() {
    requests.reserve(max_requests);
}

void request_tracker::set_request_id(uint64_t request_id) {
    by_hand    = request_id != automatic;
    id_by_hand = request_id;
    next_id    = by_hand ? std::max(next_id, request_id + 1) : next_id;
}

// Whether a token is more likely to continue `a` than `b`.
bool request_tracker::better(const request & a, const request & b) const {
    const bool a_before = a.batch + 1 == n_batches;
    const bool b_before = b.batch + 1 == n_batches;
    if (a_before != b_before) {
        return a_before;
    }
    return a_before ? a.last_use < b.last_use : a.last_use > b.last_use;
}

request_tracker::request & request_tracker::find(int32_t position, size_t token, const attention_view * attention) {
    request * best = nullptr;
    for (request & candidate : requests) {
        const bool follows = position > 0 && candidate.last_position == position - 1;
        const bool seen =
            attention == nullptr || candidate.last_cell < 0 || attention->visible(candidate.last_cell, token);
        const bool continues = by_hand ? candidate.id == id_by_hand : follows && seen;
        if (continues && (best == nullptr || better(candidate, *best))) {
            best = &candidate;
        }
    }
    if (best != nullptr) {
        return *best;
    }
    if (requests.size() >= max_requests) {
        requests.erase(std::min_element(requests.begin(), requests.end(),
                                        [](const request & a, const request & b) { return a.last_use < b.last_use; }));
    }
    requests.push_back({ by_hand ? id_by_hand : next_id++, position - 1, -1, 0, 0, 0 });
    return requests.back();
}

void request_tracker::assign(const int32_t * positions, size_t n_tokens, std::vector<token_info> & result,
                             const attention_view * attention) {
    result.resize(n_tokens);
    n_batches++;
    for (size_t i = 0; i < n_tokens; i++) {
        const int32_t position = positions != nullptr ? positions[i] : next_position++;
        if (attention != nullptr) { // a cell that is written anew ends the request whose newest token lay there
            const int64_t cell = attention->cells[i];
            requests.erase(std::remove_if(requests.begin(), requests.end(),
                                          [&](const request & known) { return known.last_cell == cell && !by_hand; }),
                           requests.end());
        }
        request & owner     = find(position, i, attention);
        owner.last_position = position;
        owner.last_cell     = attention != nullptr ? attention->cells[i] : -1;
        owner.last_use      = ++n_assigned;
        owner.n_in_batch    = owner.batch == n_batches ? owner.n_in_batch + 1 : 1;
        owner.batch         = n_batches;
        result[i]           = { owner.id, position, MOECACHE_PHASE_PREFILL };
    }
    for (token_info & token : result) {
        for (const request & owner : requests) {
            if (owner.id == token.request_id && owner.batch == n_batches && owner.n_in_batch == 1 &&
                token.token_index > 0) {
                token.phase = MOECACHE_PHASE_DECODE;
            }
        }
    }
}

} // namespace moecache
