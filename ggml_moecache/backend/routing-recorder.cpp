#include "backend/routing-recorder.h"

#include "backend/buffer-type.h"
#include "core/clock.h"
#include "core/expert-name.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace moecache {

// Entries of graphs that are long gone are dropped together; a graph has one per MoE layer.
static const size_t max_weights_known = 16384;

routing_recorder::routing_recorder(ggml_backend_dev_t dev, ggml_backend_t inner, bool wait_when_full,
                                   const batch_tracker & batches) :
    dev(dev), inner(inner), wait_when_full(wait_when_full), batches(batches), gather(dev, inner), memory(dev),
    flights(routing_gather::n_slots) {}

routing_recorder::~routing_recorder() {
    land_all();
    if (lander.joinable()) {
        stop = true;
        lander.join();
    }
}

void routing_recorder::set_ring(event_ring * target, bool in_background, expert_cache * with) {
    ring  = target;
    cache = target->with_cache() ? with : nullptr;
    if (cache != nullptr) {
        residency = std::make_unique<residency_feed>(*target, cache->n_experts());
    }
    if (in_background && gather.is_async()) {
        lander = std::thread([this] { land_in_background(); });
    }
}

// --- router tensors -----------------------------------------------------------------------------------------------------------------

static bool has_weights_shape(const ggml_tensor * tensor, const moe_block & block) {
    return tensor->type == GGML_TYPE_F32 && tensor->ne[0] == 1 && tensor->ne[1] == block.ids->ne[0] &&
           tensor->ne[2] == block.n_tokens && tensor->ne[3] == 1 && tensor->nb[1] == sizeof(float);
}

static bool has_weights_name(const ggml_tensor * tensor) {
    return std::strncmp(tensor->name, "ffn_moe_weights", 15) == 0;
}

// The operand of `node` that looks like router weights, or nullptr.
static ggml_tensor * weights_operand(const ggml_tensor * node, const moe_block & block) {
    if (node->op != GGML_OP_MUL) {
        return nullptr;
    }
    ggml_tensor * found = nullptr;
    for (int j = 0; j < 2; j++) {
        if (has_weights_shape(node->src[j], block) && !(found != nullptr && has_weights_name(found))) {
            found = node->src[j];
        }
    }
    return found;
}

// The router's weights are what the rows of the block are multiplied with, at its end, or at its beginning (Llama 4).
// Per-expert scales have the same shape and come first, so the last such product counts, and llama.cpp's name for the
// weights before it.
static ggml_tensor * find_weights(const ggml_cgraph * graph, const graph_walk & walk, const moe_block & block) {
    const int                        first    = block.first;
    const int                        last     = std::min(block.last + 64, graph->n_nodes - 1);
    ggml_tensor *                    found    = nullptr;
    std::vector<const ggml_tensor *> chain    = { graph->nodes[block.last] };
    const auto                       consider = [&](ggml_tensor * tensor) {
        if (tensor != nullptr && (found == nullptr || !has_weights_name(found) || has_weights_name(tensor))) {
            found = tensor;
        }
    };
    const ggml_tensor * input = graph->nodes[walk.ops[block.ops.front()].node]->src[1];
    consider(weights_operand(input, block));
    for (int i = first; i <= last; i++) {
        const ggml_tensor * node = graph->nodes[i];
        const bool follows = std::any_of(std::begin(node->src), std::end(node->src), [&](const ggml_tensor * src) {
            return src != nullptr && std::find(chain.begin(), chain.end(), src) != chain.end();
        });
        if (i > block.last && follows && ggml_are_same_shape(node, chain.front())) {
            consider(weights_operand(node, block));
            chain.push_back(node);
        }
    }
    return found;
}

void routing_recorder::keep_tensors(ggml_cgraph * graph, ggml_backend_graph_optimize_params * params) {
    const device_context * device = device_get(dev);
    const graph_walk       walk   = walk_graph(
        graph, [device](const ggml_tensor * weight) { return in_store(weight, device); },
        [](const ggml_tensor *) { return false; });
    if (walk.blocks.empty()) {
        return;
    }
    if (weights_of.size() > max_weights_known) {
        weights_of.clear();
    }
    std::vector<ggml_tensor *> kept; // all ids before all weights: each is one copy, a single token's both
    std::vector<ggml_tensor *> kept_weights;
    for (const moe_block & block : walk.blocks) {
        if (!block.has_down) { // logged with another part of the graph, which keeps them that long
            continue;
        }
        ggml_tensor * weights = find_weights(graph, walk, block);
        weights_of[block.ids] = weights;
        kept.push_back(const_cast<ggml_tensor *>(block.ids));
        if (weights != nullptr) {
            kept_weights.push_back(weights);
        }
    }
    kept.insert(kept.end(), kept_weights.begin(), kept_weights.end());
    ggml_tensor * until = graph->nodes[graph->n_nodes - 1];
    for (ggml_tensor * tensor : memory.give(graph, kept)) {
        params->add_alloc_dep(params->user_data, tensor, until);
    }
}

