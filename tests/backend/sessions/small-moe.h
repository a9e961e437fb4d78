// A small MoE model as GGML graphs, and the same graphs on the plain CPU backend to compare with.
//
// The graphs have the shapes and names of llama.cpp's MoE blocks: blk.<layer>.ffn_<role>_exps.weight, router ids that
// are a strided view of an argsort, weights that multiply the results of `down`. What routes them is an input, so a
// test chooses the experts. On the stand-in device the bits must be those of the CPU backend, whatever is cached.
#pragma once

#include "backend/ggml-internal.h"

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace small_moe {

constexpr int64_t n_embd     = 64;
constexpr int64_t n_ff       = 32;
constexpr int64_t n_expert   = 12;
constexpr int64_t n_used     = 4;
constexpr int     n_layers   = 4;
constexpr int64_t max_tokens = 40; // above the 32 that go through the cache

// The expert weights in a buffer of some type; the same bytes for the same seed. Shared by all sessions, never written
// after it is made.
class weights {
public:
    weights(ggml_backend_buffer_type_t type, uint32_t seed);
    ~weights();
    weights(const weights &)             = delete;
    weights & operator=(const weights &) = delete;

    struct layer {
        ggml_tensor * gate    = nullptr;
        ggml_tensor * up      = nullptr;
        ggml_tensor * gate_up = nullptr; // instead of the two, in every second layer
        ggml_tensor * down    = nullptr;
    };

    std::vector<layer> layers;

    uint64_t checksum() const; // FNV-1a of all bytes

private:
    ggml_context *        ctx    = nullptr;
    ggml_backend_buffer_t buffer = nullptr;
};

// The input of one ubatch.
struct batch {
    int64_t            n_tokens = 0;
    std::vector<float> hidden; // [n_tokens][n_embd]
    std::vector<float> router; // [n_layers][n_tokens][n_expert] logits
};

// Tokens that prefer some experts, others at each `phase`, so that a cache has hits and its content changes.
batch random_batch(std::mt19937 & random, int64_t n_tokens, int phase);

// One context: backends, scheduler, as llama.cpp has them. Used by one thread.
class session {
public:
    // `device` nullptr: the CPU backend alone. One thread computes.
    session(ggml_backend_dev_t device, const weights & experts);
    ~session();
    session(const session &)             = delete;
    session & operator=(const session &) = delete;

    bool ok() const { return sched != nullptr; }

    // The last layer's output [n_tokens][n_embd]; empty when the computation failed.
    std::vector<float> run(const batch & input);

private:
    const weights &             experts;
    std::vector<ggml_backend_t> backends;
    ggml_backend_sched_t        sched = nullptr;
};

} // namespace small_moe
