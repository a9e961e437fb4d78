#include "backend/session-control.h"
#include "core/config.h"
#include "core/file.h"
#include "core/live-ring.h"
#include "core/request-tracker.h"
#include "core/run-metadata.h"
#include "core/status.h"
#include "ggml-moecache.h"

#include <algorithm>
#include <cstring>
#include <utility>

using namespace moecache;

const char * moecache_version(void) {
    return MOECACHE_VERSION;
}

const char * moecache_ggml_version(void) {
    return MOECACHE_GGML_VERSION;
}

const char * moecache_config_set(const char * name, const char * value) {
    static thread_local std::string error;
    error = config_set(name, value);
    return error.empty() ? nullptr : error.c_str();
}

const char * moecache_config_get(const char * name) {
    static thread_local std::string value;
    size_t                          n     = 0;
    const variable_info *           table = variable_table(n);
    const bool known = name != nullptr && std::any_of(table, table + n, [name](const variable_info & info) {
                           return std::strcmp(info.name, name) == 0;
                       });
    if (!known) {
        return nullptr;
    }
    value = config_get(name);
    return value.c_str();
}

static size_t copy_text(const std::string & text, char * buffer, size_t size) {
    if (buffer != nullptr && size > 0) {
        const size_t n = std::min(size - 1, text.size());
        std::memcpy(buffer, text.data(), n);
        buffer[n] = '\0';
    }
    return text.size() + 1;
}

size_t moecache_status_json(char * buffer, size_t size) {
    return copy_text(status_json(), buffer, size);
}

size_t moecache_run_json(char * buffer, size_t size) {
    return copy_text(run_metadata_json(), buffer, size);
}

static const char * message(const std::string & text) {
    static thread_local std::string kept;
    kept = text;
    return kept.empty() ? nullptr : kept.c_str();
}

const char * moecache_run_set(const char * field, const char * json) {
    return message(run_metadata_set_field(field != nullptr ? field : "", json != nullptr ? json : "null"));
}

static std::string no_context(uint64_t context_id, bool closed) {
    return closed ? "context " + std::to_string(context_id) + " is closed" :
                    "there is no context " + std::to_string(context_id) + ", or no longer";
}

const char * moecache_set_request_id(uint64_t context_id, uint64_t request_id) {
    const auto context = context_status::find(context_id);
    if (context == nullptr || context->is_closed()) {
        return message(no_context(context_id, context != nullptr));
    }
    if (request_id > request_tracker::max_id && request_id != request_tracker::automatic) {
        return message("a request id must be at most " + std::to_string(request_tracker::max_id) + ". Got " +
                       std::to_string(request_id) + " instead.");
    }
    context->request_id = request_id;
    return nullptr;
}

// --- sessions -------------------------------------------------------------------------------------------------------

// Runs `work` on the control of an open context. `text`: its argument, which must not be NULL.
template <class Work>
static const char * with_session(uint64_t context_id, const char * text, Work work) {
    if (text == nullptr) {
        return message("a session state or the path of its file must be given. Got NULL instead.");
    }
    const auto control = session_control::find(context_id);
    if (control == nullptr) {
        return message(no_context(context_id, context_status::find(context_id) != nullptr));
    }
    return message(work(*control));
}

const char * moecache_session_reset(uint64_t context_id) {
    return with_session(context_id, "", [](session_control & control) { return control.reset(); });
}

const char * moecache_session_freeze(uint64_t context_id, int on) {
    return with_session(context_id, "", [on](session_control & control) { return control.freeze(on != 0); });
}

const char * moecache_session_export(uint64_t context_id, char * buffer, size_t size, size_t * needed) {
    *needed = 0;
    return with_session(context_id, "", [&](session_control & control) {
        saved_session     saved;
        const std::string error = control.export_session(saved);
        if (error.empty()) {
            *needed = copy_text(saved_session_text(saved), buffer, size);
        }
        return error;
    });
}

const char * moecache_session_export_file(uint64_t context_id, const char * path) {
    return with_session(context_id, path, [path](session_control & control) {
        saved_session     saved;
        const std::string error = control.export_session(saved);
        return error.empty() ? file_replace(path, saved_session_text(saved) + "\n") : error;
    });
}

const char * moecache_session_import(uint64_t context_id, const char * json) {
    return with_session(context_id, json, [json](session_control & control) {
        saved_session     saved;
        const std::string error = saved_session_parse(json, saved);
        return error.empty() ? control.import_session(std::move(saved)) : "the session state cannot be read: " + error;
    });
}

const char * moecache_session_import_file(uint64_t context_id, const char * path) {
    return with_session(context_id, path, [path](session_control & control) {
        saved_session saved;
        std::string   error = saved_session_read(path, saved);
        if (!error.empty()) {
            return error;
        }
        error = control.import_session(std::move(saved));
        return error.empty() ? error : std::string(path) + ": " + error;
    });
}

// --- rings ----------------------------------------------------------------------------------------------------------

static_assert(sizeof(moecache_event) == sizeof(routing_event), "the C API and the ring have one layout");

struct moecache_ring {
    std::shared_ptr<live_channel> channel;
    bool                          is_consumer;
};

const char * moecache_ring_open(uint64_t context_id, moecache_ring ** ring) {
    *ring              = nullptr;
    const auto context = context_status::find(context_id);
    if (context == nullptr || context->is_closed()) {
        return message(no_context(context_id, context != nullptr));
    }
    auto channel = live_channel_find(context_id);
    if (channel == nullptr) {
        return message("context " + std::to_string(context_id) +
                       " does not log live: GGML_MOECACHE_LOG_LIVE (live_log in Python) was 0 when it was created");
    }
    if (!channel->take()) {
        return message("the ring of context " + std::to_string(context_id) +
                       " has a consumer already; close that one first");
    }
    *ring = new moecache_ring { std::move(channel), true };
    return nullptr;
}

void moecache_ring_detach(moecache_ring * ring) {
    if (ring->is_consumer) {
        ring->is_consumer = false;
        ring->channel->leave();
    }
}

void moecache_ring_close(moecache_ring * ring) {
    if (ring != nullptr) {
        moecache_ring_detach(ring);
        delete ring;
    }
}

void moecache_ring_get_info(const moecache_ring * ring, moecache_ring_info * info) {
    const auto events = ring->channel->ring();
    *info             = {};
    if (events != nullptr) {
        *info = { events->stride_bytes(), events->k_max(), events->n_slots(), events->n_committed(), events->n_lost() };
    }
}

size_t moecache_ring_peek(const moecache_ring * ring, const void ** events) {
    const routing_event * first = nullptr;
    const auto            held  = ring->is_consumer ? ring->channel->ring() : nullptr;
    const size_t          n     = held != nullptr ? held->peek(&first) : 0;
    *events                     = first;
    return n;
}

void moecache_ring_release(moecache_ring * ring, size_t n_events) {
    const auto held = ring->is_consumer ? ring->channel->ring() : nullptr;
    if (held != nullptr) {
        held->release(n_events);
    }
}
