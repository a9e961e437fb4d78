// Device memory that copies of experts will take at the first graph, before they exist: llama.cpp asks what is free
// when it chooses context size and layers (--fit, the split over devices), and must leave it.
//
// What is known then are the weights that its loader asked the device about. What the KV cache and the compute buffers
// will need is not. So a capacity that takes what is left (`auto`, or one that does not fit) may keep only a share of
// what is free beside the other weights and a working room: else --fit would drive layers off the device to make room
// for experts.
//
// Any thread may call.
#pragma once

#include "backend/ggml-internal.h"
#include "core/config.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace moecache {

class expert_reservation {
public:
    // For compute buffers and the memory that --fit leaves free (1 GiB).
    static constexpr uint64_t working_room_bytes = uint64_t(2) << 30;

    // The loader asks whether the store takes `weight`, of which a token uses `n_used` experts.
    void ask_expert(const ggml_tensor * weight, uint32_t n_used);

    // The loader asks whether the device takes `weight`, which is no expert's.
    void ask_other(const ggml_tensor * weight);

    // The store takes memory: what was asked about is being loaded.
    void loading();

    // Bytes that the capacity in force still needs of `dev`, where `available_bytes` are free now. `auto`, and a
    // capacity between 0 and `all` that does not fit, get GGML_MOECACHE_EXPERT_SHARE of what is free beside the other
    // weights and the working room, at most what all experts need.
    uint64_t bytes(ggml_backend_dev_t dev, uint64_t available_bytes);

private:
    uint64_t share_bytes(const config & settings, uint64_t available_bytes) const;
    uint64_t slot_bytes(ggml_backend_dev_t dev, uint64_t available_bytes);

    std::mutex                         mutex;
    std::map<std::string, ggml_tensor> weights; // of the last load, by name: shapes, not data
    std::map<std::string, uint64_t>    others;  // bytes of its other weights
    uint32_t                           n_used     = 0;
    int                                last_layer = -1;    // the loader goes up through the layers
    bool                               pending    = false; // they are not in the store yet
};

} // namespace moecache
