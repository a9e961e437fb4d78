// The C API of libggml-moecache.so. Everything a stock program needs is done by GGML's loader (GGML_BACKEND_PATH) and
// by the environment variables that `moecache config` lists; this header is for programs that want to change settings
// from inside the process or read the status. It is stable: functions are added, never changed.
//
// Start with moecache_status_json(): it says what is cached where, or why nothing is.
//
// Threads: every function may be called from any thread. No function throws; strings that are returned live as long as
// the library, unless said otherwise.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOECACHE_API __attribute__((visibility("default")))

// Version of this library, such as "0.1.0", and the version of ggml whose tables it was compiled for, such as "0.25.3".
MOECACHE_API const char * moecache_version(void);
MOECACHE_API const char * moecache_ggml_version(void);

// Set a variable of `moecache config` (such as "GGML_MOECACHE_CAPACITY") for this process; it wins over the
// environment. `value` NULL takes the setting back. A llama context reads its settings once, when it is created.
// Returns NULL on success, else a message that names the variable and the rule (valid until this thread's next call).
MOECACHE_API const char * moecache_config_set(const char * name, const char * value);

// The value in force for a variable: the setting of this process, else the environment's, else the default ("" when
// there is none). Returns NULL for a name that is no variable of this library. Valid until this thread's next call.
MOECACHE_API const char * moecache_config_get(const char * name);

// Write the state of every llama context of this process as one JSON object, as GGML_MOECACHE_STATUS=FILE does. Each of
// "contexts" has its own "reason"; the one beside them is the process's: the library refused to be used, or never was.
// Writes at most `size` bytes including the terminating NUL; returns the bytes needed including it. `buffer` may be
// NULL when `size` is 0.
MOECACHE_API size_t moecache_status_json(char * buffer, size_t size);

// --- sessions ------------------------------------------------------------------------------------------------------
//
// A session is what the cache of one llama context has learnt: its policy's counters, and which experts have slots. It
// exists at capacities between 0 and all. Contexts are named by the "context_id" of the status.
//
// A session is touched between two graphs, never in the middle of one: a call waits for the end of the graph that the
// context is computing, if any, and the context's next graph waits for the end of the call. While no call is made a
// graph pays two atomic stores for this. Not from a callback of the context's own computation (llama.cpp's abort
// callback): that is refused.
//
// The cache is made at the first graph that is no warm-up. Before it there is nothing to export; reset, freeze and
// import then wait for it, and an imported state that turns out not to fit is the fallback "state_in" of the status.
//
// All return NULL or a message: there is no such context, it is closed, it has no cache, or what is said below. After
// a message nothing has changed.

// Begin anew: counters and residency are those of a new context. The counts of the status go on.
MOECACHE_API const char * moecache_session_reset(uint64_t context_id);

// on 1: nothing is admitted any more and nothing counted, the session stands still while hits go on (copies under way
// still arrive); 0: it goes on as if what came meanwhile had not been. "frozen" of the status.
MOECACHE_API const char * moecache_session_freeze(uint64_t context_id, int on);

// The session as JSON (core/state-file.h), which `moecache simulate --state-out` writes too; the session goes on.
// To memory: at most `size` bytes including the terminating NUL; `*needed` is set to the bytes needed including it, 0
// after a message; `buffer` may be NULL when `size` is 0. To a file: replaced as a whole; a message if it cannot be
// written.
MOECACHE_API const char * moecache_session_export(uint64_t context_id, char * buffer, size_t size, size_t * needed);
MOECACHE_API const char * moecache_session_export_file(uint64_t context_id, const char * path);

// Go on where a state was exported: the decisions are those of the session that it is from. Experts that are not in
// their slots yet are copied and become visible when their copies are complete. A message if the text or file holds no
// state, or one of another policy, model (layers, families, experts, bytes of an expert), division of slots, or number
// of slots: a state holds for one capacity.
MOECACHE_API const char * moecache_session_import(uint64_t context_id, const char * json);
MOECACHE_API const char * moecache_session_import_file(uint64_t context_id, const char * path);

// --- routing log ---------------------------------------------------------------------------------------------------
//
// A context that was created while GGML_MOECACHE_LOG_LIVE was 1 keeps its routing events in a ring for one consumer of
// this process. Contexts are named by the "context_id" of the status.

typedef struct moecache_ring moecache_ring;

// The fixed part of an event (traces/FORMAT.md); behind it lie k_max expert ids (int32_t) and k_max router weights
// (float).
typedef struct moecache_event {
    uint64_t batch_id;
    uint64_t request_id;
    int32_t  token_index;
    int32_t  layer_id;
    uint8_t  family;      // 0 "exps", 1 "chexps"
    uint8_t  phase;       // 0 prefill, 1 decode
    uint16_t n_used;      // valid ids and weights
    uint8_t  has_weights; // 0: the graph shows no router weights
    uint8_t  reserved[3];
    uint32_t lost_before; // events that were lost between the previous event and this one
    uint32_t reserved_2;
    uint64_t lost_batch_id; // ubatch of the first of them
} moecache_event;

typedef struct moecache_ring_info {
    uint64_t stride_bytes; // from one event to the next
    uint64_t k_max;
    uint64_t n_slots;
    uint64_t n_committed; // events put into the ring so far
    uint64_t n_lost;      // events lost because it was full
} moecache_ring_info;

// Become the consumer of a context's events; there is one at a time. The ring is made at the first graph with an MoE
// block: until then there are no events, and the fields of its info are 0. The handle, and what is in the ring, stay
// valid after the context is gone. Returns NULL or a message: there is no such context, it is closed, it was created
// without GGML_MOECACHE_LOG_LIVE=1, it has a consumer already; `*ring` is then NULL.
MOECACHE_API const char * moecache_ring_open(uint64_t context_id, moecache_ring ** ring);

// Stop being the consumer: from now on another may open the context's ring, and this handle has no events to give.
// Memory that was peeked stays readable until the handle is closed. Close every handle.
MOECACHE_API void moecache_ring_detach(moecache_ring * ring);
MOECACHE_API void moecache_ring_close(moecache_ring * ring);
MOECACHE_API void moecache_ring_get_info(const moecache_ring * ring, moecache_ring_info * info);

// Events that can be read where they lie: `*events` is set to the first, their number is returned. They stay valid
// until they are released.
MOECACHE_API size_t moecache_ring_peek(const moecache_ring * ring, const void ** events);
MOECACHE_API void   moecache_ring_release(moecache_ring * ring, size_t n_events);

// Request id of the tokens of a context's next ubatches, below 2^63 (it must fit a signed integer of 64 bits);
// UINT64_MAX: told by positions again, under ids above the highest id below 2^62 that was set. NULL or a message.
MOECACHE_API const char * moecache_set_request_id(uint64_t context_id, uint64_t request_id);

// run.json as it would be written now, like moecache_status_json(); and fields of it that only the program knows
// ("model.file", "seed", ...), to a JSON value. NULL or a message.
MOECACHE_API size_t       moecache_run_json(char * buffer, size_t size);
MOECACHE_API const char * moecache_run_set(const char * field, const char * json);

#ifdef __cplusplus
}
#endif
