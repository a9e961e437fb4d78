// The one place that includes GGML's internal headers. They come from the llama.cpp this library is built against
// (CMakeLists.txt) and are never copied; the sizes below are those of the tables that backend/ fills slot by slot, in
// declared order, so a ggml with other tables does not compile silently.
#pragma once

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-impl.h"
#include "ggml.h"

static_assert(GGML_BACKEND_API_VERSION == 2, "another version of GGML's backend interface");
static_assert(sizeof(ggml_backend_buffer_type_i) == 6 * sizeof(void *), "the buffer type table has other slots");
static_assert(sizeof(ggml_backend_buffer_i) == 11 * sizeof(void *), "the buffer table has other slots");
static_assert(sizeof(ggml_backend_i) == 16 * sizeof(void *), "the backend table has other slots");
static_assert(sizeof(ggml_backend_device_i) == 15 * sizeof(void *), "the device table has other slots");
static_assert(sizeof(ggml_backend_reg_i) == 4 * sizeof(void *), "the registry table has other slots");

namespace moecache {

// The buffer that a tensor's data lies in: a view's is that of its source.
inline ggml_backend_buffer_t buffer_of(const ggml_tensor * tensor) {
    return tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
}

// Operations that only rename memory. GGML has the same list, in a place that is not exported.
inline bool is_view_op(enum ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_RESHAPE || op == GGML_OP_VIEW || op == GGML_OP_PERMUTE ||
           op == GGML_OP_TRANSPOSE;
}

} // namespace moecache
