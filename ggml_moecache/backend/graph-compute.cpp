#include "backend/graph-compute.h"

#include "backend/buffer-type.h"
#include "backend/fallbacks.h"
#include "backend/stored-weights.h"
#include "core/expert-name.h"
#include "core/file.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <sys/stat.h>

namespace moecache {

static expert_placement placement_of(backend_context * context, const ggml_cgraph * graph) {
    const device_context * device    = device_get(context->dev);
    const resident_set &   residents = context->moe->residents;
    return place_experts(
        graph, [device](const ggml_tensor * weight) { return in_store(weight, device); },
        [&residents](const ggml_tensor * weight) { return residents.find(weight) != nullptr; });
}

static context_facts current_facts(backend_context * context, const expert_placement & placement) {
    device_context * device    = device_get(context->dev);
    context_facts    facts     = context->status->facts();
    facts.n_experts            = placement.n_experts;
    const expert_cache * cache = context->moe->cache.get();
    facts.n_resident           = cache != nullptr ? cache->n_slots() : placement.n_resident;
    facts.n_layers             = placement.n_layers;
    facts.n_layers_elsewhere   = placement.n_elsewhere;
    facts.store_bytes          = device->store_bytes;
    facts.store_pinned_bytes   = device->store_pinned_bytes;
    facts.resident_bytes       = cache != nullptr ? cache->size_bytes() : context->moe->residents.bytes();
    facts.policy               = cache != nullptr ? cache->policy_name() : "";
    facts.per_layer            = cache != nullptr && context->settings.per_layer;
    return facts;
}

// --- capacity `all` -----------------------------------------------------------------------------------------------------------------

// Whether the device below can multiply with `weight`: asked as llama.cpp's loader does it.
static bool inner_can_multiply(backend_context * context, const ggml_tensor * weight) {
    ggml_context * ctx = ggml_init({ 4 * ggml_tensor_overhead(), nullptr, /* no_alloc = */ true });
    if (ctx == nullptr) {
        return false;
    }
    ggml_tensor copy  = *weight;
    copy.buffer       = nullptr; // as if it were anywhere
    ggml_tensor * x   = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, weight->ne[0], 1, 1);
    ggml_tensor * ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, 1);
    const bool can = ggml_backend_dev_supports_op(device_get(context->dev)->inner, ggml_mul_mat_id(ctx, &copy, x, ids));
    ggml_free(ctx);
    return can;
}

// Bring the weights of the whole model graph to the device. Returns false when the computation must end.
static bool make_resident(backend_context * context, const ggml_cgraph * graph) {
    std::vector<const ggml_tensor *> wanted;
    uint64_t                         wanted_bytes = 0;
    for (const ggml_tensor * weight : placement_of(context, graph).stored) {
        if (context->moe->residents.find(weight) != nullptr || context->refused.count(weight->data) != 0) {
            continue;
        }
        if (!inner_can_multiply(context, weight)) {
            context->refused.insert(weight->data);
            if (!fall_back(context, reason::unsupported_type, weight->name)) {
                return false;
            }
            continue;
        }
        wanted.push_back(weight);
        wanted_bytes += ggml_nbytes(weight);
    }
    uint64_t                         copied_bytes = 0;
    std::vector<const ggml_tensor *> copied;
    if (!context->moe->residents.add(context->dev, context->inner, wanted, copied_bytes, copied)) {
        context->all_refused = true;
        size_t free          = 0;
        size_t total         = 0;
        ggml_backend_dev_memory(context->dev, &free, &total);
        char detail[160];
        snprintf(detail, sizeof(detail), "%.1f MiB of experts do not fit on %s (%.1f of %.1f MiB free)",
                 wanted_bytes / 1048576.0, device_get(context->dev)->name.c_str(), free / 1048576.0, total / 1048576.0);
        return give_up(context, current_facts(context, placement_of(context, graph)), reason::no_room, detail);
    }
    for (const ggml_tensor * weight : copied) { // an expert counts once, although it has several weights
        expert_name name;
        const bool  counts = expert_name_parse(weight->name, name) && name.role == expert_role::down;
        context->status->counters.n_copies += counts ? static_cast<uint64_t>(weight->ne[2]) : 0;
    }
    context->status->counters.copy_bytes += copied_bytes;
    context->moe->forget_plans();
    return true;
}

// --- capacities in between --------------------------------------------------------------------------------------------------------

static bool exists(const std::string & path) {
    struct stat info;
    return stat(path.c_str(), &info) == 0;
}

