// The device MoECache<i>: a proxy of one GPU ("inner"), or of the CPU as a stand-in, that offers one more buffer type,
// the store of the experts, and claims the MoE operations on it. Everything else is the inner device's.
//
// Devices are made once, by the registry, and live as long as the process. Any thread may call the device.
#pragma once

#include "backend/ggml-internal.h"
#include "backend/reservation.h"

#include <atomic>
#include <cstdint>
#include <string>

namespace moecache {

struct device_context {
    ggml_backend_dev_t inner = nullptr;
    std::string        name;        // "MoECache0"
    std::string        description; // "expert cache over ..."
    std::string        store_name;  // "MoECache0_Host"
    bool               standin = false;

    ggml_backend_buffer_type   default_type   = {}; // wrapper of the inner device's default type
    ggml_backend_buffer_type   store_type     = {}; // host memory of the experts
    ggml_backend_buffer_type_t extra_types[2] = { nullptr, nullptr };

    std::atomic<uint64_t> store_bytes { 0 }; // canonical copies of experts, all models
    std::atomic<uint64_t> store_pinned_bytes { 0 };
    std::atomic<uint64_t> resident_bytes { 0 };     // device copies of experts, all contexts
    std::atomic<uint64_t> standin_used_bytes { 0 }; // default-type buffers of the stand-in, which cannot ask a driver

    // Free memory of the inner device when the cap (GGML_MOECACHE_DEVICE_MIB) was first looked at: the cap counts what
    // this process and others took since then. 0 = not looked at yet.
    std::atomic<uint64_t> uncapped_free_bytes { 0 };

    expert_reservation reservation; // what copies of experts will take before they exist

    std::atomic<void (*)(ggml_backend_buffer_t)> standin_free { nullptr }; // the CPU buffer's own free function
};

// A new device over `inner`, number `index`, of registry `reg`.
ggml_backend_dev_t device_create(ggml_backend_reg_t reg, ggml_backend_dev_t inner, int index, bool standin);

device_context * device_get(ggml_backend_dev_t device);
bool             device_is_ours(ggml_backend_dev_t device);

// Bytes that may still be allocated on the device under the cap; SIZE_MAX without one.
uint64_t device_allowance_bytes(device_context * device);

} // namespace moecache
