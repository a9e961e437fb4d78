#include "backend/expert-cache.h"

#include "backend/buffer-type.h"
#include "core/clock.h"
#include "core/policies/table.h"

#include <algorithm>

namespace moecache {

expert_cache::~expert_cache() {
    copies.reset(); // before the memory that it writes to
    ggml_backend_buffer_free(place_buffer);
    ggml_backend_buffer_free(host_buffer);
}

// --- make -----------------------------------------------------------------------------------------------------------------------

// Device memory that can be had now.
static uint64_t free_bytes_of(ggml_backend_dev_t dev) {
    size_t free  = 0;
    size_t total = 0;
    ggml_backend_dev_memory(device_get(dev)->inner, &free, &total);
    return std::min<uint64_t>(free, device_allowance_bytes(device_get(dev)));
}

void expert_cache::take(slot_plan plan) {
    n_spare               = plan.n_spare;
    place_bytes_of_column = plan.place_bytes_of_column();
    geometry              = std::move(plan.geometry);
    columns               = std::move(plan.columns);
    for (uint32_t column = 0; column < columns.size(); column++) {
        for (size_t role = 0; role < n_expert_roles; role++) {
            if (columns[column][role] != nullptr) {
                column_of_weight[columns[column][role]->data] = { column, static_cast<expert_role>(role) };
            }
        }
    }
}

std::string expert_cache::start(const config & settings) {
    if (!pools.allocate(inner, geometry, columns, n_spare)) {
        return "the slots could not be allocated on " + device_get(dev)->name;
    }
    map.geometry = &geometry;
    map.pools    = &pools;
    for (uint32_t budget = 0; budget < geometry.n_budgets(); budget++) {
        for (uint32_t slot = 0; slot < geometry.slots_of_budget[budget]; slot++) {
            map.places.push_back(pools.place_of_slot(budget, slot));
        }
    }
    std::string error;
    copies = device_get(dev)->standin ? make_standin_transfer(map) : make_device_transfer(dev, inner, map, error);
    if (copies == nullptr) {
        return error;
    }
    error = policy_spec::parse(settings.policy, spec);
    error = error.empty() ? make_policy({ spec, geometry, nullptr }, rules) : error;
    if (!error.empty()) {
        return error;
    }
    const size_t               place_bytes = geometry.columns.size() * place_bytes_of_column;
    ggml_backend_buffer_type_t pinned      = ggml_backend_dev_host_buffer_type(device_get(dev)->inner);
    place_buffer = ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(dev), place_bytes);
    host_buffer =
        ggml_backend_buft_alloc_buffer(pinned != nullptr ? pinned : ggml_backend_cpu_buffer_type(), place_bytes);
    if (place_buffer == nullptr || host_buffer == nullptr) {
        return "there is no memory for the places of the router's ids";
    }
    manager = std::make_unique<cache_manager>(geometry, *rules, *copies);
    event_items.reserve(geometry.most_experts());
    event_hits.resize(geometry.most_experts());
    last_row.assign(geometry.most_experts(), 0);
    is_hit.assign(geometry.most_experts(), 0);
    records.resize(geometry.columns.size());
    reports.resize(geometry.columns.size());
    manager->place();
    finish_copies();
    return "";
}

std::unique_ptr<expert_cache> expert_cache::make(const cache_request &                    request,
                                                 const std::vector<const ggml_tensor *> & weights, std::string & why) {
    const config &                settings = request.settings;
    std::unique_ptr<expert_cache> made(new expert_cache(request));
    std::string                   fewer;
    slot_plan                     plan;
    why = plan.read(weights, settings.per_layer, request.n_used);
    why = why.empty() ? plan.choose(request.dev, settings, free_bytes_of(request.dev), fewer) : why;
    const bool takes_the_rest = settings.capacity.kind == capacity_kind::automatic || !fewer.empty();
    if (why.empty() && takes_the_rest && request.may_wait) {
        return nullptr;
    }
    if (why.empty()) {
        made->take(std::move(plan));
        why = made->start(settings);
    }
    if (!why.empty()) {
        return nullptr;
    }
    why = fewer;
    return made;
}

// --- blocks ---------------------------------------------------------------------------------------------------------------------

bool expert_cache::has_slots(const moe_block & block, const graph_walk & walk, const ggml_cgraph * graph) const {
    return std::any_of(block.ops.begin(), block.ops.end(), [&](int index) {
        return column_of_weight.count(graph->nodes[walk.ops[index].node]->src[0]->data) != 0;
    });
}

