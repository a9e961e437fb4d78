#include "backend/graph-walk.h"

#include "core/expert-name.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

namespace moecache {

bool graph_walk::is_warmup() const {
    return !blocks.empty() && std::all_of(blocks.begin(), blocks.end(), [](const moe_block & block) {
        return block.n_expert > 1 && block.ids->ne[0] == block.n_expert;
    });
}

static bool is_adapter_name(const char * name) {
    const size_t n = std::strlen(name);
    return n > 7 && (std::strcmp(name + n - 7, ".lora_a") == 0 || std::strcmp(name + n - 7, ".lora_b") == 0);
}

static std::vector<expert_op> find_expert_ops(const ggml_cgraph *                              graph,
                                              const std::function<bool(const ggml_tensor *)> & in_store,
                                              const std::function<bool(const ggml_tensor *)> & on_device) {
    std::vector<expert_op> ops;
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        if (node->op != GGML_OP_MUL_MAT_ID || !in_store(node->src[0])) {
            continue;
        }
        expert_op   op;
        expert_name name;
        op.node       = i;
        op.is_expert  = expert_name_parse(node->src[0]->name, name);
        op.layer      = op.is_expert ? name.layer : -1;
        op.is_adapter = !op.is_expert && is_adapter_name(node->src[0]->name);
        op.on_host    = !on_device(node->src[0]);
        ops.push_back(op);
    }
    return ops;
}

// Group by router ids and layer. Adapters and unknown weights join the block that has their ids.
static std::vector<moe_block> find_blocks(const ggml_cgraph * graph, const std::vector<expert_op> & ops) {
    std::vector<moe_block> blocks;
    for (size_t i = 0; i < ops.size(); i++) {
        const ggml_tensor * node  = graph->nodes[ops[i].node];
        moe_block *         block = nullptr;
        for (auto b = blocks.rbegin(); b != blocks.rend() && block == nullptr; ++b) {
            if (b->ids == node->src[2] && (b->layer == ops[i].layer || b->layer < 0 || ops[i].layer < 0)) {
                block = &*b;
            }
        }
        if (block == nullptr) {
            blocks.emplace_back();
            block           = &blocks.back();
            block->ids      = node->src[2];
            block->n_expert = node->src[0]->ne[2];
            block->n_tokens = node->src[2]->ne[1];
            block->n_rows   = node->src[2]->ne[0] * node->src[2]->ne[1];
            block->first    = ops[i].node;
        }
        block->layer = std::max(block->layer, ops[i].layer);
        block->ops.push_back(static_cast<int>(i));
        block->on_host |= ops[i].on_host;
        block->known &= ops[i].is_expert || ops[i].is_adapter;
        block->last = ops[i].node;
    }
    return blocks;
}

static void find_complete(const ggml_cgraph * graph, const std::vector<expert_op> & ops, moe_block & block) {
    bool down  = false;
    bool other = false;
    for (const int index : block.ops) {
        expert_name name;
        if (expert_name_parse(graph->nodes[ops[index].node]->src[0]->name, name)) {
            (name.role == expert_role::down ? down : other) = true;
        }
    }
    block.has_down = down;
    block.complete = down && other;
}

