#include "backend/graph-plan.h"

#include "backend/buffer-type.h"
#include "backend/expert-cache.h"
#include "backend/missed-rows.h"
#include "core/expert-name.h"

#include <algorithm>
#include <unordered_map>

namespace moecache {

graph_plan::~graph_plan() {
    ggml_free(shadows);
}

plan_segment::plan_segment()                                     = default;
plan_segment::~plan_segment()                                    = default;
plan_segment::plan_segment(plan_segment &&) noexcept             = default;
plan_segment & plan_segment::operator=(plan_segment &&) noexcept = default;

// --- build ----------------------------------------------------------------------------------------------------------------------

// A row counts once, at the block's `down`: a cut block (eval callback) would otherwise count twice.
// What a shared block's rows are is known when it runs.
static void count_block(const graph_plan & plan, const ggml_cgraph * graph, const moe_block & block, bool shared,
                        plan_counts & counts) {
    for (const int index : block.ops) {
        const expert_op & op = plan.walk.ops[index];
        expert_name       name;
        if (!expert_name_parse(graph->nodes[op.node]->src[0]->name, name) || name.role != expert_role::down) {
            continue;
        }
        counts.last_block  = block_order(name.layer, name.family);
        counts.first_block = counts.first_block < 0 ? counts.last_block : counts.first_block;
        counts.n_events += static_cast<uint64_t>(block.n_tokens);
        if (!shared) {
            (op.on_host ? counts.n_misses : counts.n_hits) += static_cast<uint64_t>(block.n_rows);
        }
    }
    if (block.on_host) {
        counts.n_partial_blocks += !block.complete && block.known;
        counts.n_unknown_blocks += !block.known;
    }
}

// Whether only this block's nodes lie between its first and its last one, all of them the CPU's without a cache.
static bool stands_alone(const graph_walk & walk, const moe_block & block) {
    for (int i = block.first; i <= block.last; i++) {
        if (!walk.host_node[i]) {
            return false;
        }
    }
    return std::none_of(walk.blocks.begin(), walk.blocks.end(), [&](const moe_block & other) {
        return &other != &block && other.first <= block.last && other.last >= block.first;
    });
}

namespace {

// Which node belongs to which kind of segment: 0 the device's, 1 the CPU's, 2 + i the i-th shared block's.
struct segment_kinds {
    std::vector<int>          of_node;
    std::vector<plan_segment> shared;
};

} // namespace

// A block whose experts have slots is shared between the device and the CPU, if it works row by row.
static void share_block(graph_plan & plan, ggml_cgraph * graph, const moe_block & block, const expert_cache & cache,
                        const weight_mirror & mirror, segment_kinds & kinds) {
    if (!block.on_host || block.n_rows == 0 || block.n_tokens > expert_cache::max_tokens ||
        !cache.has_slots(block, plan.walk, graph)) {
        return;
    }
    const int    column = block.complete && block.known ? cache.column_of(block, plan.walk, graph) : -1;
    plan_segment segment;
    if (column >= 0 && stands_alone(plan.walk, block)) {
        segment.rows = missed_rows::make(graph, block.first, block.last, block.ids, mirror);
    }
    if (segment.rows == nullptr) {
        plan.counts.n_whole_blocks++;
        return;
    }
    segment.column   = static_cast<uint32_t>(column);
    segment.n_used   = static_cast<uint32_t>(block.ids->ne[0]);
    segment.n_tokens = static_cast<uint32_t>(block.n_tokens);
    plan.places.push_back(cache.make_place_ids(segment.column, block.ids->ne[0], block.n_tokens));
    for (const int index : block.ops) {
        ggml_tensor * node = graph->nodes[plan.walk.ops[index].node];
        plan.swaps.push_back({ node, 0, node->src[0], cache.slots_of(node->src[0]) });
        plan.swaps.push_back({ node, 2, node->src[2], &plan.places.back() });
    }
    std::fill(kinds.of_node.begin() + block.first, kinds.of_node.begin() + block.last + 1,
              2 + static_cast<int>(kinds.shared.size()));
    kinds.shared.push_back(std::move(segment));
}

static void cut_segments(graph_plan & plan, ggml_cgraph * graph, segment_kinds & kinds) {
    // A graph without an identity (a view of the scheduler's, for an eval callback) gives its parts none either.
    const bool stable = graph->uid != 0;
    for (int i0 = 0, i1 = 0; i0 < graph->n_nodes; i0 = i1) {
        const int kind = kinds.of_node[i0];
        for (i1 = i0 + 1; i1 < graph->n_nodes && kinds.of_node[i1] == kind;) {
            i1++;
        }
        plan_segment segment = kind >= 2 ? std::move(kinds.shared[kind - 2]) : plan_segment();
        segment.host         = kind == 1;
        segment.graph        = ggml_graph_view(graph, i0, i1);
        if (stable && !segment.host) {
            segment.graph.uid = ggml_graph_next_uid();
        }
        plan.segments.push_back(std::move(segment));
    }
}

void plan_build(graph_plan & plan, ggml_cgraph * graph, const resident_set & residents, const expert_cache * cache,
                const device_context * device, const weight_mirror & mirror) {
    plan.walk = walk_graph(
        graph, [device](const ggml_tensor * weight) { return in_store(weight, device); },
        [&residents](const ggml_tensor * weight) { return residents.find(weight) != nullptr; });
    plan.warmup = plan.walk.is_warmup();
    segment_kinds kinds;
    kinds.of_node.assign(plan.walk.host_node.begin(), plan.walk.host_node.end());
    plan.places.reserve(plan.walk.blocks.size()); // swaps point to them
    for (const moe_block & block : plan.walk.blocks) {
        const size_t n_shared = kinds.shared.size();
        if (cache != nullptr && !plan.warmup) {
            share_block(plan, graph, block, *cache, mirror, kinds);
        }
        count_block(plan, graph, block, kinds.shared.size() > n_shared, plan.counts);
    }
    bool any_host = false;
    for (const expert_op & op : plan.walk.ops) {
        any_host |= op.on_host;
        if (!op.on_host) {
            ggml_tensor * node = graph->nodes[op.node];
            plan.swaps.push_back({ node, 0, node->src[0], residents.find(node->src[0]) });
        }
    }
    if (any_host) {
        cut_segments(plan, graph, kinds);
    }
}

// --- layout ---------------------------------------------------------------------------------------------------------------------

namespace {

// Lays out the shadows of one plan. Host memory is used again once no block that began earlier goes on: the inner
// stream runs the copies of a later block after those of an earlier one.
class shadow_layout {
public:
    shadow_layout(graph_plan & plan, ggml_cgraph * graph, char * arena, const weight_mirror & mirror) :
        plan(plan), graph(graph), arena(arena), mirror(mirror) {}

