#include "backend/graph-order.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace moecache {

// Operations that write to their own memory alone, so that only what they read must come before them.
static bool is_pure(const ggml_tensor * node) {
    if (is_view_op(node->op)) {
        return true;
    }
    switch (node->op) {
        case GGML_OP_GET_ROWS:
        case GGML_OP_REPEAT:
        case GGML_OP_ADD:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
        case GGML_OP_SCALE:
        case GGML_OP_CLAMP:
        case GGML_OP_UNARY:
        case GGML_OP_GLU:
        case GGML_OP_CONT:
        case GGML_OP_MUL_MAT:
        case GGML_OP_SUM_ROWS:
        case GGML_OP_SOFT_MAX:
            return node->view_src == nullptr; // else it is done in place
        default:
            return false;
    }
}

static bool reads(const ggml_tensor * node, const std::vector<const ggml_tensor *> & tensors) {
    const auto known = [&](const ggml_tensor * tensor) {
        return tensor != nullptr && std::find(tensors.begin(), tensors.end(), tensor) != tensors.end();
    };
    return known(node->view_src) || std::any_of(std::begin(node->src), std::end(node->src), known);
}

void bring_blocks_together(ggml_cgraph * graph, const std::function<bool(const ggml_tensor *)> & in_store) {
    const graph_walk walk = walk_graph(graph, in_store, [](const ggml_tensor *) { return false; });
    for (const moe_block & block : walk.blocks) {
        const bool alone = std::none_of(walk.blocks.begin(), walk.blocks.end(), [&](const moe_block & other) {
            return &other != &block && other.first <= block.last && other.last >= block.first;
        });
        if (!alone) {
            continue;
        }
        std::vector<ggml_tensor *>       moved;
        std::vector<ggml_tensor *>       kept;
        std::vector<const ggml_tensor *> stay; // nodes that may not be passed by what reads them
        for (int i = block.first; i <= block.last; i++) {
            ggml_tensor * node = graph->nodes[i];
            const bool    move = !walk.host_node[i] && is_pure(node) && !reads(node, stay);
            (move ? moved : kept).push_back(node);
            if (!move) {
                stay.push_back(node);
            }
        }
        if (moved.empty()) {
            continue;
        }
        const auto end = std::copy(moved.begin(), moved.end(), graph->nodes + block.first);
        std::copy(kept.begin(), kept.end(), end);
    }
}

} // namespace moecache
