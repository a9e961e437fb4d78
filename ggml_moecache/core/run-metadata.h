// run.json: what ran, beside the routing logs of a process (traces/run.schema.json).
//
// The library knows the store, the machine and the settings; it is not told the model's file. Who knows more (the
// Python package, `moecache run`) sets further fields. The file is written as a whole whenever a log is opened or
// closed. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace moecache {

// The experts of one layer and family.
struct expert_layout {
    int                                              layer = 0;
    std::string                                      family;
    uint64_t                                         n_experts    = 0;
    uint64_t                                         expert_bytes = 0; // all weights of one expert together
    std::vector<std::pair<std::string, std::string>> types;            // role -> GGML type
};

struct run_context {
    uint64_t                   context_id = 0;
    std::string                folder; // of its log; a folder's run.json tells of the contexts that log there. "": live
    std::string                file;   // name of its log there, "" without a folder
    std::string                device; // "MoECache0"
    std::string                gpu;    // name of the GPU, "" for the stand-in
    std::string                fingerprint; // of the store
    std::string                ggml_commit; // that the loaded ggml was built from
    std::string                capacity;
    std::string                policy; // with parameters; "" = there is no cache
    uint64_t                   n_slots         = 0;
    bool                       per_layer       = false;
    bool                       sync            = false;
    uint64_t                   session_changes = 0; // of the cache, see expert_cache
    uint64_t                   n_layers        = 0; // of the model, as far as the graph shows
    uint64_t                   top_k           = 0;
    std::vector<expert_layout> layouts;
    std::vector<int>           output_row_layers; // layers that saw output rows only
};

// Put or replace the facts of a context. The fields that were set by hand until then are the context's: another model
// may be loaded later.
void run_metadata_set(const run_context & context);

// Set a field by hand: "seed", "model.file", ... to a JSON value. Returns "" or what is wrong with the name.
std::string run_metadata_set_field(const std::string & name, const std::string & json);

// Versions of CUDA, when there is a CUDA device: set once by the backend.
void run_metadata_set_cuda(const std::string & runtime, const std::string & driver);

// run.json of a folder; "": of the folder of the newest context.
std::string run_metadata_json(const std::string & folder = "");

// Write run.json into `folder`. Returns "" or what went wrong.
std::string run_metadata_write(const std::string & folder);

} // namespace moecache
