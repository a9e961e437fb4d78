// Reason codes: why the cache, or a part of it, does not do what was asked. Every refusal and every fallback names one
// of these in its log line and in the status; the documentation (backend/REASONS.md) is generated from this table and
// compared in the tests.
#pragma once

#include <cstddef>

namespace moecache {

enum class reason {
    none,
    no_gpu,
    unsupported_gpu,
    ggml_version,
    bad_config,
    no_expert_tensors,
    experts_elsewhere,
    no_room,
    unsupported_type,
    partial_block,
    unknown_block,
    not_pinned,
    partly_pinned,
    host_backend,
    status_file,
    never_used,
    log_file,
    fewer_slots,
    no_cache,
    whole_block,
    state_in,
    state_out,
    log_full,
};

struct reason_info {
    reason       code;
    const char * name; // as in the log line and in the status JSON
    const char * text; // what it means and what to do about it
};

// All reasons in declaration order, `none` first. The table lives as long as the program.
const reason_info * reason_table(size_t & n_reasons);

const char * reason_name(reason code);
const char * reason_text(reason code);

} // namespace moecache
