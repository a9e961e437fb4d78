// What other threads do to the session of a context: the C API's functions meet the context's cache here, between two
// graphs (core/graph-gate.h). One per backend, known by the context's id; it outlives the backend for those who hold
// it.
//
// Before the first graph there is no cache: what is imported then waits for it, with freeze and reset.
#pragma once

#include "backend/expert-cache.h"
#include "core/config.h"
#include "core/graph-gate.h"
#include "core/state-file.h"
#include "core/status.h"

#include <cstdint>
#include <memory>
#include <string>

namespace moecache {

class session_control {
public:
    static std::shared_ptr<session_control> create(const std::shared_ptr<context_status> & status,
                                                   const config &                          settings);
    static std::shared_ptr<session_control> find(uint64_t context_id); // nullptr: closed, or there never was one

    graph_gate gate;

    // --- the thread of the graph, in the middle of one ---

    // The cache was made: gives it the state that was imported before, else that of the file `state_in` ("": none).
    // Returns "" or why that state is not used; the cache is then new.
    std::string cache_made(expert_cache * made, const std::string & state_in);
    void        no_cache(const std::string & why);

    // --- the thread that frees the context ---
    void close();

    // --- any thread; all return "" or why not ---
    std::string reset();
    std::string freeze(bool on);
    std::string export_session(saved_session & out);
    std::string import_session(saved_session && saved);

private:
    session_control(const std::shared_ptr<context_status> & status, const config & settings);

    template <class Work>
    std::string between_graphs(Work work);
    std::string refusal() const; // why there is no cache and never will be

    std::shared_ptr<context_status> status;
    capacity_setting                capacity;
    std::string                     policy; // canonical

    // What follows belongs to the thread of the graph or to the visitor of the gate.
    expert_cache *                 cache = nullptr;
    std::string                    why_none;
    std::unique_ptr<saved_session> waiting;           // imported before there is a cache
    bool                           begin_new = false; // reset before there is a cache: no file is read
    bool                           closed    = false;
};

} // namespace moecache
