#include "backend/context-log.h"

#include "backend/fallbacks.h"
#include "backend/stored-weights.h"
#include "core/expert-name.h"
#include "transfer/cuda-events.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <set>

#include <unistd.h>

namespace moecache {

context_log::context_log(ggml_backend_dev_t dev, ggml_backend_t inner, const config & settings,
                         std::shared_ptr<context_status> status, const batch_tracker & batches) :
    dev(dev), settings(settings), status(status),
    recorder(dev, inner, settings.log_wait && !settings.log_live, batches),
    channel(settings.log_live ? live_channel_open(status->context_id()) : nullptr) {}

context_log::~context_log() {
    if (channel != nullptr) {
        live_channel_close(status->context_id());
    }
}

std::string context_log::close() {
    recorder.land_all();
    if (live != nullptr || log != nullptr) {
        facts.output_row_layers.assign(recorder.output_row_layers().begin(), recorder.output_row_layers().end());
        run_metadata_set(facts);
    }
    if (log == nullptr) {
        count();
        return "";
    }
    log->close();
    count();
    std::string error = log->error();
    if (error.empty()) {
        error = run_metadata_write(settings.log_folder);
    }
    return error.empty() ? "" :
                           settings.log_folder + "/" + facts.file + ": " + error + "; " +
                               std::to_string(log->n_lost()) + " events were lost";
}

// --- what ran -----------------------------------------------------------------------------------------------------------------------

static const char * role_name(expert_role role) {
    static const char * const names[] = { "gate", "up", "gate_up", "down" };
    return names[static_cast<int>(role)];
}

// Layers of the model as far as the names of its weights show.
static uint64_t count_layers(const ggml_cgraph * graph) {
    uint64_t n_layers = 0;
    for (size_t i = 0; i < graph->visited_hash_set.size; i++) {
        int layer = 0;
        if (ggml_bitset_get(graph->visited_hash_set.used, i) &&
            sscanf(graph->visited_hash_set.keys[i]->name, "blk.%d.", &layer) == 1 && layer >= 0) {
            n_layers = std::max<uint64_t>(n_layers, static_cast<uint64_t>(layer) + 1);
        }
    }
    return n_layers;
}

// An MoE layer is logged with its `down`; the user may have placed that weight elsewhere and left others in the store.
static void warn_of_layers_without_down(const ggml_cgraph * graph, const device_context * device) {
    std::map<std::pair<int, int>, bool> has_down;
    for (const auto & entry : find_stored_weights(graph, device)) {
        expert_name name;
        expert_name_parse(entry.first.c_str(), name);
        has_down[{ name.layer, name.family }] |= name.role == expert_role::down;
    }
    for (const auto & entry : has_down) {
        if (!entry.second) {
            complain("layer " + std::to_string(entry.first.first) + " is not in the routing log: its ffn_down_" +
                     expert_family_name(entry.first.second) + " was placed elsewhere");
        }
    }
}

void context_log::describe(const graph_plan & plan, const ggml_cgraph * graph) {
    const device_context * device = device_get(dev);
    facts.context_id              = status->context_id();
    facts.device                  = device->name;
    facts.gpu                     = device->standin ? "" : ggml_backend_dev_description(device->inner);
    facts.ggml_commit             = ggml_commit();
    facts.capacity                = settings.capacity.text;
    facts.folder                  = settings.log_folder;
    facts.n_layers                = count_layers(graph);
    facts.top_k                   = static_cast<uint64_t>(plan.walk.blocks.front().ids->ne[0]);

    const stored_weights                         weights = find_stored_weights(graph, device);
    std::map<std::pair<int, int>, expert_layout> layouts;
    for (const auto & entry : weights) {
        expert_name name;
        expert_name_parse(entry.first.c_str(), name);
        expert_layout & layout = layouts[{ name.layer, name.family }];
        layout.layer           = name.layer;
        layout.family          = expert_family_name(name.family);
        layout.n_experts       = static_cast<uint64_t>(entry.second->ne[2]);
        layout.expert_bytes += entry.second->nb[2];
        layout.types.emplace_back(role_name(name.role), ggml_type_name(entry.second->type));
    }
    facts.fingerprint = fingerprint(weights);
    facts.layouts.clear();
    for (const auto & entry : layouts) {
        const auto & types = entry.second.types;
        const bool   logged =
            std::any_of(types.begin(), types.end(), [](const auto & type) { return type.first == "down"; });
        if (logged) {
            facts.layouts.push_back(entry.second);
        }
    }
}

// --- open and record ----------------------------------------------------------------------------------------------------------------

// The first context of the process that logs into a folder writes routing.jsonl, further ones
// routing-<context_id>.jsonl.
static std::string choose_file_name(const std::string & folder, uint64_t context_id, std::string & error) {
    static std::mutex            mutex;
    static std::set<std::string> known; // folders of this process
    std::lock_guard<std::mutex>  lock(mutex);
    if (known.count(folder) != 0) {
        return "routing-" + std::to_string(context_id) + ".jsonl";
    }
    if (access((folder + "/run.json").c_str(), F_OK) == 0) {
        error = folder + " holds the log of another run, which is not overwritten; name another folder or remove it";
        return "";
    }
    known.insert(folder);
    return "routing.jsonl";
}

// Make the context known to run.json.
void context_log::announce(const graph_plan & plan, const ggml_cgraph * graph) {
    describe(plan, graph);
    if (!device_get(dev)->standin) {
        std::string runtime;
        std::string driver;
        cuda_versions(runtime, driver);
        run_metadata_set_cuda(runtime, driver);
    }
    run_metadata_set(facts);
}

std::string context_log::open(const graph_plan & plan, const ggml_cgraph * graph, expert_cache * cache) {
    warn_of_layers_without_down(graph, device_get(dev));
    size_t k_max = 1;
    for (const moe_block & block : plan.walk.blocks) {
        k_max = std::max(k_max, static_cast<size_t>(block.ids->ne[0]));
    }
    if (settings.log_live) {
        live = std::make_shared<event_ring>(settings.n_log_ring_events, k_max);
        channel->set_ring(live);
        recorder.set_ring(live.get(), false, nullptr); // a consumer expects the events of what has been computed
        announce(plan, graph);
        return "";
    }
    std::string         error;
    routing_log_options options;
    options.folder        = settings.log_folder;
    options.context_id    = status->context_id();
    options.n_ring_events = settings.n_log_ring_events;
    options.k_max         = k_max;
    if (cache != nullptr) {
        options.cache = cache->geometry_copy();
    }
    options.file_name = choose_file_name(settings.log_folder, options.context_id, error);
    if (error.empty()) {
        log = routing_log::open(options, error);
    }
    if (log == nullptr) {
        return error;
    }
    facts.file = options.file_name;
    if (cache != nullptr) {
        facts.policy    = cache->policy_name();
        facts.n_slots   = cache->n_slots();
        facts.per_layer = settings.per_layer;
        facts.sync      = settings.sync;
    }
    announce(plan, graph);
    recorder.set_ring(&log->ring(), true, cache);
    return run_metadata_write(settings.log_folder);
}

void context_log::count() {
    context_counters & counters = status->counters;
    counters.log_ns             = recorder.spent_ns();
    if (live != nullptr) {
        counters.n_log_events = live->n_committed();
        counters.n_log_lost   = live->n_lost();
    } else if (log != nullptr) {
        counters.n_log_events = log->n_taken();
        counters.n_log_lost   = log->n_lost();
    }
}

std::string context_log::computed(graph_plan & plan, const ggml_cgraph * graph, expert_cache * cache) {
    std::string error;
    if (cache != nullptr) {
        facts.session_changes = cache->n_session_changes();
    }
    if (!opened) {
        opened = true;
        try {
            error = open(plan, graph, cache);
        } catch (const std::bad_alloc &) {
            error = "there is no memory for a ring of " + std::to_string(settings.n_log_ring_events) + " events";
        }
    } else if (log != nullptr && !said_error && log->failed()) {
        said_error = true;
        error      = settings.log_folder + "/" + facts.file + ": " + log->error();
    }
    if (live == nullptr && log == nullptr) {
        status->counters.n_log_lost += plan.counts.n_events;
    } else {
        recorder.record(plan, graph);
        count();
    }
    return error;
}

} // namespace moecache
