#include "transfer/cuda-events.h"

#include <cuda_runtime.h>

namespace moecache {

bool cuda_events_known() {
    return true;
}

bool cuda_event_ready(void * event) {
    return cudaEventQuery(static_cast<cudaEvent_t>(event)) != cudaErrorNotReady;
}

bool cuda_event_keep_time(void *& event, const char * bus_id) {
    int  before       = 0;
    int  device       = 0;
    bool known        = bus_id != nullptr && cudaGetDevice(&before) == cudaSuccess;
    known             = known && cudaDeviceGetByPCIBusId(&device, bus_id) == cudaSuccess;
    cudaEvent_t timed = nullptr;
    const bool  made  = known && cudaSetDevice(device) == cudaSuccess && cudaEventCreate(&timed) == cudaSuccess;
    if (known) {
        cudaSetDevice(before);
    }
    if (!made) {
        cudaGetLastError(); // GGML asks for it after its own calls
        return false;
    }
    cudaEventDestroy(static_cast<cudaEvent_t>(event));
    event = timed;
    return true;
}

bool cuda_event_elapsed(void * from, void * to, double & ns) {
    float ms = 0;
    if (cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(from), static_cast<cudaEvent_t>(to)) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    ns = static_cast<double>(ms) * 1e6;
    return true;
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
