// The backend (stream) of a MoECache device: one per llama context and device. It forwards everything to a backend of
// the inner device but graph_compute, which runs MoE blocks by moe-op.h.
#pragma once

#include "backend/device.h"

namespace moecache {

// Returns nullptr, after a line that says why, when a setting is wrong or the inner device fails.
ggml_backend_t backend_create(ggml_backend_dev_t dev, const char * params);

bool backend_is_ours(ggml_backend_t backend);

// What the registry exports for llama.cpp (get_proc_address). REQUIRES: backend_is_ours(backend).
void backend_set_n_threads(ggml_backend_t backend, int n_threads);
void backend_set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void * data);

} // namespace moecache