// --- plan ---------------------------------------------------------------------------------------------------------------------------

void routing_recorder::add_block(graph_plan & plan, const ggml_cgraph * graph, const moe_block & block) {
    plan_routing & routing = plan.routing;
    for (const int index : block.ops) {
        expert_name name;
        const bool  down = expert_name_parse(graph->nodes[plan.walk.ops[index].node]->src[0]->name, name) &&
                          name.role == expert_role::down; // once per block, also when it comes in pieces
        if (!down || block.n_rows == 0) {
            continue;
        }
        routing_source source;
        source.layer     = name.layer;
        source.family    = static_cast<uint8_t>(name.family);
        source.n_used    = static_cast<uint16_t>(block.ids->ne[0]);
        source.n_rows    = static_cast<uint32_t>(block.n_tokens);
        source.ids       = block.ids;
        const auto known = weights_of.find(block.ids);
        source.weights   = known != weights_of.end() ? known->second : nullptr;
        source.column    = cache != nullptr ? cache->column_index(name.layer, name.family) : -1;
        routing.blocks.push_back(source);
    }
}

// Where everything goes on the host, and how it gets there.
static void lay_out(plan_routing & routing) {
    std::vector<gather_source> sources;
    const auto add = [&](const ggml_tensor * tensor, const routing_source & block, size_t stride_bytes) {
        const size_t row_bytes = block.n_used * sizeof(int32_t);
        const size_t offset    = routing.size_bytes;
        sources.push_back({ tensor, row_bytes, block.n_rows, stride_bytes, offset });
        routing.size_bytes += row_bytes * block.n_rows;
        return offset;
    };
    for (routing_source & block : routing.blocks) {
        block.ids_offset = add(block.ids, block, block.ids->nb[1]);
    }
    for (routing_source & block : routing.blocks) {
        if (block.weights != nullptr) {
            block.weights_offset = add(block.weights, block, block.weights->nb[2]);
        }
    }
    routing.runs = gather_merge(sources);
}

void routing_recorder::reserve(const plan_routing & routing) {
    if (routing.size_bytes > gather.size_bytes()) {
        land_all();
        gather.reserve(routing.size_bytes);
    }
}

void routing_recorder::make_routing(graph_plan & plan, const ggml_cgraph * graph) {
    plan.routing.made = true;
    for (const moe_block & block : plan.walk.blocks) {
        add_block(plan, graph, block);
    }
    if (plan.routing.blocks.empty()) {
        return;
    }
    for (const routing_source & block : plan.routing.blocks) {
        if (block.n_rows != plan.inputs.n_tokens) {
            output_layers.insert(block.layer);
        }
    }
    lay_out(plan.routing);
    reserve(plan.routing);
}

// --- run ----------------------------------------------------------------------------------------------------------------------------

void routing_recorder::record(graph_plan & plan, const ggml_cgraph * graph) {
    if (!plan.routing.made) {
        make_routing(plan, graph);
    }
    const plan_routing & routing = plan.routing;
    if (routing.blocks.empty() || ring == nullptr) {
        return;
    }
    if (n_started - n_landed == routing_gather::n_slots) {
        land_next();
    }
    const uint64_t begin_ns = monotonic_ns();
    if (block_order(routing.blocks.front().layer, routing.blocks.front().family) <= last_block) {
        n_batches++;
    }
    last_block        = block_order(routing.blocks.back().layer, routing.blocks.back().family);
    const size_t slot = n_started % routing_gather::n_slots;
    flight &     next = flights[slot];
    next.blocks       = routing.blocks;
    next.tokens       = batches.tokens();
    next.output_rows  = batches.output_rows();
    next.batch_id     = n_batches - 1;
    if (gather.size_bytes() < routing.size_bytes) {
        lose(next);
        return;
    }
    gather.start(slot, routing.runs);
    if (cache != nullptr) {
        take_records(next);
        if (n_started > n_landed) {
            finish(flights[(n_started - 1) % routing_gather::n_slots]);
        }
    }
    n_started.store(n_started + 1, std::memory_order_release);
    n_final.store(cache != nullptr ? n_started - 1 : n_started.load(), std::memory_order_release);
    ns += monotonic_ns() - begin_ns;
}