// Give the new cache the state that it is to start from, if any. Returns false when the computation must end.
static bool start_session(backend_context * context) {
    const config & settings = context->settings;
    std::string    state_in = settings.state_in;
    if (!settings.state_in.empty() || !settings.state_out.empty()) {
        context->state_name = std::make_unique<numbered_name>(settings.state_out.empty() ? "in:" + settings.state_in :
                                                                                           "out:" + settings.state_out);
        const std::string numbered = context->state_name->apply(settings.state_in);
        state_in                   = exists(numbered) ? numbered : state_in;
    }
    if (!settings.state_out.empty()) { // now, and not when hours have been computed
        const std::string refused = file_refused(context->state_name->apply(settings.state_out));
        if (!refused.empty() && !fall_back(context, reason::state_out, refused)) {
            return false;
        }
    }
    const std::string error = context->control->cache_made(context->moe->cache.get(), state_in);
    if (!error.empty() && !state_in.empty() && state_in == settings.state_in &&
        context->state_name->apply(state_in) != state_in) {
        complain("context " + std::to_string(context->status->context_id()) + " starts cold: " + error +
                 "; it has no " + context->state_name->apply(state_in));
        return true; // a draft model's, say: the state was never meant for it
    }
    context->state_in_refused = !error.empty();
    return error.empty() || fall_back(context, reason::state_in, error);
}

static void write_state_file(backend_context * context) {
    const expert_cache * cache = context->moe->cache.get();
    if (context->waiting) {
        const std::string why =
            "there is no cache yet, capacity " + context->settings.capacity.text + " makes it at the second graph";
        for (const auto & [file, code] : { std::pair(&context->settings.state_in, reason::state_in),
                                           std::pair(&context->settings.state_out, reason::state_out) }) {
            if (!file->empty()) {
                fall_back(context, code, why);
            }
        }
    }
    if (context->state_name == nullptr || context->settings.state_out.empty() || cache == nullptr || context->failed) {
        return;
    }
    const std::string path = context->state_name->apply(context->settings.state_out);
    if (context->state_in_refused && context->settings.state_in == context->settings.state_out && exists(path)) {
        std::rename(path.c_str(), (path + ".refused").c_str());
        complain(std::string(reason_name(reason::state_in)) + ": the state that could not be used is kept as " + path +
                 ".refused");
    }
    const std::string error = file_replace(path, saved_session_text(cache->export_session()) + "\n");
    if (!error.empty()) {
        fall_back(context, reason::state_out, error);
    }
}

// A program's warm-up is an ordinary graph of two tokens, and llama-server loads its draft model after it. Who takes
// what is left of the device must not take it before. With a log there is no waiting: all of its events have one cache.
static bool may_be_warmup(const backend_context * context, const graph_plan & plan) {
    const uint64_t n_begun = context->status->counters.n_graphs + context->status->counters.n_warmup_graphs;
    const bool     goes_on = plan.counts.first_block < 0 || plan.counts.first_block > context->last_block;
    return context->log == nullptr && plan.walk.blocks.front().n_tokens <= 2 &&
           (n_begun == 0 || (n_begun == 1 && goes_on));
}

// Make the cache, or let it wait. Returns false when the computation must end.
static bool make_cache(backend_context * context, const graph_plan & plan, const ggml_cgraph * graph) {
    uint32_t n_used = 0;
    for (const moe_block & block : plan.walk.blocks) {
        n_used = std::max(n_used, static_cast<uint32_t>(block.ids->ne[0]));
    }
    cache_request request { context->dev,
                            context->inner,
                            context->settings,
                            fingerprint(find_stored_weights(graph, device_get(context->dev))),
                            n_used,
                            may_be_warmup(context, plan) };
    std::string   why;
    context->moe->cache = expert_cache::make(request, placement_of(context, graph).stored, why);
    context->waiting    = context->moe->cache == nullptr && why.empty();
    if (context->waiting) {
        context->waiting_facts       = current_facts(context, placement_of(context, graph));
        context->waiting_facts.state = context_state::active;
        return true;
    }
    context->cache_tried = true;
    context->moe->forget_plans();
    if (context->moe->cache == nullptr) {
        context->control->no_cache(why);
        return give_up(context, current_facts(context, placement_of(context, graph)), reason::no_cache, why);
    }
    if (context->log != nullptr) {
        const std::string no_times = context->moe->cache->keep_records();
        if (!no_times.empty()) {
            complain("the log will not have the times of the device's work and copies: " + no_times);
        }
    }
    if (!why.empty() && !fall_back(context, reason::fewer_slots, why)) {
        return false;
    }
    return start_session(context);
}

// --- compute ------------------------------------------------------------------------------------------------------------------------

