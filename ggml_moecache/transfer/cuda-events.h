// What GGML's interface does not offer of CUDA. Without CUDA (MOECACHE_CUDA=OFF) nothing is known.
#pragma once

#include <string>

namespace moecache {

bool cuda_events_known();

// Whether the work before `event`, the context of a ggml_backend_event of the CUDA backend (a cudaEvent_t), is done.
// Any thread; does not wait. REQUIRES: cuda_events_known().
bool cuda_event_ready(void * event);

// Versions such as "13.0"; "" when CUDA does not say.
void cuda_versions(std::string & runtime, std::string & driver);

} // namespace moecache