// Mark the expert operations of `block` that the CPU computes and every node on a path between two of them.
static void mark_host_nodes(const ggml_cgraph * graph, const std::vector<expert_op> & ops, const moe_block & block,
                            std::vector<char> & host_node) {
    std::vector<int> own;
    for (const int index : block.ops) {
        if (ops[index].on_host) {
            own.push_back(ops[index].node);
        }
    }
    if (own.empty()) {
        return;
    }
    const int first = own.front();
    const int last  = own.back();

    std::unordered_map<const ggml_tensor *, int> index_of; // of the nodes in [first, last]
    for (int i = first; i <= last; i++) {
        index_of[graph->nodes[i]] = i;
    }
    const std::set<int> expert_nodes(own.begin(), own.end());

    std::vector<char> after(last - first + 1, 0); // depends on an expert operation, or is one
    for (int i = first; i <= last; i++) {
        const ggml_tensor * node = graph->nodes[i];
        bool                mark = expert_nodes.count(i) != 0;
        for (int j = -1; j < GGML_MAX_SRC && !mark; j++) {
            const ggml_tensor * src = j < 0 ? node->view_src : node->src[j];
            const auto          it  = src != nullptr ? index_of.find(src) : index_of.end();
            mark                    = it != index_of.end() && it->second < i && after[it->second - first];
        }
        after[i - first] = mark;
    }
    std::vector<char> before(last - first + 1, 0); // an expert operation depends on it, or it is one
    for (int i = last; i >= first; i--) {
        before[i - first] |= expert_nodes.count(i) != 0;
        if (!before[i - first]) {
            continue;
        }
        const ggml_tensor * node = graph->nodes[i];
        for (int j = -1; j < GGML_MAX_SRC; j++) {
            const ggml_tensor * src = j < 0 ? node->view_src : node->src[j];
            const auto          it  = src != nullptr ? index_of.find(src) : index_of.end();
            if (it != index_of.end() && it->second < i) {
                before[it->second - first] = 1;
            }
        }
    }
    for (int i = first; i <= last; i++) {
        host_node[i] |= after[i - first] && before[i - first];
    }
}

graph_walk walk_graph(const ggml_cgraph * graph, const std::function<bool(const ggml_tensor *)> & in_store,
                      const std::function<bool(const ggml_tensor *)> & on_device) {
    graph_walk walk;
    walk.ops    = find_expert_ops(graph, in_store, on_device);
    walk.blocks = find_blocks(graph, walk.ops);
    walk.host_node.assign(graph->n_nodes, 0);
    for (moe_block & block : walk.blocks) {
        find_complete(graph, walk.ops, block);
        mark_host_nodes(graph, walk.ops, block, walk.host_node);
    }
    return walk;
}

namespace {

struct stored_experts {
    uint64_t n_experts = 0;
    bool     resident  = true; // all weights that were seen
};

struct placement_count {
    std::map<std::pair<int, int>, stored_experts> stored; // (layer, family)
    std::set<int>                                 stored_layers;
    std::set<int>                                 all_layers;
    std::set<const ggml_tensor *>                 weights;

    void add(const ggml_tensor * node, const std::function<bool(const ggml_tensor *)> & in_store,
             const std::function<bool(const ggml_tensor *)> & on_device) {
        if (node->op != GGML_OP_MUL_MAT_ID) {
            return;
        }
        const bool  inside = in_store(node->src[0]);
        expert_name name;
        if (inside) {
            weights.insert(node->src[0]);
        }
        if (!expert_name_parse(node->src[0]->name, name)) {
            return;
        }
        all_layers.insert(name.layer);
        if (inside) {
            stored_experts & experts = stored[{ name.layer, name.family }];
            experts.n_experts        = static_cast<uint64_t>(node->src[0]->ne[2]);
            experts.resident &= on_device(node->src[0]);
            stored_layers.insert(name.layer);
        }
    }
};

} // namespace

expert_placement place_experts(const ggml_cgraph * graph, const std::function<bool(const ggml_tensor *)> & in_store,
                               const std::function<bool(const ggml_tensor *)> & on_device) {
    placement_count  count;
    expert_placement result;
    int              n_known = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        count.add(graph->nodes[i], in_store, on_device);
    }
    for (size_t i = 0; i < graph->visited_hash_set.size; i++) {
        if (ggml_bitset_get(graph->visited_hash_set.used, i)) {
            count.add(graph->visited_hash_set.keys[i], in_store, on_device);
            n_known++;
        }
    }
    result.whole = n_known > graph->n_nodes; // the meta device of `-sm tensor` enters a part's own nodes, no leaf
    for (const auto & entry : count.stored) {
        result.n_experts += entry.second.n_experts;
        result.n_resident += entry.second.resident ? entry.second.n_experts : 0;
    }
    result.stored.assign(count.weights.begin(), count.weights.end());
    result.n_layers    = count.stored_layers.size();
    result.n_elsewhere = count.all_layers.size() - count.stored_layers.size();
    return result;
}

} // namespace moecache