static bool announce_active(backend_context * context, const ggml_cgraph * graph) {
    context_facts facts = current_facts(context, placement_of(context, graph));
    facts.state         = context_state::active;
    announce(context, facts);
    // Only where there is something to pin for: the stand-in has no such memory.
    const bool can_pin = ggml_backend_dev_host_buffer_type(device_get(context->dev)->inner) != nullptr;
    if (!can_pin || facts.store_pinned_bytes == facts.store_bytes) {
        return true;
    }
    return fall_back(context, facts.store_pinned_bytes == 0 ? reason::not_pinned : reason::partly_pinned, "");
}

// A session state was named, and there is nothing that has one. Returns false when the computation must end.
static bool miss_session(backend_context * context) {
    const config & settings = context->settings;
    if (settings.capacity.partial()) {
        return true;
    }
    const std::string why = "capacity " + settings.capacity.text + " has no session, only one between 0 and all has";
    return (settings.state_in.empty() || fall_back(context, reason::state_in, why)) &&
           (settings.state_out.empty() || fall_back(context, reason::state_out, why));
}

// MoE blocks may be in another part of the graph (an eval callback's, a split's): then wait for it.
static void announce_without_blocks(backend_context * context, const ggml_cgraph * graph) {
    const expert_placement placement = placement_of(context, graph);
    if (placement.n_experts != 0 || (!placement.whole && placement.n_elsewhere == 0)) {
        return;
    }
    context_facts facts = current_facts(context, placement);
    facts.state         = context_state::inactive;
    facts.why           = placement.n_elsewhere > 0 ? reason::experts_elsewhere : reason::no_expert_tensors;
    announce(context, facts);
    // No fallback: a dense draft model, say, beside the model that they are meant for.
    const config & settings = context->settings;
    for (const auto & [variable, value] : { std::pair("GGML_MOECACHE_STATE_IN", &settings.state_in),
                                            std::pair("GGML_MOECACHE_STATE_OUT", &settings.state_out),
                                            std::pair("GGML_MOECACHE_LOG", &settings.log_folder) }) {
        if (!value->empty()) {
            complain("context " + std::to_string(context->status->context_id()) + " has no experts here: nothing for " +
                     variable + " (" + *value + ")");
        }
    }
}

// Programs that call llama_set_warmup route every token of their first graph (two of an encoder and decoder) to all
// experts. A model whose top-k is all its experts does so always: then nothing is a warm-up.
static bool is_warmup(backend_context * context, const graph_plan & plan) {
    const bool at_the_start = context->status->counters.n_graphs == 0 && context->status->counters.n_warmup_graphs < 2;
    return plan.warmup && at_the_start && plan.walk.blocks.front().n_tokens <= 2;
}

// The cache counts for itself; the status is told after every graph.
static void count_cache(backend_context * context) {
    moe_op & moe = *context->moe;
    if (moe.cache == nullptr) {
        return;
    }
    context_counters &     counters = context->status->counters;
    const cache_counters & cache    = moe.cache->counters();
    counters.n_hits += std::exchange(moe.n_shared_hits, 0);
    counters.n_misses += std::exchange(moe.n_shared_misses, 0);
    counters.n_copies      = cache.admissions;
    counters.copy_bytes    = cache.copy_bytes;
    counters.n_evictions   = cache.evictions;
    counters.n_copies_late = cache.copies_late;
}

static void count(backend_context * context, const graph_plan & plan) {
    context_counters & counters = context->status->counters;
    // A ubatch may reach us in several parts (layers on the CPU between, an eval callback): it is one graph all the
    // same.
    const bool new_ubatch = plan.counts.first_block >= 0 && plan.counts.first_block <= context->last_block;
    context->last_block   = plan.counts.last_block >= 0 ? plan.counts.last_block : context->last_block;
    if (is_warmup(context, plan)) {
        counters.n_warmup_graphs += new_ubatch;
        return;
    }
    counters.n_graphs += new_ubatch;
    counters.n_events += plan.counts.n_events;
    counters.n_hits += plan.counts.n_hits;
    counters.n_misses += plan.counts.n_misses;
    counters.n_partial_blocks += plan.counts.n_partial_blocks;
    counters.n_unknown_blocks += plan.counts.n_unknown_blocks;
    counters.n_whole_blocks += plan.counts.n_whole_blocks;
    count_cache(context);
}

// The policy wants to know of which request an event is: the tracker then sees each ubatch before it is computed. For
// the log alone it sees it afterwards, so that ubatches that fail are not counted.
static bool follows_requests(const backend_context * context) {
    return context->moe->cache != nullptr && context->moe->cache->follows_requests();
}

