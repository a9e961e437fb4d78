#include "backend/fallbacks.h"

#include "core/requirement.h"

#include <cstdio>
#include <utility>

namespace moecache {

void complain(const std::string & text) {
    std::fprintf(stderr, "moecache: %s\n", text.c_str());
}

static std::string text_of(reason why, const std::string & detail) {
    return std::string(reason_name(why)) + ": " + detail + (detail.empty() ? "" : " - ") + reason_text(why);
}

// MOECACHE_REQUIRE=1 was not met: the computation fails, and as not every program cares, so does the process. There
// will be no status line: the status and the exit line tell of it.
static void fail(backend_context * context, reason why, const std::string & detail, bool first) {
    if (first) {
        complain("MOECACHE_REQUIRE=1: " + text_of(why, detail));
    }
    requirement_missed();
    context->announced = true;
    if (!std::exchange(context->failed, true)) { // the first reason is why nothing is computed any more
        context_facts facts = context->status->facts();
        facts.state         = context_state::inactive;
        facts.why           = why;
        facts.detail        = detail;
        context->status->update(facts);
    }
    write_status_file(context);
}

bool fall_back(backend_context * context, reason why, const std::string & detail) {
    const bool first = context->status->add_fallback(why);
    if (context->settings.require) {
        fail(context, why, detail, first);
        return false;
    }
    if (first) {
        complain(text_of(why, detail));
    }
    return true;
}

void write_status_file(backend_context * context) {
    if (context->settings.status_file.empty() || context->file_failed) {
        return;
    }
    const std::string error = status_write(context->settings.status_file);
    if (!error.empty()) {
        context->file_failed = true;
        fall_back(context, reason::status_file, error);
    }
}

void announce(backend_context * context, const context_facts & facts) {
    context->announced = true;
    context->status->update(facts);
    // llama.cpp's programs hide INFO of backends by default
    GGML_LOG_WARN("%s\n", context->status->status_line().c_str());
    write_status_file(context);
}

bool give_up(backend_context * context, context_facts facts, reason why, const std::string & detail) {
    const bool first = context->status->add_fallback(why);
    facts.state      = context_state::inactive;
    facts.why        = why;
    facts.detail     = detail;
    context->status->update(facts);
    if (context->settings.require) {
        fail(context, why, detail, first);
        return false;
    }
    context->announced = true;
    complain("inactive: " + text_of(why, detail));
    write_status_file(context);
    return true;
}

} // namespace moecache
