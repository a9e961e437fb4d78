// What a context says of itself: its status line and file, and every fallback.
#pragma once

#include "backend/graph-compute.h"
#include "core/reasons.h"

#include <string>

namespace moecache {

// The status line, once per context, and the status file.
void announce(backend_context * context, const context_facts & facts);

// Nothing when none was asked for; an error is said once.
void write_status_file(backend_context * context);

// One line on stderr and not in the program's log, which llama-bench and llama-cli keep quiet, and whose errors
// llama-cpp-python hides without `verbose`: for what is not as asked for. Also where GGML's logger is gone, at exit.
void complain(const std::string & text);

// A fallback is said once per context, and is an error under MOECACHE_REQUIRE=1. `detail`: figures and names that
// belong to the reason, "" = none. Returns false when the computation must end.
bool fall_back(backend_context * context, reason why, const std::string & detail);

// There is no cache and will be none, for a reason that is no choice of the user's: a fallback whose line is the status
// line. Returns false when the computation must end.
bool give_up(backend_context * context, context_facts facts, reason why, const std::string & detail);

} // namespace moecache
