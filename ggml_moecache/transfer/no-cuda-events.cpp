// cuda-events.h in a build without CUDA.
#ifndef MOECACHE_CUDA

#include "transfer/cuda-events.h"

namespace moecache {

bool cuda_events_known() {
    return false;
}

bool cuda_event_ready(void *) {
    return false;
}

bool cuda_event_keep_time(void *&, const char *) {
    return false;
}

bool cuda_event_elapsed(void *, void *, double &) {
    return false;
}

void cuda_versions(std::string & runtime, std::string & driver) {
    runtime.clear();
    driver.clear();
}

} // namespace moecache

#endif
