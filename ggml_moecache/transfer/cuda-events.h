// What GGML's interface does not offer of CUDA. Without CUDA (MOECACHE_CUDA=OFF) nothing is known.
#pragma once

#include <string>

namespace moecache {

bool cuda_events_known();

// Whether the work before `event`, the context of a ggml_backend_event of the CUDA backend (a cudaEvent_t), is done.
// Any thread; does not wait. REQUIRES: cuda_events_known().
bool cuda_event_ready(void * event);

// Makes `event`, a context as above, one with a timestamp, on the device with this PCI bus id (as
// ggml_backend_dev_props has it; nullptr: not known). It must not have been recorded yet. Returns false where that
// cannot be; then it is as before.
bool cuda_event_keep_time(void *& event, const char * bus_id);

// ns from event `from` to event `to`, negative if `to` came first. Both keep time and belong to one device. Returns
// false when one of them was not recorded or is not done.
bool cuda_event_elapsed(void * from, void * to, double & ns);

// Versions such as "13.0"; "" when CUDA does not say.
void cuda_versions(std::string & runtime, std::string & driver);

} // namespace moecache