    void run();

private:
    void          begin_segment(int first_node);
    void          lay_out(plan_segment & segment, int first_node, int n_nodes);
    ggml_tensor * shadow_node(ggml_tensor * node);
    ggml_tensor * resolve(ggml_tensor * src);
    ggml_tensor * input(ggml_tensor * src);
    char *        take(size_t size_bytes);
    bool          needed_outside(ggml_tensor * node, int index) const;
    void          add_output(plan_segment & segment, ggml_tensor * node);

    graph_plan &          plan;
    ggml_cgraph *         graph;
    char *                arena;
    const weight_mirror & mirror;

    size_t                                                 used_bytes = 0;
    int                                                    busy_until = -1; // last node of the blocks that have begun
    plan_segment *                                         current    = nullptr;
    std::unordered_map<const ggml_tensor *, ggml_tensor *> shadow_of;
};

char * shadow_layout::take(size_t size_bytes) {
    const size_t offset = GGML_PAD(used_bytes, size_t(64));
    used_bytes          = offset + size_bytes;
    plan.arena_bytes    = std::max(plan.arena_bytes, used_bytes);
    return arena != nullptr ? arena + offset : nullptr;
}

// A tensor of the device (or of the scheduler) that the CPU reads.
ggml_tensor * shadow_layout::input(ggml_tensor * src) {
    const ggml_backend_buffer_t buffer = buffer_of(src);
    if (buffer != nullptr && buffer_type_is_store(buffer->buft)) {
        return src;
    }
    ggml_tensor * shadow = ggml_new_tensor_1d(plan.shadows, GGML_TYPE_F32, 1);
    *shadow              = *src;
    shadow->buffer       = nullptr;
    shadow->view_src     = nullptr;
    shadow->op           = GGML_OP_NONE;
    std::fill(std::begin(shadow->src), std::end(shadow->src), nullptr);
    if (buffer != nullptr && buffer->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS) {
        shadow->data = arena != nullptr ? mirror(src) : nullptr;
        return shadow;
    }
    host_transfer transfer;
    const size_t  row_bytes = ggml_row_size(src->type, src->ne[0]);
    transfer.tensor         = src;
    transfer.size_bytes     = ggml_nbytes(src);
    if (src->ne[1] > 1 && src->ne[2] == 1 && src->ne[3] == 1 && src->nb[1] > row_bytes &&
        src->nb[0] == ggml_type_size(src->type)) {
        transfer.size_bytes   = row_bytes;
        transfer.n_rows       = static_cast<size_t>(src->ne[1]);
        transfer.stride_bytes = src->nb[1];
        shadow->nb[1]         = row_bytes;
        shadow->nb[2] = shadow->nb[3] = row_bytes * transfer.n_rows;
    }
    transfer.host = take(transfer.size_bytes * transfer.n_rows);
    shadow->data  = transfer.host;
    if (transfer.size_bytes > 0) {
        current->inputs.push_back(transfer);
    }
    return shadow;
}

ggml_tensor * shadow_layout::resolve(ggml_tensor * src) {
    const auto known = shadow_of.find(src);
    if (known != shadow_of.end()) {
        return known->second;
    }
    ggml_tensor * shadow   = nullptr;
    const auto    computed = src->view_src != nullptr ? shadow_of.find(src->view_src) : shadow_of.end();
    if (computed != shadow_of.end() && computed->second->op != GGML_OP_NONE) { // a view of what the CPU has computed
        shadow           = ggml_new_tensor_1d(plan.shadows, GGML_TYPE_F32, 1);
        *shadow          = *src;
        shadow->buffer   = nullptr;
        shadow->view_src = computed->second;
        shadow->data     = static_cast<char *>(computed->second->data) + src->view_offs;
    } else {
        shadow = input(src);
    }
    shadow_of[src] = shadow;
    return shadow;
}

ggml_tensor * shadow_layout::shadow_node(ggml_tensor * node) {
    ggml_tensor * shadow = ggml_new_tensor_1d(plan.shadows, GGML_TYPE_F32, 1);
    *shadow              = *node;
    shadow->buffer       = nullptr;
    shadow->extra        = nullptr;
    for (ggml_tensor *& src : shadow->src) {
        src = src != nullptr ? resolve(src) : nullptr;
    }
    if (node->view_src != nullptr) {
        shadow->view_src = resolve(node->view_src);
        shadow->data     = static_cast<char *>(shadow->view_src->data) + node->view_offs;
    } else {
        shadow->data = take(ggml_nbytes(node));
    }
    shadow_of[node] = shadow;
    return shadow;
}

// GGML's use counts are those of the whole graph, also in a view of it.
bool shadow_layout::needed_outside(ggml_tensor * node, int index) const {
    if ((node->flags & GGML_TENSOR_FLAG_OUTPUT) != 0) {
        return true;
    }
    int32_t inside = 0;
    for (int i = index + 1; i < graph->n_nodes && i <= busy_until; i++) {
        if (plan.walk.host_node[i]) {
            inside += static_cast<int32_t>(
                std::count(std::begin(graph->nodes[i]->src), std::end(graph->nodes[i]->src), node));
        }
    }
    const int32_t total = ggml_node_get_use_count(graph, index);
    return total == 0 || inside < total;
}

void shadow_layout::add_output(plan_segment & segment, ggml_tensor * node) {
    ggml_tensor * root  = node->view_src != nullptr ? node->view_src : node;
    const bool    twice = std::any_of(segment.outputs.begin(), segment.outputs.end(),
                                      [root](const host_transfer & output) { return output.tensor == root; });
    if (twice || ggml_nbytes(root) == 0) {
        return;
    }
    host_transfer transfer;
    transfer.tensor     = root;
    transfer.host       = static_cast<char *>(shadow_of.at(root)->data);
    transfer.size_bytes = ggml_nbytes(root);
    segment.outputs.push_back(transfer);
}

void shadow_layout::begin_segment(int first_node) {
    if (first_node > busy_until) {
        used_bytes = 0;
        shadow_of.clear();
    }
    for (bool grown = true; grown;) { // blocks that overlap the ones already begun keep their memory too
        grown = false;
        for (const moe_block & block : plan.walk.blocks) {
            if (block.first <= std::max(first_node, busy_until) && block.last >= first_node &&
                block.last > busy_until) {
                busy_until = block.last;
                grown      = true;
            }
        }
    }
}

void shadow_layout::lay_out(plan_segment & segment, int first_node, int n_nodes) {
    begin_segment(first_node);
    current = &segment;
    segment.inputs.clear();
    segment.outputs.clear();
    ggml_cgraph * host = ggml_new_graph_custom(plan.shadows, static_cast<size_t>(n_nodes), false);
    for (int i = first_node; i < first_node + n_nodes; i++) {
        host->nodes[host->n_nodes++] = shadow_node(graph->nodes[i]);
    }
    for (int i = first_node; i < first_node + n_nodes; i++) {
        if (needed_outside(graph->nodes[i], i)) {
            add_output(segment, graph->nodes[i]);
        }
    }
    segment.graph = *host;
}

void shadow_layout::run() {
    size_t n_host_nodes = 0;
    size_t n_bytes      = 0;
    for (const plan_segment & segment : plan.segments) {
        if (segment.host) {
            const size_t n = static_cast<size_t>(segment.graph.n_nodes);
            n_host_nodes += n;
            n_bytes += ggml_graph_overhead_custom(n, false);
        }
    }
    n_bytes += n_host_nodes * (GGML_MAX_SRC + 2) * ggml_tensor_overhead();
    ggml_free(plan.shadows);
    plan.shadows = ggml_init({ n_bytes, nullptr, /* no_alloc = */ true });
    if (plan.shadows == nullptr) {
        return;
    }
    int first_node = 0;
    for (plan_segment & segment : plan.segments) {
        const int n_nodes = segment.graph.n_nodes;
        if (segment.host) {
            lay_out(segment, first_node, n_nodes);
        } else if (segment.rows != nullptr) { // no other block is under way: the arena is its own
            plan.arena_bytes = std::max(plan.arena_bytes, segment.rows->lay_out(arena));
        }
        first_node += n_nodes;
    }
}

} // namespace

void plan_layout(graph_plan & plan, ggml_cgraph * graph, char * arena, const weight_mirror & mirror) {
    plan.arena_bytes = 0;
    shadow_layout(plan, graph, arena, mirror).run();
}

} // namespace moecache
