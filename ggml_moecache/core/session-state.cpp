#include "core/session-state.h"

namespace moecache {

void session_state::put(const std::string & name, std::vector<int64_t> values) {
    entries.emplace_back(name, std::move(values));
}

std::string session_state::get(const std::string & name, std::vector<int64_t> & values, size_t size, int64_t least,
                               int64_t most) const {
    for (const auto & entry : entries) {
        if (entry.first != name) {
            continue;
        }
        if (size != SIZE_MAX && entry.second.size() != size) {
            return "the session state's array " + name + " must have " + std::to_string(size) + " entries. Got " +
                   std::to_string(entry.second.size()) + " instead.";
        }
        for (const int64_t value : entry.second) {
            if (value < least || value > most) {
                return "the session state's array " + name + " must be in [" + std::to_string(least) + ", " +
                       std::to_string(most) + "]. Got " + std::to_string(value) + " instead.";
            }
        }
        values = entry.second;
        return "";
    }
    return "the session state has no array " + name;
}

int64_t session_state::most_token() const {
    int64_t next = most_count;
    return get("next_token", next).empty() ? next : most_count;
}

std::string session_state::get(const std::string & name, int64_t & value, int64_t least, int64_t most) const {
    std::vector<int64_t> values;
    const std::string    error = get(name, values, 1, least, most);
    if (error.empty()) {
        value = values[0];
    }
    return error;
}

void session_clock::save(session_state & state) const {
    state.put("next_event", { events });
    state.put("next_access", { accesses });
    state.put("next_token", { tokens });
    state.put("next_request", { requests });
}

std::string session_clock::load(const session_state & state) {
    std::string error = state.get("next_event", events);
    error             = error.empty() ? state.get("next_access", accesses) : error;
    error             = error.empty() ? state.get("next_token", tokens) : error;
    return error.empty() ? state.get("next_request", requests) : error;
}

} // namespace moecache
