// The registry: GGML loads this library (GGML_BACKEND_PATH, ggml_backend_load) and finds its entry points here.
//
// ggml_backend_score answers 0, after one line that says why, when the library must not be used: GGML then goes on
// without it. ggml_backend_init makes the registry with one device per GPU, once; GGML enumerates a registry's devices
// once, so before there is a GPU (the library was loaded first) there is no registry either, and loading may be tried
// again.

#include "backend/backend.h"
#include "backend/device.h"
#include "backend/fallbacks.h"
#include "core/config.h"
#include "core/reasons.h"
#include "core/requirement.h"
#include "core/status.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using namespace moecache;

static std::mutex reg_mutex;

// Fixed once the registry is handed out. Never destroyed: GGML's registry, which may go later, points to the devices.
static std::vector<ggml_backend_dev_t> & devices = *new std::vector<ggml_backend_dev_t>;

static const char * reg_get_name(ggml_backend_reg_t) {
    return "MoECache";
}

static size_t reg_get_device_count(ggml_backend_reg_t) {
    return devices.size();
}

static ggml_backend_dev_t reg_get_device(ggml_backend_reg_t, size_t index) {
    GGML_ASSERT(index < devices.size());
    return devices[index];
}

static ggml_backend_buffer_type_t * get_extra_bufts(ggml_backend_dev_t dev) {
    return device_is_ours(dev) ? device_get(dev)->extra_types : nullptr;
}

static ggml_backend_feature * get_features(ggml_backend_reg_t) {
    static ggml_backend_feature features[] = {
        { "MOECACHE", MOECACHE_VERSION },
        { "GGML", MOECACHE_GGML_VERSION },
        { nullptr, nullptr },
    };
    return features;
}

// What llama.cpp asks for by name. The split buffers of `-sm row` and the communication of `-sm tensor` are left out:
// llama.cpp then refuses the first with its own message and does the second by itself.
static void * reg_get_proc_address(ggml_backend_reg_t, const char * name) {
    if (std::strcmp(name, "ggml_backend_dev_get_extra_bufts") == 0) {
        return reinterpret_cast<void *>(get_extra_bufts);
    }
    if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) {
        return reinterpret_cast<void *>(backend_set_n_threads);
    }
    if (std::strcmp(name, "ggml_backend_set_abort_callback") == 0) {
        return reinterpret_cast<void *>(backend_set_abort_callback);
    }
    if (std::strcmp(name, "ggml_backend_get_features") == 0) {
        return reinterpret_cast<void *>(get_features);
    }
    const bool host_buffer = std::strcmp(name, "ggml_backend_register_host_buffer") == 0 ||
                             std::strcmp(name, "ggml_backend_unregister_host_buffer") == 0;
    if (host_buffer && !devices.empty()) {
        return ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device_get(devices[0])->inner), name);
    }
    return nullptr;
}

static ggml_backend_reg reg = {
    GGML_BACKEND_API_VERSION,
    {
        /* .get_name         = */ reg_get_name,
        /* .get_device_count = */ reg_get_device_count,
        /* .get_device       = */ reg_get_device,
        /* .get_proc_address = */ reg_get_proc_address,
    },
    nullptr,
};

// The lines of ggml_backend_score: one per reason and process, however often the library is loaded.
static std::vector<reason> & said = *new std::vector<reason>; // guarded by reg_mutex

// The status file of a process in which there will be no context that writes it: not to leave one of an earlier run.
static void write_status(reason why, const std::string & detail) {
    status_set_reason(why, detail);
    const std::string path  = config_get("GGML_MOECACHE_STATUS");
    const std::string error = path.empty() ? "" : status_write(path);
    if (!error.empty()) {
        complain(std::string(reason_name(reason::status_file)) + ": " + error);
    }
}

static void refuse(reason why, const std::string & detail) {
    for (const reason known : said) {
        if (known == why) {
            return;
        }
    }
    said.push_back(why);
    GGML_LOG_ERROR("moecache: inactive: %s: %s%s%s\n", reason_name(why), detail.c_str(), detail.empty() ? "" : " - ",
                   reason_text(why));
    write_status(why, detail);
}

// A misspelt variable does nothing; once per process.
static void say_unknown() {
    static bool done = false;
    for (const std::string & name : done ? std::vector<std::string>() : config_unknown()) {
        complain(name + " is set and is no variable of ggml_moecache: it does nothing");
    }
    done = true;
}

