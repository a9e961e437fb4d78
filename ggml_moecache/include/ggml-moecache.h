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

// Write the state of every llama context of this process as one JSON object, as GGML_MOECACHE_STATUS=FILE does.
// Writes at most `size` bytes including the terminating NUL; returns the bytes needed including it. `buffer` may be
// NULL when `size` is 0.
MOECACHE_API size_t moecache_status_json(char * buffer, size_t size);

#ifdef __cplusplus
}
#endif