int expert_cache::column_of(const moe_block & block, const graph_walk & walk, const ggml_cgraph * graph) const {
    int column = -1;
    for (const int index : block.ops) {
        const auto known = column_of_weight.find(graph->nodes[walk.ops[index].node]->src[0]->data);
        if (known == column_of_weight.end() || (column >= 0 && static_cast<uint32_t>(column) != known->second.first)) {
            return -1;
        }
        column = static_cast<int>(known->second.first);
    }
    return block.ids->ne[0] <= n_spare ? column : -1;
}

ggml_tensor * expert_cache::slots_of(const ggml_tensor * weight) const {
    const auto & known = column_of_weight.at(weight->data);
    return pools.tensor(known.first, known.second);
}

ggml_tensor expert_cache::make_place_ids(uint32_t column, int64_t n_used, int64_t n_tokens) const {
    ggml_tensor tensor = {};
    tensor.type        = GGML_TYPE_I32;
    tensor.op          = GGML_OP_NONE;
    tensor.ne[0]       = n_used;
    tensor.ne[1]       = n_tokens;
    tensor.ne[2] = tensor.ne[3] = 1;
    tensor.nb[0]                = sizeof(int32_t);
    tensor.nb[1]                = sizeof(int32_t) * static_cast<size_t>(n_used);
    tensor.nb[2] = tensor.nb[3] = tensor.nb[1] * static_cast<size_t>(n_tokens);
    tensor.buffer               = place_buffer;
    tensor.data = static_cast<char *>(ggml_backend_buffer_get_base(place_buffer)) + place_offset(column);
    ggml_set_name(&tensor, "moecache-places");
    return tensor;
}

// --- events ---------------------------------------------------------------------------------------------------------------------

// Every expert once, in the order of its last row.
void expert_cache::make_event(uint32_t column, const int32_t * ids, uint32_t n_rows) {
    const auto n_experts = static_cast<int32_t>(geometry.columns[column].n_experts);
    event_items.clear();
    for (uint32_t row = 0; row < n_rows; row++) {
        if (ids[row] >= 0 && ids[row] < n_experts) {
            last_row[static_cast<size_t>(ids[row])] = row + 1;
        }
    }
    for (uint32_t row = 0; row < n_rows; row++) {
        const bool known = ids[row] >= 0 && ids[row] < n_experts;
        if (known && last_row[static_cast<size_t>(ids[row])] == row + 1) {
            event_items.push_back(geometry.first_item[column] + static_cast<uint32_t>(ids[row]));
        }
    }
}

// What the policy decides about the event, and counts of it.
const std::vector<decision> & expert_cache::decide(const cache_event & seen) {
    static const std::vector<decision> none;
    if (frozen) {
        return none;
    }
    cache_event event  = seen;
    event.index        = static_cast<uint64_t>(clock.events++);
    event.first_access = static_cast<uint64_t>(clock.accesses);
    event.token        = clock.tokens - 1;
    event.request      = request;
    clock.accesses += event.n_items;
    return manager->decide(event);
}

uint32_t expert_cache::route(uint32_t column, const int32_t * ids, uint32_t n_used, uint32_t n_tokens,
                             std::vector<missed_row> & misses) {
    if (static_cast<int>(column) <= last_column && !frozen) {
        clock.tokens += n_tokens;
    }
    last_column = static_cast<int>(column);
    make_event(column, ids, n_used * n_tokens);
    if (n_looked_up > 0) {
        manager->readers_finished(n_looked_up - 1);
    }
    const std::vector<copy_outcome> & outcomes = manager->publish(column);
    if (recording) {
        report_copies(column, outcomes);
    }
    cache_event event;
    event.index   = n_looked_up++;
    event.column  = column;
    event.n_items = static_cast<uint32_t>(event_items.size());
    event.items   = event_items.data();
    manager->look_up(event, event_hits.data());
    fill_places(column, ids, n_used, n_tokens, misses); // before the decisions: they may give a hit's slot away
    const uint64_t                generation = manager->generation();
    const std::vector<decision> & decisions  = decide(event);
    if (recording) {
        make_record(column, event.index, generation, n_used, n_tokens, misses, decisions);
    }
    if (!frozen) {
        manager->apply();
    }
    return n_used * n_tokens - static_cast<uint32_t>(misses.size());
}

// --- for the log ----------------------------------------------------------------------------------------------------------------

int expert_cache::column_index(int layer, int family) const {
    for (size_t i = 0; i < geometry.columns.size(); i++) {
        if (geometry.columns[i].layer_id == layer && geometry.columns[i].family == expert_family_name(family)) {
            return static_cast<int>(i);
        }
    }
    return -1;
}

std::string expert_cache::keep_records() {
    recording = true;
    journal   = std::make_unique<snapshot_journal>(geometry.n_items());
    manager->keep_journal(*journal);
    std::string why;
    timer = device_timer::make(dev, inner, geometry.columns.size(), why);
    if (timer != nullptr && !copies->keep_times(*timer)) {
        why = "there are no events for the copies; the hits have theirs";
    }
    return why;
}

