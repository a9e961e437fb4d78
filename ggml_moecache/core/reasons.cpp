#include "core/reasons.h"

namespace moecache {

static const reason_info table[] = {
    { reason::none, "none", "Nothing is wrong." },
    { reason::no_gpu, "no_gpu",
      "No GPU was found when the library was loaded, so no MoECache device is registered. Load it after GGML's CUDA backend; to "
      "try it without a GPU set GGML_MOECACHE_STANDIN=1." },
    { reason::unsupported_gpu, "unsupported_gpu",
      "A GPU was found, but not through GGML's CUDA backend; only that one is supported, so no MoECache device is registered." },
    { reason::ggml_version, "ggml_version",
      "The library was compiled for another version of ggml than the program uses. Build it against that llama.cpp "
      "(-DLLAMA_CPP_DIR=)." },
    { reason::bad_config, "bad_config",
      "A setting has a value that the variable does not take; the line names both. No MoECache device is registered." },
    { reason::no_expert_tensors, "no_expert_tensors",
      "The model has no expert tensors (it is dense): it runs as on the device below, and there is nothing to cache." },
    { reason::experts_elsewhere, "experts_elsewhere",
      "The model's experts were placed elsewhere by the user (--cpu-moe, --n-cpu-moe, --override-tensor, --n-gpu-layers, "
      "--split-mode tensor) and keep stock behaviour there." },
    { reason::no_room, "no_room",
      "The device has not enough free memory after the KV cache and the compute buffers; the experts run on the CPU. Lower the "
      "context size or the capacity." },
    { reason::unsupported_type, "unsupported_type",
      "The device below cannot multiply expert tensors of this type; these experts run on the CPU." },
    { reason::partial_block, "partial_block",
      "An MoE block reaches the device in pieces (an eval callback stops inside it, or some of its weights were placed "
      "elsewhere); the pieces are computed one by one, correctly but slowly." },
    { reason::unknown_block, "unknown_block",
      "An expert tensor is used in a way this version does not know; it is computed operation by operation on the CPU." },
    { reason::not_pinned, "not_pinned",
      "The memory of the experts could not be pinned (the driver or a container limit refused): copies to the GPU are slower." },
    { reason::partly_pinned, "partly_pinned",
      "Only a part of the memory of the experts could be pinned: copies of the rest to the GPU are slower." },
    { reason::host_backend, "host_backend",
      "GGML's CPU backend, which computes the experts that are not on the device, could not be started." },
    { reason::status_file, "status_file", "The file named by GGML_MOECACHE_STATUS could not be written." },
    { reason::never_used, "never_used",
      "The library was loaded, but no model was computed on a MoECache device. Where none was selected: --device MoECache0 "
      "(llama.cpp takes CUDA0 when nothing is said). Where one was: no layer with experts was placed on it (--n-gpu-layers 0, --fit, "
      "GGML_MOECACHE_DEVICE_MIB)." },
    { reason::log_file, "log_file",
      "The routing log could not be opened or written; the model runs on, and events that are not stored are counted as "
      "lost. A log does not go on after an error, also when there is room again." },
    { reason::fewer_slots, "fewer_slots",
      "The device has no room for as many slots as GGML_MOECACHE_CAPACITY asks for: it got as many as fit. Make the context or the "
      "capacity smaller." },
    { reason::no_cache, "no_cache",
      "There is no cache: a setting does not fit the model, or the slots could not be made; every expert is computed by the CPU." },
    { reason::whole_block, "whole_block",
      "An MoE block is computed by the CPU as a whole although some of its experts have slots: an adapter is active on them, or "
      "the block is of a form whose rows cannot be told apart." },
    { reason::state_in, "state_in",
      "The session state that the cache was to start from (GGML_MOECACHE_STATE_IN, or one imported before the first graph) cannot "
      "be used, the line says why: the cache starts cold." },
    { reason::state_out, "state_out",
      "The session state could not be written to the file that GGML_MOECACHE_STATE_OUT names, or there is no cache that has one." },
    { reason::log_full, "log_full",
      "The routing log lost events because its ring was full (GGML_MOECACHE_LOG_FULL=drop). Make the ring larger "
      "(GGML_MOECACHE_LOG_RING_EVENTS), or let the model wait for the writer (GGML_MOECACHE_LOG_FULL=wait)." },
};

const reason_info * reason_table(size_t & n_reasons) {
    n_reasons = sizeof(table) / sizeof(table[0]);
    return table;
}

const char * reason_name(reason code) {
    return table[static_cast<size_t>(code)].name;
}

const char * reason_text(reason code) {
    return table[static_cast<size_t>(code)].text;
}

} // namespace moecache