// Events that a full ring lost are said once. Returns false when the computation must end.
static bool say_loss(backend_context * context) {
    const uint64_t n_lost = context->status->counters.n_log_lost;
    if (n_lost == 0 || std::exchange(context->loss_said, true)) {
        return true;
    }
    return fall_back(context, reason::log_full, std::to_string(n_lost) + " events so far");
}

// Returns false when the computation must end.
static bool record(backend_context * context, graph_plan & plan, const ggml_cgraph * graph, bool warmup) {
    if (context->log == nullptr || warmup) {
        return true;
    }
    if (!follows_requests(context)) {
        context->batches->see(plan, graph);
    }
    const std::string error = context->log->computed(plan, graph, context->moe->cache.get());
    if (error.empty()) {
        return say_loss(context);
    }
    context->loss_said = true; // what follows is lost for this reason
    return fall_back(context, reason::log_file, error);
}

static void close_log(backend_context * context) {
    if (context->log == nullptr) {
        return;
    }
    const std::string error = context->log->close();
    context->log.reset();
    if (error.empty()) {
        say_loss(context);
    } else {
        fall_back(context, reason::log_file, error);
    }
}

// Weights that the device may get: not on it yet, and not refused.
static bool lacks_copies(backend_context * context, const graph_plan & plan, const ggml_cgraph * graph) {
    return std::any_of(plan.walk.ops.begin(), plan.walk.ops.end(), [&](const expert_op & op) {
        return op.on_host && context->refused.count(graph->nodes[op.node]->src[0]->data) == 0;
    });
}

// Prepare the plan of `graph`: residents first, when it is time for them. nullptr when the computation must end.
static graph_plan * prepare(backend_context * context, ggml_cgraph * graph) {
    graph_plan * plan = context->moe->plan(graph);
    if (plan != nullptr && context->settings.capacity.partial() && !context->cache_tried &&
        !plan->walk.blocks.empty() && !is_warmup(context, *plan)) {
        return make_cache(context, *plan, graph) ? context->moe->plan(graph) : nullptr;
    }
    const bool wants_copies =
        plan != nullptr && context->settings.capacity.all() && !context->all_refused && !is_warmup(context, *plan);
    if (!wants_copies || !lacks_copies(context, *plan, graph)) {
        return plan;
    }
    if (!make_resident(context, graph)) {
        return nullptr;
    }
    if (context->announced && !context->all_refused) { // an adapter, say: no second line, but the truth
        context_facts facts = current_facts(context, placement_of(context, graph));
        context->status->update(facts);
    }
    return context->moe->plan(graph);
}

static enum ggml_status compute(backend_context * context, ggml_cgraph * graph) {
    graph_plan * plan = context->failed ? nullptr : prepare(context, graph);
    if (plan == nullptr) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    const bool warmup = is_warmup(context, *plan);
    if (!context->announced && !warmup && !context->waiting) {
        if (plan->walk.blocks.empty()) {
            announce_without_blocks(context, graph);
        } else if (!announce_active(context, graph) || !miss_session(context)) {
            return GGML_STATUS_FAILED;
        }
        if (context->failed) { // the status file
            return GGML_STATUS_FAILED;
        }
    }
    if (plan->counts.n_partial_blocks > 0 && !fall_back(context, reason::partial_block, "")) {
        return GGML_STATUS_FAILED;
    }
    if (plan->counts.n_whole_blocks > 0 && !fall_back(context, reason::whole_block, "")) {
        return GGML_STATUS_FAILED;
    }
    if (plan->counts.n_unknown_blocks > 0 && !fall_back(context, reason::unknown_block, "")) {
        return GGML_STATUS_FAILED;
    }
    if (!warmup && follows_requests(context) && context->batches->see(*plan, graph)) {
        context->moe->cache->begin_batch(context->batches->tokens());
    }
    const enum ggml_status status = context->moe->run(*plan, graph);
    if (status == GGML_STATUS_FAILED && context->moe->host.is_broken()) {
        fall_back(context, reason::host_backend, "");
    }
    if (status == GGML_STATUS_SUCCESS && !plan->walk.blocks.empty()) {
        count(context, *plan);
        return record(context, *plan, graph, warmup) ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
    }
    return status;
}

enum ggml_status compute_graph(backend_context * context, ggml_cgraph * graph) {
    context->control->gate.begin();
    const enum ggml_status status = compute(context, graph);
    context->control->gate.end();
    return status;
}

void finish(backend_context * context) {
    close_log(context);
    if (context->waiting && !context->announced) {
        announce(context, context->waiting_facts);
    }
    write_state_file(context);
}

} // namespace moecache
