#include "backend/host-compute.h"

#include "ggml-cpu.h"

namespace moecache {

host_compute::~host_compute() {
    if (backend != nullptr) {
        ggml_backend_free(backend);
    }
    free_threadpool();
}

// The CPU backend's library is loaded by the program, which variant of it is unknown here: its functions are asked for
// by name.
void * host_compute::cpu_function(const char * name) const {
    return ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(ggml_backend_get_device(backend)), name);
}

void host_compute::free_threadpool() {
    if (threadpool != nullptr) {
        free_fn(threadpool);
    }
    threadpool = nullptr;
    pool_size  = 0;
}

bool host_compute::start() {
    if (backend != nullptr) {
        return true;
    }
    backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    if (backend == nullptr) {
        broken = true;
        return false;
    }
    apply_n_threads();
    set_abort_callback(callback, data);
    return true;
}

void host_compute::apply_n_threads() {
    const auto set_n_threads_fn =
        reinterpret_cast<ggml_backend_set_n_threads_t>(cpu_function("ggml_backend_set_n_threads"));
    if (n_threads <= 0 || set_n_threads_fn == nullptr) {
        return;
    }
    const auto new_fn      = reinterpret_cast<decltype(ggml_threadpool_new) *>(cpu_function("ggml_threadpool_new"));
    const auto new_free_fn = reinterpret_cast<decltype(ggml_threadpool_free) *>(cpu_function("ggml_threadpool_free"));
    const auto use_fn =
        reinterpret_cast<decltype(ggml_backend_cpu_set_threadpool) *>(cpu_function("ggml_backend_cpu_set_threadpool"));
    if (n_threads > pool_size && new_fn != nullptr && new_free_fn != nullptr && use_fn != nullptr) {
        use_fn(backend, nullptr);
        free_threadpool();
        free_fn                       = new_free_fn;
        ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
        threadpool                    = new_fn(&params);
        pool_size                     = threadpool != nullptr ? n_threads : 0;
        use_fn(backend, threadpool);
    }
    set_n_threads_fn(backend, n_threads);
}

void host_compute::set_n_threads(int n) {
    if (n == n_threads) {
        return;
    }
    n_threads = n;
    if (backend != nullptr) {
        apply_n_threads();
    }
}

void host_compute::set_abort_callback(ggml_abort_callback new_callback, void * new_data) {
    callback = new_callback;
    data     = new_data;
    if (backend == nullptr) {
        return;
    }
    const auto set_fn =
        reinterpret_cast<ggml_backend_set_abort_callback_t>(cpu_function("ggml_backend_set_abort_callback"));
    if (set_fn != nullptr) {
        set_fn(backend, callback, data);
    }
}

enum ggml_status host_compute::compute(ggml_cgraph * graph) {
    return start() ? ggml_backend_graph_compute(backend, graph) : GGML_STATUS_FAILED;
}

} // namespace moecache