// Same version number, same sizes: what can be seen from outside of the structures that this library was compiled for.
static bool same_ggml(std::string & detail) {
    if (std::strcmp(ggml_version(), MOECACHE_GGML_VERSION) != 0) {
        detail = std::string("the program uses ggml ") + ggml_version() +
                 ", this library was compiled for ggml " MOECACHE_GGML_VERSION;
        return false;
    }
    const size_t overhead = ggml_tensor_overhead();
    const bool   same_ops = std::strcmp(ggml_op_name(GGML_OP_MUL_MAT_ID), "MUL_MAT_ID") == 0 &&
                          std::strcmp(ggml_type_name(GGML_TYPE_Q6_K), "q6_K") == 0;
    if (overhead < sizeof(ggml_tensor) || overhead - sizeof(ggml_tensor) > 64 || !same_ops) {
        detail = std::string("the program's ggml ") + ggml_version() +
                 " has other structures than the one of the same number that "
                 "this library was compiled for";
        return false;
    }
    return true;
}

static bool is_cuda(ggml_backend_dev_t dev) {
    return std::strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev)), "CUDA") == 0;
}

static bool is_gpu(ggml_backend_dev_t dev) {
    const enum ggml_backend_dev_type type = ggml_backend_dev_type(dev);
    return (type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU) && !device_is_ours(dev);
}

// The devices to wrap: every CUDA GPU, else the CPU when a stand-in is wanted.
static std::vector<ggml_backend_dev_t> find_inner(bool & standin, std::string & other_gpu) {
    std::vector<ggml_backend_dev_t> found;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        if (is_gpu(dev) && is_cuda(dev)) {
            found.push_back(dev);
        } else if (is_gpu(dev)) {
            other_gpu = ggml_backend_dev_name(dev);
        }
    }
    standin = found.empty() && other_gpu.empty() && config_standins() > 0;
    if (standin) {
        ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        if (cpu != nullptr) {
            found.assign(config_standins(), cpu);
        }
    }
    return found;
}

// What is done when the library is unloaded, that is at exit.
namespace {
struct at_exit {
    ~at_exit() {
        if (status_any_known() || !said.empty() || requirement_unmet()) {
            // The exit line (or the refusal, whose program may end at once) was handed to llama.cpp's logger, whose
            // thread prints it. That logger is never flushed at exit (llama.cpp's choice), and short runs lost the
            // line; the thread is still alive here.
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        } else if (!devices.empty()) {
            // Nobody should have to guess that a cache was off.
            const std::string detail = status_any_created() ?
                                           "a context with a MoECache device computed none of its experts there" :
                                           "no context had a MoECache device";
            complain(std::string("inactive: ") + reason_name(reason::never_used) + ": " + detail + " - " +
                     reason_text(reason::never_used));
            write_status(reason::never_used, detail);
            requirement_missed();
        }
        if (!said.empty() && devices.empty()) { // not loaded later after all
            requirement_missed();
        }
        if (requirement_unmet()) {
            // What exit() would still do is let go: the program's output that waits for that thread must not be.
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            complain("MOECACHE_REQUIRE=" + config_get("MOECACHE_REQUIRE") + ": the process ends with status 1");
            std::fflush(nullptr);
            std::_Exit(1);
        }
    }
} at_exit_of_the_process;
} // namespace

// False, after one line, when there is nothing to register. REQUIRES: reg_mutex.
static bool usable(std::vector<ggml_backend_dev_t> & inner, bool & standin) {
    std::string detail;
    if (!same_ggml(detail)) {
        refuse(reason::ggml_version, detail);
        return false;
    }
    if (!config_check().empty()) {
        refuse(reason::bad_config, config_check());
        return false;
    }
    say_unknown();
    std::string other_gpu;
    inner = find_inner(standin, other_gpu);
    if (inner.empty()) {
        refuse(other_gpu.empty() ? reason::no_gpu : reason::unsupported_gpu, other_gpu);
        return false;
    }
    return true;
}

extern "C" {

__attribute__((visibility("default"))) int ggml_backend_score(void) {
    std::lock_guard<std::mutex>     lock(reg_mutex);
    std::vector<ggml_backend_dev_t> inner;
    bool                            standin = false;
    return !devices.empty() || usable(inner, standin) ? 1 : 0;
}

__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
    std::lock_guard<std::mutex> lock(reg_mutex);
    if (devices.empty()) {
        std::vector<ggml_backend_dev_t> inner;
        bool                            standin = false;
        if (!usable(inner, standin)) {
            return nullptr;
        }
        for (size_t i = 0; i < inner.size(); i++) {
            devices.push_back(device_create(&reg, inner[i], static_cast<int>(i), standin));
        }
        status_set_reason(reason::none, "");
    }
    return &reg;
}

} // extern "C"
