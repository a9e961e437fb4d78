#include "transfer/cuda-events.h"

#include <cuda_runtime.h>

namespace moecache {

bool cuda_events_known() {
    return true;
}

bool cuda_event_ready(void * event) {
    return cudaEventQuery(static_cast<cudaEvent_t>(event)) != cudaErrorNotReady;
}

void cuda_versions(std::string & runtime, std::string & driver) {
    const auto text = [](int version) {
        return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    };
    int number = 0;
    runtime    = cudaRuntimeGetVersion(&number) == cudaSuccess ? text(number) : "";
    driver     = cudaDriverGetVersion(&number) == cudaSuccess ? text(number) : "";
}

} // namespace moecache
