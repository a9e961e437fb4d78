// The CPU side of a context: a CPU backend of GGML with a thread pool of its own, for the experts that are not on the
// device. Made at the first use (--fit's dummy contexts never get there). One thread at a time, the one that runs
// graph_compute.
#pragma once

#include "backend/ggml-internal.h"

namespace moecache {

class host_compute {
public:
    host_compute() = default;
    ~host_compute();
    host_compute(const host_compute &)             = delete;
    host_compute & operator=(const host_compute &) = delete;

    void set_n_threads(int n_threads);
    void set_abort_callback(ggml_abort_callback callback, void * data);

    // Compute the nodes of `graph`, whose tensors are all in host memory. Returns GGML_STATUS_FAILED when the CPU
    // backend could not be started, else its status.
    enum ggml_status compute(ggml_cgraph * graph);

    bool is_broken() const { return broken; } // the CPU backend could not be started

private:
    bool broken = false;

    bool   start();
    void   apply_n_threads();
    void * cpu_function(const char * name) const;
    void   free_threadpool();

    ggml_backend_t    backend    = nullptr;
    ggml_threadpool * threadpool = nullptr; // kept between calls: without one GGML may start threads for every graph
    void (*free_fn)(ggml_threadpool *) = nullptr; // of the pool: at exit GGML's registry may be gone
    int                 pool_size      = 0;
    int                 n_threads      = 0; // 0 = GGML's default
    ggml_abort_callback callback       = nullptr;
    void *              data           = nullptr;
};

} // namespace moecache
