#include "core/config.h"

#include "core/policies/default-policy.h"
#include "core/policies/table.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include <unistd.h>

namespace moecache {

static const variable_info table[] = {
    { "GGML_MOECACHE_CAPACITY", "0", "a number of experts, a share like 25%, a size like 2GiB or 512MiB, auto, or all",
      "Experts that have a slot on the device. 0: every expert is computed by the CPU, the rest of the model by the device. all: "
      "every expert has a copy and the device computes everything, or, without room for all, none has (100% takes as many as fit). auto: as many as fit beside GGML_MOECACHE_RESERVE_MIB, "
      "taken at the second graph, when a program has loaded its draft model; with GGML_MOECACHE_LOG at the first one, so name a "
      "number where there is a draft model as well. A size is that of the slots; places for the rows that miss come on top, for each "
      "layout of experts as many as the top-k." },
    { "GGML_MOECACHE_PER_LAYER", "0", "0 or 1",
      "1: every layer has slots of its own; a capacity in experts or percent is then of each layer. 0: all layers share." },
    { "GGML_MOECACHE_POLICY", default_policy, "a policy, name:parameter=value:...",
      "Which experts get the slots. `moecache simulate --list-policies` lists them." },
    { "GGML_MOECACHE_SYNC", "0", "0 or 1",
      "1: wait for every copy before the next layer, so that a run can be repeated byte for byte. For tests; slow." },
    { "GGML_MOECACHE_RESERVE_MIB", "512", "a whole number of MiB",
      "Device memory that capacity auto leaves free, after the KV cache and compute buffers." },
    { "GGML_MOECACHE_EXPERT_SHARE", "50%", "a share like 50%",
      "How much capacity auto, or a capacity that does not fit, keeps from a KV cache that would take all (--fit): this share of "
      "the device memory that is free beside the layers' weights and 2 GiB for compute buffers and the rest. A capacity that "
      "fits is kept as a whole." },
    { "GGML_MOECACHE_STATE_IN", "", "a file name",
      "Start the cache from this session state, which GGML_MOECACHE_STATE_OUT, `moecache simulate --state-out` or Python has "
      "written for the same model, capacity and policy. A second context that is open at the same time reads FILE.1 where that "
      "exists, and so on." },
    { "GGML_MOECACHE_STATE_OUT", "", "a file name",
      "Write the session state to this file when a context closes, replacing it as a whole. A second context that is open at the "
      "same time writes FILE.1, and so on." },
    { "GGML_MOECACHE_STANDIN_COPY_DELAY_US", "0", "a whole number of microseconds, at most 10000000",
      "The stand-in only: every copy of an expert takes this much longer. For tests." },
    { "GGML_MOECACHE_STANDIN_COPY_MIB_S", "0", "a whole number of MiB/s",
      "The stand-in only: bandwidth of its copies of experts, 0: as fast as they go. For tests." },
    { "GGML_MOECACHE_STATUS", "", "a file name",
      "Write the status of every llama context of the process to this file as JSON, when it becomes known and at exit." },
    { "GGML_MOECACHE_DEVICE_MIB", "", "a whole number of MiB, at least 1",
      "Treat each device as if it had only this much memory: reported to llama.cpp and applied to its own and our allocations." },
    { "GGML_MOECACHE_STANDIN", "0", "a number of devices, 0 to 8",
      "When no GPU is found, register the CPU as a stand-in device, so that everything runs and can be tested without a GPU; more "
      "than 1: as so many devices." },
    { "GGML_MOECACHE_LOG", "", "a folder",
      "Write the routing log (traces/FORMAT.md) of every llama context to this folder. It must not hold a log yet." },
    { "GGML_MOECACHE_LOG_RING_EVENTS", "262144", "a whole number of events, 64 to 67108864",
      "Events that the log's ring holds while they wait for the writer. One event is one layer's choice for one token; a "
      "ubatch of 512 tokens makes 512 for each MoE layer at once." },
    { "GGML_MOECACHE_LOG_FULL", "drop", "drop or wait",
      "What happens when the ring is full. drop: the event is lost, counted and marked in the log. wait: the model waits for "
      "the writer." },
    { "GGML_MOECACHE_LOG_LIVE", "0", "0 or 1",
      "Keep the ring for a consumer in this process (Python's RoutingRing) instead of writing it to a folder." },
    { "MOECACHE_REQUIRE", "0", "0 or 1",
      "1: every fallback (REASONS.md) is an error. What is found while computing ends the computation: no room, no cache or fewer "
      "slots, an unsupported type, an MoE block in pieces or of unknown form or computed as a whole, memory that cannot be pinned, a "
      "session state that cannot be used, a log, state or status file that cannot be written, events lost by a full ring. What is "
      "found at the end, a device that was never used and what kept the library from being loaded end the process with status 1. "
      "Experts that the user placed elsewhere (--cpu-moe) and a model without experts are no fallback; a device that computes no layer "
      "at all (--n-gpu-layers 0) is one that was never used." },
};

const variable_info * variable_table(size_t & n_variables) {
    n_variables = sizeof(table) / sizeof(table[0]);
    return table;
}

// Settings of this process. Never destroyed: contexts may outlive static objects.
static std::mutex &                         settings_mutex = *new std::mutex;
static std::map<std::string, std::string> & settings       = *new std::map<std::string, std::string>;

static const variable_info * find(const char * name) {
    for (const variable_info & info : table) {
        if (std::strcmp(info.name, name) == 0) {
            return &info;
        }
    }
    return nullptr;
}

// Whole decimal number; false for anything else, a sign and leading blanks included.
static bool parse_number(const std::string & text, uint64_t & number) {
    if (text.empty() || text.size() > 15 || text.find_first_not_of("0123456789") != std::string::npos) {
        return false;
    }
    number = std::strtoull(text.c_str(), nullptr, 10);
    return true;
}

static std::string check(const variable_info & info, const std::string & value) {
    bool     good   = true;
    uint64_t number = 0;
    if (std::strcmp(info.name, "GGML_MOECACHE_CAPACITY") == 0) {
        capacity_setting ignored;
        good = capacity_setting::parse(value, ignored);
    } else if (std::strcmp(info.name, "GGML_MOECACHE_EXPERT_SHARE") == 0) {
        capacity_setting share;
        good = capacity_setting::parse(value, share) && share.kind == capacity_kind::percent;
    } else if (std::strcmp(info.name, "GGML_MOECACHE_POLICY") == 0) {
        policy_spec       spec;
        const std::string error = policy_spec::parse(value, spec);
        if (!error.empty()) {
            return std::string(info.name) + ": " + error;
        }
        if (spec.info->needs_future || spec.info->per_access_only) {
            return std::string(info.name) + " must be a policy that can run. Got '" + value +
                   "', which needs to see the whole trace or single accesses, instead.";
        }
    } else if (std::strcmp(info.name, "GGML_MOECACHE_RESERVE_MIB") == 0 ||
               std::strcmp(info.name, "GGML_MOECACHE_STANDIN_COPY_MIB_S") == 0) {
        good = parse_number(value, number) && number < (uint64_t(1) << 43);
    } else if (std::strcmp(info.name, "GGML_MOECACHE_STANDIN_COPY_DELAY_US") == 0) {
        good = parse_number(value, number) && number <= 10000000;
    } else if (std::strcmp(info.name, "GGML_MOECACHE_DEVICE_MIB") == 0) {
        // the upper bound keeps the number of bytes below 2^63
        good = value.empty() || (parse_number(value, number) && number >= 1 && number < (uint64_t(1) << 43));
    } else if (std::strcmp(info.name, "GGML_MOECACHE_LOG_RING_EVENTS") == 0) {
        good = parse_number(value, number) && number >= 64 && number <= (uint64_t(1) << 26);
    } else if (std::strcmp(info.name, "GGML_MOECACHE_STANDIN") == 0) {
        good = parse_number(value, number) && number <= 8;
    } else if (std::strcmp(info.name, "GGML_MOECACHE_LOG_FULL") == 0) {
        good = value == "drop" || value == "wait";
    } else if (std::strcmp(info.name, "GGML_MOECACHE_LOG_LIVE") == 0 ||
               std::strcmp(info.name, "GGML_MOECACHE_PER_LAYER") == 0 ||
               std::strcmp(info.name, "GGML_MOECACHE_SYNC") == 0 || std::strcmp(info.name, "MOECACHE_REQUIRE") == 0) {
        good = value == "0" || value == "1";
    }
    return good ? "" : std::string(info.name) + " must be " + info.values + ". Got '" + value + "' instead.";
}

std::string config_get(const char * name) {
    {
        std::lock_guard<std::mutex> lock(settings_mutex);
        const auto                  setting = settings.find(name);
        if (setting != settings.end()) {
            return setting->second;
        }
    }
    const char * value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : find(name)->default_value;
}

std::string config_set(const char * name, const char * value) {
    const variable_info * info = name != nullptr ? find(name) : nullptr;
    if (info == nullptr) {
        return std::string("'") + (name != nullptr ? name : "") +
               "' is no variable of ggml_moecache; `moecache config` lists them";
    }
    if (value != nullptr) {
        const std::string error = check(*info, value);
        if (!error.empty()) {
            return error;
        }
    }
    std::lock_guard<std::mutex> lock(settings_mutex);
    if (value != nullptr) {
        settings[name] = value;
    } else {
        settings.erase(name);
    }
    return "";
}

std::string config_check() {
    for (const variable_info & info : table) {
        const std::string error = check(info, config_get(info.name));
        if (!error.empty()) {
            return error;
        }
    }
    if (config_get("GGML_MOECACHE_LOG_LIVE") == "1" && !config_get("GGML_MOECACHE_LOG").empty()) {
        return "GGML_MOECACHE_LOG_LIVE must be 0 when GGML_MOECACHE_LOG names a folder: the ring has one consumer. Got '1' instead.";
    }
    if (config_get("GGML_MOECACHE_LOG_LIVE") == "1" && config_get("GGML_MOECACHE_LOG_FULL") == "wait") {
        return "GGML_MOECACHE_LOG_FULL must be drop when GGML_MOECACHE_LOG_LIVE is 1: the consumer may be the thread that waits. "
               "Got 'wait' instead.";
    }
    const std::vector<std::string> unknown = config_unknown();
    if (config_get("MOECACHE_REQUIRE") == "1" && !unknown.empty()) {
        return unknown.front() + " is set and is no variable of ggml_moecache; `moecache config` lists them";
    }
    return "";
}

std::vector<std::string> config_unknown() {
    static const char        prefix[] = "GGML_MOECACHE_";
    std::vector<std::string> names;
    for (char ** entry = environ; entry != nullptr && *entry != nullptr; entry++) {
        const std::string name(*entry, std::strcspn(*entry, "="));
        const char *      value = std::getenv(name.c_str());
        const bool        ours = name.compare(0, sizeof(prefix) - 1, prefix) == 0 && value != nullptr && *value != '\0';
        if (ours && name != "GGML_MOECACHE_HOME" && find(name.c_str()) == nullptr) { // HOME is scripts/setup's
            names.push_back(name);
        }
    }
    std::sort(names.begin(), names.end());
    return names;
}

config config_read() {
    config result;
    capacity_setting::parse(config_get("GGML_MOECACHE_CAPACITY"), result.capacity);
    result.per_layer = config_get("GGML_MOECACHE_PER_LAYER") == "1";
    result.policy    = config_get("GGML_MOECACHE_POLICY");
    result.sync      = config_get("GGML_MOECACHE_SYNC") == "1";
    parse_number(config_get("GGML_MOECACHE_RESERVE_MIB"), result.reserve_bytes);
    result.reserve_bytes <<= 20;
    capacity_setting share;
    capacity_setting::parse(config_get("GGML_MOECACHE_EXPERT_SHARE"), share);
    result.expert_share = share.amount / 100;
    result.require      = config_get("MOECACHE_REQUIRE") == "1";
    result.status_file  = config_get("GGML_MOECACHE_STATUS");
    result.state_in     = config_get("GGML_MOECACHE_STATE_IN");
    result.state_out    = config_get("GGML_MOECACHE_STATE_OUT");
    result.log_folder   = config_get("GGML_MOECACHE_LOG");
    result.log_live     = config_get("GGML_MOECACHE_LOG_LIVE") == "1";
    result.log_wait     = config_get("GGML_MOECACHE_LOG_FULL") == "wait";
    parse_number(config_get("GGML_MOECACHE_LOG_RING_EVENTS"), result.n_log_ring_events);
    return result;
}

size_t config_standins() {
    uint64_t number = 0;
    parse_number(config_get("GGML_MOECACHE_STANDIN"), number);
    return number;
}

uint64_t config_device_cap_bytes() {
    uint64_t number = 0;
    return parse_number(config_get("GGML_MOECACHE_DEVICE_MIB"), number) ? number << 20 : 0;
}

standin_copy_speed config_standin_copies() {
    standin_copy_speed speed;
    parse_number(config_get("GGML_MOECACHE_STANDIN_COPY_DELAY_US"), speed.delay_us);
    parse_number(config_get("GGML_MOECACHE_STANDIN_COPY_MIB_S"), speed.mib_per_s);
    return speed;
}

} // namespace moecache
