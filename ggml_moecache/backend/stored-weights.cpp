#include "backend/stored-weights.h"

#include "backend/buffer-type.h"
#include "core/expert-name.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace moecache {

stored_weights find_stored_weights(const ggml_cgraph * graph, const device_context * device) {
    stored_weights weights;
    for (size_t i = 0; i < graph->visited_hash_set.size; i++) {
        const ggml_tensor * tensor =
            ggml_bitset_get(graph->visited_hash_set.used, i) ? graph->visited_hash_set.keys[i] : nullptr;
        expert_name name;
        if (tensor != nullptr && tensor->op == GGML_OP_NONE && in_store(tensor, device) &&
            expert_name_parse(tensor->name, name)) {
            weights[tensor->name] = tensor;
        }
    }
    return weights;
}

static void hash_bytes(uint64_t & hash, const void * data, size_t n) {
    const auto * bytes = static_cast<const unsigned char *>(data);
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
}

static void hash_weight(uint64_t & hash, const ggml_tensor * weight) {
    hash_bytes(hash, weight->name, strlen(weight->name));
    hash_bytes(hash, weight->ne, sizeof(weight->ne));
    const char * type = ggml_type_name(weight->type);
    hash_bytes(hash, type, strlen(type));
    const size_t n_bytes = ggml_nbytes(weight);
    for (size_t at = 0; at + 64 <= n_bytes; at += std::max<size_t>(64, n_bytes / 64)) {
        hash_bytes(hash, static_cast<const char *>(weight->data) + at, 64);
    }
}

std::string fingerprint(const stored_weights & weights) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (const auto & entry : weights) {
        hash_weight(hash, entry.second);
    }
    char text[17];
    snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
    return text;
}

} // namespace moecache
