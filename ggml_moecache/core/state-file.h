// A session's state with the cache it belongs to, as JSON: what runtime and simulator export and import.
//
//     {"format":{"name":"ggml_moecache session state","version":1},
//      "model":"91b1f1a1c0ffee00", "policy":"lru", "per_layer":false, "slots":[256],
//      "columns":[{"layer_id":0,"family":"exps","n_experts":128,"expert_bytes":13824}, ...],
//      "arrays":{"content":[...], "next_event":[1600], ...}}
//
// `slots` has one number per budget. Items in `content` are numbered column by column (core/cache-geometry.h).
// `model` is the fingerprint of the experts (run.json has it too), left out where it is not known; `expert_bytes` 0:
// not known. Readers skip members that they do not know.
#pragma once

#include "core/cache-geometry.h"
#include "core/session-state.h"

#include <string>
#include <vector>

namespace moecache {

struct saved_session {
    session_state            state;
    std::string              model; // fingerprint, "": not known
    bool                     per_layer = false;
    std::vector<uint32_t>    slots;
    std::vector<column_info> columns;
};

std::string saved_session_text(const saved_session & saved);

// Both return "" or why the text or file holds no state. A file is named by the message.
std::string saved_session_parse(const std::string & text, saved_session & out);
std::string saved_session_read(const std::string & path, saved_session & out);

// "" or why the state does not belong to this cache: another policy, other layers or experts, another model, another
// capacity. `policy`: canonical; `model`: fingerprint. A fingerprint or bytes of an expert that one side does not know
// are not compared.
std::string saved_session_misfit(const saved_session & saved, const cache_geometry & geometry, bool per_layer,
                                 const std::string & policy, const std::string & model);

} // namespace moecache
