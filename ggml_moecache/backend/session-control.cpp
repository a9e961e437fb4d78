#include "backend/session-control.h"

#include <map>
#include <mutex>

namespace moecache {

// Contexts that are not closed. Never destroyed: contexts may outlive static objects.
static std::mutex & controls_mutex() {
    static auto * mutex = new std::mutex;
    return *mutex;
}

static std::map<uint64_t, std::shared_ptr<session_control>> & controls() {
    static auto * map = new std::map<uint64_t, std::shared_ptr<session_control>>;
    return *map;
}

session_control::session_control(const std::shared_ptr<context_status> & status, const config & settings) :
    status(status), capacity(settings.capacity) {
    policy_spec spec;
    if (policy_spec::parse(settings.policy, spec).empty()) {
        policy = spec.canonical();
    }
}

std::shared_ptr<session_control> session_control::create(const std::shared_ptr<context_status> & status,
                                                         const config &                          settings) {
    std::shared_ptr<session_control> made(new session_control(status, settings));
    std::lock_guard<std::mutex>      lock(controls_mutex());
    controls()[status->context_id()] = made;
    return made;
}

std::shared_ptr<session_control> session_control::find(uint64_t context_id) {
    std::lock_guard<std::mutex> lock(controls_mutex());
    const auto                  found = controls().find(context_id);
    return found != controls().end() ? found->second : nullptr;
}

// --- the context's own threads --------------------------------------------------------------------------------------

std::string session_control::cache_made(expert_cache * made, const std::string & state_in) {
    cache = made;
    cache->freeze(status->counters.frozen);
    std::string error;
    if (waiting != nullptr) {
        error = cache->import_session(*waiting);
    } else if (!state_in.empty() && !begin_new) {
        saved_session saved;
        error = saved_session_read(state_in, saved);
        if (error.empty()) {
            error = cache->import_session(saved);
            error = error.empty() ? "" : state_in + ": " + error;
        }
    }
    waiting.reset();
    cache->finish_copies();
    return error;
}

void session_control::no_cache(const std::string & why) {
    why_none = why;
    waiting.reset();
}

void session_control::close() {
    {
        std::lock_guard<std::mutex> lock(controls_mutex());
        controls().erase(status->context_id());
    }
    const graph_gate::visit visit(gate); // whoever is at work with the cache finishes
    cache  = nullptr;
    closed = true;
}

// --- any thread -----------------------------------------------------------------------------------------------------

template <class Work>
std::string session_control::between_graphs(Work work) {
    if (gate.inside()) {
        return "context " + std::to_string(status->context_id()) +
               " is computing in this thread: a session is changed between two graphs, not from a callback of one";
    }
    const graph_gate::visit visit(gate);
    if (closed) {
        return "context " + std::to_string(status->context_id()) + " is closed";
    }
    return work();
}

std::string session_control::refusal() const {
    const std::string who = "context " + std::to_string(status->context_id());
    if (!capacity.partial()) {
        return who + " has no cache: its capacity is " + capacity.text +
               ", and only a capacity between 0 and all has a session";
    }
    return why_none.empty() ? "" : who + " has no cache: " + why_none;
}

std::string session_control::reset() {
    return between_graphs([this] {
        const std::string none = refusal();
        if (!none.empty() || cache != nullptr) {
            return none.empty() ? cache->reset_session() : none;
        }
        waiting.reset();
        begin_new = true;
        return std::string();
    });
}

std::string session_control::freeze(bool on) {
    return between_graphs([this, on] {
        const std::string none = refusal();
        if (none.empty()) {
            status->counters.frozen = on;
        }
        if (cache != nullptr) {
            cache->freeze(on);
        }
        return none;
    });
}

std::string session_control::export_session(saved_session & out) {
    return between_graphs([this, &out] {
        const std::string none = refusal();
        if (!none.empty()) {
            return none;
        }
        if (cache == nullptr) {
            return "context " + std::to_string(status->context_id()) +
                   " has nothing to export yet: its cache is made when the first graph is computed";
        }
        out = cache->export_session();
        return std::string();
    });
}

std::string session_control::import_session(saved_session && saved) {
    return between_graphs([this, &saved] {
        const std::string none = refusal();
        if (!none.empty() || cache != nullptr) {
            return none.empty() ? cache->import_session(saved) : none;
        }
        if (saved.state.policy != policy) { // the rest is known when the cache is made
            return "the session state is of policy " + saved.state.policy + ", this cache's is " + policy;
        }
        waiting = std::make_unique<saved_session>(std::move(saved));
        return std::string();
    });
}

} // namespace moecache
