#include "core/request-tracker.h"

#include "core/event-ring.h"

#include <algorithm>
#include <iterator>
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
    if (streams) {
        return true;
    }
    for (size_t token = 0; token < n_tokens; token++) {
        if (!visible(cells[token], token)) {
            return false;
        }
    }
    return true;
}

bool attention_view::plausible() const {
    // Cells of all streams together, of which `n_cells` says nothing: it is the part of a stream in use. 256 sequences
    // of 2^19 tokens are as many.
    static const int64_t most_cells = int64_t(1) << 27;
    return std::all_of(cells, cells + n_tokens, [](int64_t cell) { return cell >= 0 && cell < most_cells; });
}

request_tracker::request_tracker() {
    requests.reserve(max_requests);
}

void request_tracker::set_request_id(uint64_t request_id) {
    by_hand    = request_id != automatic;
    id_by_hand = request_id;
    next_id    = by_hand && request_id < id_limit ? std::max(next_id, request_id + 1) : next_id;
}

// A cell that is freed and written by another request holds another token than the one that is remembered.
bool request_tracker::wrote_last(const request & known, int64_t cell) const {
    return static_cast<size_t>(cell) < writers.size() && writers[static_cast<size_t>(cell)] == known.id + 1;
}

bool request_tracker::follows(const request & known, int32_t position, size_t token,
                              const attention_view * attention) const {
    if (by_hand) {
        return known.id == id_by_hand;
    }
    if (position <= 0 || position - 1 > known.last_position) {
        return false;
    }
    if (attention == nullptr) {
        return position - 1 == known.last_position;
    }
    if (position - 1 < known.first_remembered || position - 1 <= known.last_position - n_remembered) {
        return false;
    }
    const int64_t before = known.cell_at(position - 1);
    if (before >= 0 && !wrote_last(known, before)) {
        return false;
    }
    if (attention->streams) {
        return before >= 0 && attention->cells[token] == before + 1;
    }
    return before < 0 ? position - 1 == known.last_position : attention->visible(before, token);
}

// Whether a token is more likely to continue `a` than `b`.
bool request_tracker::better(const request & a, const request & b) const {
    if (!in_step && (a.last_use == n_assigned || b.last_use == n_assigned)) { // of the token before
        return a.last_use == n_assigned;
    }
    const bool a_before = a.batch + 1 == n_batches;
    const bool b_before = b.batch + 1 == n_batches;
    if (a_before != b_before) {
        return a_before;
    }
    return a_before ? a.last_use < b.last_use : a.last_use > b.last_use;
}

request_tracker::request * request_tracker::best(int32_t position, size_t token, const attention_view * attention) {
    request * found = nullptr;
    for (request & candidate : requests) {
        if (follows(candidate, position, token, attention) && (found == nullptr || better(candidate, *found))) {
            found = &candidate;
        }
    }
    return found;
}

request_tracker::request & request_tracker::find(int32_t position, size_t token, const attention_view * attention) {
    request * found = best(position, token, attention);
    if (found == nullptr && attention != nullptr && attention->streams) { // the stream's cells have a hole
        found = best(position, token, nullptr);
    }
    if (found != nullptr) {
        return *found;
    }
    if (requests.size() >= max_requests) {
        requests.erase(std::min_element(requests.begin(), requests.end(),
                                        [](const request & a, const request & b) { return a.last_use < b.last_use; }));
    }
    request begun {};
    begun.id               = by_hand ? id_by_hand : next_id++;
    begun.last_position    = position - 1;
    begun.first_remembered = position;
    std::fill(std::begin(begun.cells), std::end(begun.cells), int64_t(-1));
    requests.push_back(begun);
    return requests.back();
}

// After the requests have counted the tokens of the ubatch. A request may be gone again: then its tokens are prefill.
void request_tracker::set_phases(std::vector<token_info> & tokens, const std::vector<int32_t> * outputs) {
    const auto owner_of = [this](const token_info & token) {
        return std::find_if(requests.begin(), requests.end(), [&](const request & known) {
            return known.id == token.request_id && known.batch == n_batches;
        });
    };
    for (size_t i = 0; outputs != nullptr && i < outputs->size(); i++) {
        const auto row   = static_cast<size_t>((*outputs)[i]);
        const auto owner = row < tokens.size() ? owner_of(tokens[row]) : requests.end();
        if (owner != requests.end()) {
            owner->n_outputs_in_batch++;
        }
    }
    for (token_info & token : tokens) {
        const auto owner = owner_of(token);
        if (owner != requests.end() && token.token_index > 0) {
            const bool verifies = owner->prompt_seen && owner->n_outputs_in_batch == owner->n_in_batch &&
                                  owner->n_in_batch <= max_draft_tokens;
            token.phase = owner->n_in_batch == 1 || verifies ? MOECACHE_PHASE_DECODE : MOECACHE_PHASE_PREFILL;
        }
    }
    for (request & owner : requests) {
        const bool given = outputs != nullptr && owner.n_outputs_in_batch < owner.n_in_batch;
        owner.prompt_seen |= given && owner.batch == n_batches;
    }
}

void request_tracker::assign(const int32_t * positions, size_t n_tokens, std::vector<token_info> & result,
                             const attention_view * attention, const std::vector<int32_t> * outputs) {
    result.resize(n_tokens);
    n_batches++;
    const auto n_before = std::count_if(requests.begin(), requests.end(),
                                        [this](const request & known) { return known.batch + 1 == n_batches; });
    in_step             = n_before > 1 && static_cast<size_t>(n_before) == n_tokens;
    for (size_t i = 0; i < n_tokens; i++) {
        const int32_t position = positions != nullptr ? positions[i] : next_position++;
        const int64_t cell     = attention != nullptr ? attention->cells[i] : -1;
        if (cell >= 0 && !by_hand) { // a cell that is written anew ends the request whose newest token lay there
            requests.erase(std::remove_if(requests.begin(), requests.end(),
                                          [&](const request & known) {
                                              return known.last_position >= 0 &&
                                                     known.cell_at(known.last_position) == cell &&
                                                     !follows(known, position, i, attention);
                                          }),
                           requests.end());
        }
        request & owner = find(position, i, attention);
        if (cell >= 0) {
            writers.resize(std::max(writers.size(), static_cast<size_t>(cell) + 1));
            writers[static_cast<size_t>(cell)] = owner.id + 1;
        }
        owner.last_position                  = position;
        owner.cells[position % n_remembered] = cell;
        owner.first_remembered               = std::min(owner.first_remembered, position);
        owner.last_use                       = ++n_assigned;
        owner.n_in_batch                     = owner.batch == n_batches ? owner.n_in_batch + 1 : 1;
        owner.n_outputs_in_batch             = owner.batch == n_batches ? owner.n_outputs_in_batch : 0;
        owner.batch                          = n_batches;
        result[i]                            = { owner.id, position, MOECACHE_PHASE_PREFILL };
    }
    set_phases(result, outputs);
}

} // namespace moecache
