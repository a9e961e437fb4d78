// The session of a cache: what the policy has learnt and which experts have slots. Exported, imported, reset, frozen.
#include "backend/expert-cache.h"
#include "core/policies/residency.h"
#include "core/policies/table.h"

#include <algorithm>

namespace moecache {

// After an import the first request that is not at its beginning goes on with the one that came last in the state: its
// KV cells were restored, or it is the same one.
void expert_cache::begin_batch(const std::vector<token_info> & tokens) {
    if (continues && !tokens.empty() && tokens.front().token_index > 0 && requests.next() > 0) {
        requests.continue_last(tokens.front().request_id);
    }
    continues = false;
    request   = 0;
    for (const token_info & token : tokens) {
        request = std::max(request, requests.of(token.request_id));
    }
}

saved_session expert_cache::export_session() const {
    saved_session saved;
    saved.state.policy = spec.canonical();
    saved.model        = model;
    saved.per_layer    = per_layer;
    saved.slots        = geometry.slots_of_budget;
    saved.columns      = geometry.columns;
    manager->save(saved.state);
    session_clock now = clock;
    now.requests      = requests.next();
    now.save(saved.state);
    return saved;
}

std::string expert_cache::import_session(const saved_session & saved) {
    std::string             error = saved_session_misfit(saved, geometry, per_layer, spec.canonical(), model);
    std::unique_ptr<policy> other;
    std::vector<int64_t>    content;
    session_clock           saved_clock;
    error = error.empty() ? make_policy({ spec, geometry, nullptr }, other) : error;
    error = error.empty() ? other->load(saved.state) : error;
    error = error.empty() ? load_content(saved.state, geometry, content) : error;
    error = error.empty() ? saved_clock.load(saved.state) : error;
    if (!error.empty()) {
        return error;
    }
    begin_session(std::move(other), content);
    clock     = saved_clock;
    continues = true;
    requests.restart(clock.requests);
    return "";
}

std::string expert_cache::reset_session() {
    std::unique_ptr<policy> other;
    const std::string       error = make_policy({ spec, geometry, nullptr }, other);
    if (!error.empty()) {
        return error;
    }
    std::vector<decision> placed;
    std::vector<int64_t>  content;
    other->place(placed);
    for (const decision & d : placed) {
        content.push_back(d.admitted);
    }
    begin_session(std::move(other), content);
    clock = session_clock();
    requests.restart(0);
    return "";
}

void expert_cache::begin_session(std::unique_ptr<policy> other, const std::vector<int64_t> & content) {
    ggml_backend_synchronize(inner); // nobody reads the slots that change hands
    manager->replace(*other, content);
    rules = std::move(other);
    n_changes++;
    last_column = INT32_MAX;
    copies->readers_launched();
    if (sync) {
        copies->wait_all();
    }
}

void expert_cache::freeze(bool on) {
    n_changes += on && !frozen ? 1 : 0;
    frozen      = on;
    last_column = INT32_MAX;
}

void expert_cache::finish_copies() {
    copies->readers_launched();
    copies->wait_all();
    manager->publish_all();
}

} // namespace moecache