// There is no host memory for the gather: the events are lost, and counted as such.
void routing_recorder::lose(const flight & next) {
    for (const routing_source & block : next.blocks) {
        ring->lose(next.batch_id, block.n_rows);
    }
}

// The device is asked some thousand times a second; a waiting call would keep a core busy for the whole time of a
// token.
static const auto lander_period = std::chrono::microseconds(200);

void routing_recorder::land_in_background() {
    while (!stop) {
        const size_t next = n_landed;
        if (next == n_final.load(std::memory_order_acquire) || !gather.ready(next % routing_gather::n_slots)) {
            std::this_thread::sleep_for(lander_period);
            continue;
        }
        land(next % routing_gather::n_slots);
    }
}

// Room for one more flight: wait for the oldest.
void routing_recorder::land_next() {
    if (!lander.joinable()) {
        const size_t slot = n_landed % routing_gather::n_slots;
        gather.wait(slot);
        const uint64_t begin_ns = monotonic_ns();
        land(slot);
        ns += monotonic_ns() - begin_ns;
        return;
    }
    for (const size_t before = n_landed; n_landed == before;) {
        std::this_thread::sleep_for(lander_period);
    }
}

void routing_recorder::land_final() {
    while (n_landed < n_final) {
        land_next();
    }
}

void routing_recorder::land_all() {
    if (cache != nullptr && n_final < n_started) {
        finish_last(flights[(n_started - 1) % routing_gather::n_slots]);
    }
    n_final.store(n_started, std::memory_order_release);
    land_final();
}

void routing_recorder::synchronized() {
    if (!lander.joinable()) {
        land_final();
    }
}

// --- cache ----------------------------------------------------------------------------------------------------------------------

void routing_recorder::take_records(flight & next) {
    cache->take_changes(next.changes);
    next.records.resize(next.blocks.size());
    next.reports.assign(next.blocks.size(), {});
    for (size_t i = 0; i < next.blocks.size(); i++) {
        const routing_source & block  = next.blocks[i];
        cache_record &         record = next.records[i];
        record.event                  = UINT64_MAX;
        if (block.column < 0) {
            continue;
        }
        const cache_record & made = cache->record(static_cast<uint32_t>(block.column));
        if (made.graph == cache->n_graphs() && made.row_hits.size() == block.n_rows) {
            record = made;
        }
    }
}

// The next token has come to these columns: what became of the copies is known.
void routing_recorder::finish(flight & last) {
    for (size_t i = 0; i < last.blocks.size(); i++) {
        if (last.records[i].event == UINT64_MAX) {
            continue;
        }
        const event_report & report = cache->report(static_cast<uint32_t>(last.blocks[i].column));
        if (report.event == last.records[i].event) {
            last.reports[i] = report;
        }
    }
}

// No token has come after it: its copies' fate stays unknown, the device's times are asked for once more.
void routing_recorder::finish_last(flight & last) {
    finish(last);
    for (size_t i = 0; i < last.blocks.size(); i++) {
        const cache_record & record = last.records[i];
        if (record.event != UINT64_MAX && last.reports[i].event == UINT64_MAX &&
            cache->record(static_cast<uint32_t>(last.blocks[i].column)).event == record.event) {
            last.reports[i].device_ns = cache->take_device_ns(static_cast<uint32_t>(last.blocks[i].column));
        }
    }
}

// --- events ---------------------------------------------------------------------------------------------------------------------

void routing_recorder::land(size_t slot) {
    const flight & done      = flights[slot];
    size_t         n_changes = 0; // of the flight's, those in front of the next block
    for (size_t i = 0; i < done.blocks.size(); i++) {
        const bool cached =
            cache != nullptr && done.records[i].event != UINT64_MAX && done.records[i].n_changes >= n_changes;
        if (cached) {
            residency->add(done.changes.data() + n_changes, done.records[i].n_changes - n_changes);
            n_changes = done.records[i].n_changes;
        }
        emit_block(done, i, gather.memory(slot), cached);
    }
    if (cache != nullptr) {
        residency->add(done.changes.data() + n_changes, done.changes.size() - n_changes);
    }
    n_landed.store(n_landed + 1, std::memory_order_release);
}

