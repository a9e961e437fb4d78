#include "backend/moe-op.h"

#include "backend/buffer-type.h"
#include "backend/missed-rows.h"
#include "core/clock.h"

#include <algorithm>
#include <iterator>

namespace moecache {

// A graph that changes (the KV cache grows) gets a new uid and leaves its plan behind. When this many have gathered,
// the half that was used longest ago goes. A graph has one plan per split: a model that is spread over CPU and device
// needs some forty at once.
static const size_t max_plans = 128;

moe_op::~moe_op() {
    ggml_backend_synchronize(inner); // copies out of the arena may be under way
    ggml_backend_buffer_free(arena);
}

void moe_op::forget_plans() {
    plans.clear();
    unnamed.reset();
}

void moe_op::drop_old_plans() {
    std::vector<uint64_t> uses;
    for (const auto & plan : plans) {
        uses.push_back(plan.second->last_use);
    }
    std::nth_element(uses.begin(), uses.begin() + static_cast<std::ptrdiff_t>(uses.size() / 2), uses.end());
    const uint64_t median = uses[uses.size() / 2];
    for (auto it = plans.begin(); it != plans.end();) {
        it = it->second->last_use < median ? plans.erase(it) : std::next(it);
    }
}

bool moe_op::reserve_arena(size_t size_bytes) {
    size_bytes = std::max(size_bytes, size_t(64)); // a graph without rows needs nothing, but its plan a base address
    if (size_bytes <= arena_bytes) {
        return true;
    }
    ggml_backend_synchronize(inner);
    forget_plans(); // they point into the old arena
    ggml_backend_buffer_free(arena);
    arena_bytes                       = 0;
    ggml_backend_buffer_type_t pinned = ggml_backend_dev_host_buffer_type(device_get(dev)->inner);
    arena = ggml_backend_buft_alloc_buffer(pinned != nullptr ? pinned : ggml_backend_cpu_buffer_type(), size_bytes);
    if (arena == nullptr) {
        return false;
    }
    arena_bytes = size_bytes;
    return true;
}

void * moe_op::mirror(const ggml_tensor * weight) {
    std::vector<char> & copy = mirrors[{ weight->data, ggml_nbytes(weight) }];
    if (copy.empty()) {
        copy.resize(ggml_nbytes(weight));
        ggml_backend_synchronize(inner);
        ggml_backend_tensor_get(weight, copy.data(), 0, copy.size());
    }
    return copy.data();
}

graph_plan * moe_op::plan(ggml_cgraph * graph) {
    if (residents.drop_freed()) {
        forget_plans();
    }
    if (graph->uid != 0) {
        const auto known = plans.find(graph->uid);
        if (known != plans.end()) {
            known->second->last_use = ++n_uses;
            return known->second.get();
        }
    }
    auto made                     = std::make_unique<graph_plan>();
    made->last_use                = ++n_uses;
    const weight_mirror mirror_of = [this](const ggml_tensor * weight) { return mirror(weight); };
    plan_build(*made, graph, residents, cache.get(), device_get(dev), mirror_of);
    if (!made->segments.empty()) {
        plan_layout(*made, graph, nullptr, mirror_of);
        if (made->shadows == nullptr || !reserve_arena(made->arena_bytes)) {
            return nullptr;
        }
        plan_layout(*made, graph, static_cast<char *>(ggml_backend_buffer_get_base(arena)), mirror_of);
    }
    if (graph->uid == 0) {
        unnamed = std::move(made);
        return unnamed.get();
    }
    if (plans.size() >= max_plans) {
        drop_old_plans();
    }
    graph_plan * result = made.get();
    plans[graph->uid]   = std::move(made);
    return result;
}

void moe_op::fetch(const host_transfer & t) {
    const ggml_tensor *         tensor = t.tensor;
    const ggml_backend_buffer_t buffer = buffer_of(tensor);
    if (!buffer_type_is_default(buffer->buft)) { // host memory that the device shares
        ggml_backend_synchronize(inner);
        for (size_t row = 0; row < t.n_rows; row++) {
            ggml_backend_tensor_get(tensor, t.host + row * t.size_bytes, row * t.stride_bytes, t.size_bytes);
        }
        return;
    }
    inner_view view(tensor);
    if (t.n_rows == 1) {
        ggml_backend_tensor_get_async(inner, &view.tensor, t.host, 0, t.size_bytes);
    } else {
        ggml_backend_tensor_get_2d_async(inner, &view.tensor, t.host, 0, t.size_bytes, t.n_rows, t.stride_bytes,
                                         t.size_bytes);
    }
}

void moe_op::send(const host_transfer & t) {
    const ggml_backend_buffer_t buffer = buffer_of(t.tensor);
    if (!buffer_type_is_default(buffer->buft)) {
        ggml_backend_synchronize(inner);
        ggml_backend_tensor_set(t.tensor, t.host, 0, t.size_bytes);
        return;
    }
    inner_view view(t.tensor);
    ggml_backend_tensor_set_async(inner, &view.tensor, t.host, 0, t.size_bytes);
}

// The synchronization also covers the copies out of the arena that earlier segments enqueued on the same stream.
enum ggml_status moe_op::run_on_host(plan_segment & segment) {
    for (const host_transfer & input : segment.inputs) {
        fetch(input);
    }
    ggml_backend_synchronize(inner);
    const enum ggml_status status = host.compute(&segment.graph);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    for (const host_transfer & output : segment.outputs) {
        send(output);
    }
    return GGML_STATUS_SUCCESS;
}

// Rows that lie side by side on both sides go together.
void moe_op::send_rows(const plan_segment & segment) {
    for (size_t output = 0; output < segment.rows->n_results(); output++) {
        missed_rows::result_row run = segment.rows->result(output, 0, misses[0]);
        for (size_t i = 1; i <= misses.size(); i++) {
            const bool more = i < misses.size();
            const auto next = more ? segment.rows->result(output, i, misses[i]) : missed_rows::result_row {};
            if (more && next.offset == run.offset + run.size_bytes) {
                run.size_bytes += next.size_bytes;
                continue;
            }
            inner_view view(run.tensor);
            ggml_backend_tensor_set_async(inner, &view.tensor, run.host, run.offset, run.size_bytes);
            run = next;
        }
    }
}

// The device computes all rows of the block, those of missed experts with zeros; the CPU meanwhile the missed ones,
// which then overwrite them.
enum ggml_status moe_op::run_shared(plan_segment & segment) {
    for (const host_transfer & input : segment.rows->inputs()) {
        fetch(input);
    }
    cache->before_wait();
    ggml_backend_synchronize(inner);
    cache->after_wait();
    const uint32_t n_hits = cache->route(segment.column, segment.rows->ids(), segment.n_used, segment.n_tokens, misses);
    const bool     timed  = cache->keeps_records();
    enum ggml_status status = GGML_STATUS_SUCCESS;
    if (n_hits > 0) {
        cache->device_begins(segment.column);
        cache->upload(segment.column, segment.n_used, segment.n_tokens);
        status = inner->iface.graph_compute(inner, &segment.graph);
        cache->device_ends(segment.column);
    }
    cache->launched();
    n_shared_hits += n_hits;
    n_shared_misses += misses.size();
    const uint64_t host_begin_ns = timed ? monotonic_ns() : 0;
    if (status == GGML_STATUS_SUCCESS && !misses.empty()) {
        segment.rows->pack(misses);
        status = host.compute(segment.rows->graph());
        if (status == GGML_STATUS_SUCCESS) {
            send_rows(segment);
        }
    }
    if (timed && !misses.empty()) {
        cache->add_cpu_time(segment.column, monotonic_ns() - host_begin_ns);
    }
    return status;
}

static bool computes_nothing(const ggml_cgraph & graph) {
    for (int i = 0; i < graph.n_nodes; i++) {
        if (!is_view_op(graph.nodes[i]->op) && !ggml_is_empty(graph.nodes[i])) {
            return false;
        }
    }
    return true;
}

enum ggml_status moe_op::run(graph_plan & plan, ggml_cgraph * graph) {
    if (cache != nullptr) {
        cache->begin_graph();
    }
    for (const plan_swap & swap : plan.swaps) {
        swap.node->src[swap.src] = swap.replacement;
    }
    enum ggml_status status = GGML_STATUS_SUCCESS;
    if (plan.segments.empty()) {
        status = inner->iface.graph_compute(inner, graph);
    }
    for (plan_segment & segment : plan.segments) {
        if (segment.host) {
            status = run_on_host(segment);
        } else if (segment.rows != nullptr) {
            status = run_shared(segment);
        } else if (!computes_nothing(segment.graph)) {
            status = inner->iface.graph_compute(inner, &segment.graph);
        }
        if (status != GGML_STATUS_SUCCESS) {
            break;
        }
    }
    for (const plan_swap & swap : plan.swaps) {
        swap.node->src[swap.src] = swap.original;
    }
    return status;
}

} // namespace moecache