void expert_cache::begin_graph() {
    graphs++;
    if (recording) {
        journal->shorten();
    }
    if (timer != nullptr) {
        timer->begin_graph();
    }
}

void expert_cache::device_begins(uint32_t column) {
    if (timer != nullptr) {
        timer->begin(column);
    }
}

void expert_cache::device_ends(uint32_t column) {
    if (timer != nullptr) {
        timer->end(column);
        records[column].device_ns = timer->is_host_clock() ? timer->take(column) : 0;
    }
}

void expert_cache::before_wait() {
    if (timer != nullptr) {
        timer->before_wait();
    }
}

void expert_cache::after_wait() {
    if (timer != nullptr) {
        timer->after_wait();
    }
}

uint64_t expert_cache::take_device_ns(uint32_t column) {
    return timer != nullptr ? timer->take(column) : 0;
}

void expert_cache::report_copies(uint32_t column, const std::vector<copy_outcome> & outcomes) {
    event_report report;
    report.event     = records[column].event;
    report.device_ns = take_device_ns(column);
    for (const copy_outcome & outcome : outcomes) {
        const copy_time time = outcome.ready ? copies->time_of(outcome.slot) : copy_time {};
        report.ready         = report.ready == 0 || !outcome.ready ? 0 : 1;
        report.ready_ns      = std::max(report.ready_ns, time.ready_ns);
        report.copy_ns += time.duration_ns;
    }
    if (report.ready == 0) { // the last one is still on its way
        report.ready_ns = report.copy_ns = 0;
    }
    reports[column] = report;
}

void expert_cache::make_record(uint32_t column, uint64_t event, uint64_t generation, uint32_t n_used, uint32_t n_tokens,
                               const std::vector<missed_row> & misses, const std::vector<decision> & decisions) {
    cache_record & record = records[column];
    record.event          = event;
    record.graph          = graphs;
    record.generation     = generation;
    record.n_changes      = journal->size();
    record.cpu_ns = record.device_ns = 0;
    record.row_hits.assign(n_tokens, n_used >= 64 ? UINT64_MAX : (uint64_t(1) << n_used) - 1);
    for (const missed_row & row : misses) {
        record.row_hits[row.token] &= ~(uint64_t(1) << row.k);
    }
    record.decisions.assign(decisions.begin(), decisions.end());
    record.copy_bytes  = decisions.size() * geometry.columns[column].expert_bytes;
    record.enqueued_ns = decisions.empty() ? 0 : monotonic_ns();
}

// --- rows -----------------------------------------------------------------------------------------------------------------------

// A second row of a token with the same expert is the CPU's: GGML's kernels assume that there is none.
void expert_cache::fill_places(uint32_t column, const int32_t * ids, uint32_t n_used, uint32_t n_tokens,
                               std::vector<missed_row> & misses) {
    for (uint32_t i = 0; i < event_items.size(); i++) {
        is_hit[geometry.expert_of_item(event_items[i])] = event_hits[i];
    }
    misses.clear();
    auto *     places    = reinterpret_cast<int32_t *>(static_cast<char *>(ggml_backend_buffer_get_base(host_buffer)) +
                                                       place_offset(column));
    const auto n_experts = static_cast<int32_t>(geometry.columns[column].n_experts);
    for (uint32_t token = 0; token < n_tokens; token++) {
        const int32_t * row = ids + token * n_used;
        for (uint32_t k = 0; k < n_used; k++) {
            const bool hit = row[k] >= 0 && row[k] < n_experts && is_hit[static_cast<size_t>(row[k])] &&
                             std::find(row, row + k, row[k]) == row + k;
            if (hit) {
                const uint32_t item        = geometry.first_item[column] + static_cast<uint32_t>(row[k]);
                places[token * n_used + k] = map.places[manager->slot_of(item)];
            } else {
                places[token * n_used + k] = pools.spare_place(column, k);
                misses.push_back({ token, k });
            }
        }
    }
}

void expert_cache::upload(uint32_t column, uint32_t n_used, uint32_t n_tokens) {
    ggml_tensor  tensor = make_place_ids(column, n_used, n_tokens);
    const char * host   = static_cast<const char *>(ggml_backend_buffer_get_base(host_buffer)) + place_offset(column);
    inner_view   view(&tensor);
    ggml_backend_tensor_set_async(inner, &view.tensor, host, 0, ggml_nbytes(&tensor));
}

void expert_cache::launched() {
    copies->readers_launched();
    if (sync) {
        copies->wait_all();
    }
}

} // namespace moecache