void routing_recorder::wait_for_room() {
    while (wait_when_full && !ring->has_room()) {
        std::this_thread::yield();
    }
}

// What the cache decided at an event, in front of it.
void routing_recorder::emit_decisions(const flight & done, const cache_record & record) {
    for (size_t first = 0; first < record.decisions.size(); first += ring->k_max()) {
        wait_for_room();
        routing_event * slot = ring->begin(done.batch_id);
        slot->kind           = MOECACHE_SLOT_DECISIONS;
        slot->n_used         = static_cast<uint16_t>(std::min(ring->k_max(), record.decisions.size() - first));
        for (size_t i = 0; i < slot->n_used; i++) {
            const decision & made    = record.decisions[first + i];
            ring->decisions(slot)[i] = { made.admitted, made.evicted };
        }
        ring->commit();
    }
}

// The ubatch of a layer is one event of the cache. Its decisions and its times stand at its last token.
void routing_recorder::emit_cache(const flight & done, size_t index, uint32_t row, routing_event * event) {
    const cache_record & record = done.records[index];
    routing_cache &      fields = *ring->cache(event);
    fields.ready                = -1;
    if (record.event == UINT64_MAX) {
        return;
    }
    fields.cached     = 1;
    fields.hits       = record.row_hits[row];
    fields.generation = record.generation;
    if (row + 1 < done.blocks[index].n_rows) {
        return;
    }
    fields.cpu_ns  = record.cpu_ns;
    fields.cuda_ns = record.device_ns + done.reports[index].device_ns;
    if (!record.decisions.empty()) {
        fields.enqueued_ns = record.enqueued_ns;
        fields.copy_bytes  = record.copy_bytes;
        fields.ready       = done.reports[index].ready;
        fields.ready_ns    = done.reports[index].ready_ns;
        fields.copy_ns     = done.reports[index].copy_ns;
    }
}

// `in_order`: the cache's snapshot changes towards that of the block.
void routing_recorder::emit_block(const flight & done, size_t index, const char * memory, bool in_order) {
    const routing_source & block   = done.blocks[index];
    const auto *           ids     = reinterpret_cast<const int32_t *>(memory + block.ids_offset);
    const auto *           weights = reinterpret_cast<const float *>(memory + block.weights_offset);
    const bool             outputs = block.n_rows != done.tokens.size() && block.n_rows <= done.output_rows.size();
    for (uint32_t row = 0; row < block.n_rows; row++) {
        const size_t token = outputs ? static_cast<size_t>(done.output_rows[row]) : row;
        if (token >= done.tokens.size()) {
            continue;
        }
        const bool   decides = cache != nullptr && row + 1 == block.n_rows && done.records[index].event != UINT64_MAX;
        const size_t n_slots =
            1 + (decides ? (done.records[index].decisions.size() + ring->k_max() - 1) / ring->k_max() : 0);
        const bool set_known = in_order && residency->hand_over(done.batch_id, n_slots, wait_when_full);
        if (!wait_when_full && !ring->has_room(n_slots)) { // who waits does so for one slot after the other
            ring->lose(done.batch_id, 1);
            continue;
        }
        if (decides) {
            emit_decisions(done, done.records[index]);
        }
        wait_for_room();
        routing_event * event = ring->begin(done.batch_id);
        event->request_id     = done.tokens[token].request_id;
        event->token_index    = done.tokens[token].token_index;
        event->phase          = done.tokens[token].phase;
        event->layer_id       = block.layer;
        event->family         = block.family;
        event->n_used         = static_cast<uint16_t>(std::min<size_t>(block.n_used, ring->k_max()));
        event->has_weights    = block.weights != nullptr;
        std::memcpy(event->ids(), ids + row * block.n_used, event->n_used * sizeof(int32_t));
        if (block.weights != nullptr) {
            std::memcpy(ring->weights(event), weights + row * block.n_used, event->n_used * sizeof(float));
        }
        if (cache != nullptr) {
            emit_cache(done, index, row, event);
            ring->cache(event)->set_known = set_known;
        }
        ring->commit();
    }
}

} // namespace moecache
