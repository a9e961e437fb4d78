#include "backend/missed-rows.h"

#include "backend/buffer-type.h"

#include <algorithm>
#include <cstring>

namespace moecache {

missed_rows::~missed_rows() {
    ggml_free(ctx);
}

// --- make -----------------------------------------------------------------------------------------------------------------------

// Operations that compute row (token, k) from rows (token, k) or `token`, beside MUL_MAT_ID and ADD_ID.
static bool works_by_rows(enum ggml_op op) {
    switch (op) {
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
        case GGML_OP_SQR:
        case GGML_OP_SQRT:
        case GGML_OP_SCALE:
        case GGML_OP_CLAMP:
        case GGML_OP_UNARY:
        case GGML_OP_GLU:
        case GGML_OP_CONT:
            return true;
        default:
            return false;
    }
}

static bool is_weight(const ggml_tensor * tensor) {
    const ggml_backend_buffer_t buffer = buffer_of(tensor);
    return buffer != nullptr &&
           (buffer_type_is_store(buffer->buft) || buffer->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
}

ggml_tensor * missed_rows::copy_of(const ggml_tensor * tensor) {
    ggml_tensor * shadow = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    *shadow              = *tensor;
    shadow->buffer       = nullptr;
    shadow->extra        = nullptr;
    return shadow;
}

ggml_tensor * missed_rows::add_weight(ggml_tensor * src) {
    if (buffer_type_is_store(buffer_of(src)->buft)) {
        return src;
    }
    ggml_tensor * shadow = copy_of(src);
    shadow->view_src     = nullptr;
    shadow->op           = GGML_OP_NONE;
    std::fill(std::begin(shadow->src), std::end(shadow->src), nullptr);
    shadow->data = (*mirror)(src);
    return shadow;
}

// nullptr: it has no rows of the block's.
ggml_tensor * missed_rows::add_operand(ggml_tensor * src) {
    const bool is_ids = src == router_ids;
    operand    made;
    made.per_k             = is_ids || src->ne[1] == n_used;
    made.row_bytes         = is_ids ? sizeof(int32_t) : ggml_row_size(src->type, src->ne[0]);
    const bool by_rows     = src->ne[1] == n_used || src->ne[1] == 1;
    const bool good_values = by_rows && src->ne[2] == n_tokens && src->ne[3] == 1 && ggml_is_contiguous(src);
    const bool good_ids    = is_ids && src->type == GGML_TYPE_I32 && src->ne[2] == 1 && src->nb[0] == sizeof(int32_t);
    if (is_ids ? !good_ids : !good_values) {
        return nullptr;
    }
    host_transfer fetch;
    fetch.tensor     = src;
    fetch.size_bytes = ggml_nbytes(src);
    if (is_ids && src->nb[1] > made.row_bytes * static_cast<size_t>(n_used) && n_tokens > 1) {
        fetch.size_bytes   = made.row_bytes * static_cast<size_t>(n_used);
        fetch.n_rows       = static_cast<size_t>(n_tokens);
        fetch.stride_bytes = src->nb[1];
    }
    made.fetch            = fetches.size();
    ids_fetch             = is_ids ? made.fetch : ids_fetch;
    made.shadow           = copy_of(src);
    made.shadow->view_src = nullptr;
    made.shadow->op       = GGML_OP_NONE;
    std::fill(std::begin(made.shadow->src), std::end(made.shadow->src), nullptr);
    made.shadow->ne[0] = is_ids ? 1 : src->ne[0];
    made.shadow->ne[1] = 1;
    made.shadow->nb[1] = made.row_bytes;
    fetches.push_back(fetch);
    operands.push_back(made);
    return made.shadow;
}

ggml_tensor * missed_rows::resolve(ggml_tensor * src) {
    const auto known = shadow_of.find(src);
    if (known != shadow_of.end()) {
        return known->second;
    }
    ggml_tensor * shadow = is_weight(src) ? add_weight(src) : add_operand(src);
    shadow_of[src]       = shadow;
    return shadow;
}

bool missed_rows::add_node(ggml_tensor * node) {
    const bool view   = node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE;
    const bool by_ids = node->op == GGML_OP_MUL_MAT_ID || node->op == GGML_OP_ADD_ID;
    if (node->ne[1] != n_used || node->ne[2] != n_tokens || node->ne[3] != 1 ||
        !(view || by_ids || works_by_rows(node->op)) || (by_ids && node->src[2] != router_ids)) {
        return false;
    }
    ggml_tensor * shadow = copy_of(node);
    for (ggml_tensor *& src : shadow->src) {
        src = src != nullptr ? resolve(src) : nullptr;
    }
    for (size_t i = 0; i < GGML_MAX_SRC; i++) {
        if ((shadow->src[i] == nullptr) != (node->src[i] == nullptr)) {
            return false;
        }
    }
    if (node->view_src != nullptr) { // of a result of the block, rows in place
        const auto root = shadow_of.find(node->view_src);
        const bool rows = root != shadow_of.end() && node->view_src->ne[1] == n_used &&
                          node->nb[1] == node->view_src->nb[1] && node->nb[2] == node->view_src->nb[2];
        if (!view || !rows) {
            return false;
        }
        shadow->view_src = root->second;
    } else {
        if (!ggml_is_contiguous(node)) {
            return false;
        }
        roots.push_back(shadow);
    }
    shadow->ne[1]   = 1;
    shadow->nb[2]   = shadow->nb[1];
    shadow_of[node] = shadow;
    sized.push_back(shadow);
    shadow_graph->nodes[shadow_graph->n_nodes++] = shadow;
    return true;
}

// GGML's use counts are those of the whole graph, also in a view of it.
static bool needed_outside(const ggml_cgraph * graph, int first, int last, int index) {
    const ggml_tensor * node = graph->nodes[index];
    if ((node->flags & GGML_TENSOR_FLAG_OUTPUT) != 0) {
        return true;
    }
    int32_t inside = 0;
    for (int i = first; i <= last; i++) {
        inside +=
            static_cast<int32_t>(std::count(std::begin(graph->nodes[i]->src), std::end(graph->nodes[i]->src), node));
    }
    const int32_t total = ggml_node_get_use_count(graph, index);
    return total == 0 || inside < total;
}

std::unique_ptr<missed_rows> missed_rows::make(ggml_cgraph * graph, int first, int last, const ggml_tensor * ids,
                                               const weight_mirror & mirror) {
    std::unique_ptr<missed_rows> made(new missed_rows);
    const auto                   n_nodes = static_cast<size_t>(last - first + 1);
    const size_t                 n_bytes =
        ggml_graph_overhead_custom(n_nodes, false) + n_nodes * (GGML_MAX_SRC + 2) * ggml_tensor_overhead();
    made->ctx = ggml_init({ n_bytes, nullptr, /* no_alloc = */ true });
    if (made->ctx == nullptr) {
        return nullptr;
    }
    made->n_used       = ids->ne[0];
    made->n_tokens     = ids->ne[1];
    made->router_ids   = ids;
    made->mirror       = &mirror;
    made->shadow_graph = ggml_new_graph_custom(made->ctx, n_nodes, false);
    for (int i = first; i <= last; i++) {
        if (!made->add_node(graph->nodes[i])) {
            return nullptr;
        }
    }
    for (int i = first; i <= last; i++) {
        ggml_tensor * node = graph->nodes[i];
        if (!needed_outside(graph, first, last, i)) {
            continue;
        }
        if (node->view_src != nullptr) {
            return nullptr;
        }
        made->outputs.push_back({ node, made->shadow_of.at(node) });
    }
    made->shadow_of.clear();
    made->mirror = nullptr;
    return made->ids_fetch != SIZE_MAX ? std::move(made) : nullptr;
}

// --- memory ---------------------------------------------------------------------------------------------------------------------

size_t missed_rows::lay_out(char * arena) {
    size_t     used = 0;
    const auto take = [&](size_t size_bytes) {
        char * at = arena != nullptr ? arena + used : nullptr;
        used += GGML_PAD(size_bytes, size_t(64));
        return at;
    };
    const auto n_rows = static_cast<size_t>(n_used * n_tokens);
    for (host_transfer & fetch : fetches) {
        fetch.host = take(fetch.size_bytes * fetch.n_rows);
    }
    for (operand & o : operands) {
        o.shadow->data = take(o.row_bytes * n_rows);
    }
    for (ggml_tensor * root : roots) {
        root->data = take(root->nb[1] * n_rows);
    }
    for (ggml_tensor * tensor : sized) {
        if (tensor->view_src != nullptr && arena != nullptr) {
            tensor->data = static_cast<char *>(tensor->view_src->data) + tensor->view_offs;
        }
    }
    return used;
}

const int32_t * missed_rows::ids() const {
    return reinterpret_cast<const int32_t *>(fetches[ids_fetch].host);
}

// --- run ------------------------------------------------------------------------------------------------------------------------

void missed_rows::pack(const std::vector<missed_row> & rows) {
    const auto n = static_cast<int64_t>(rows.size());
    for (operand & o : operands) {
        const char * from = fetches[o.fetch].host;
        char *       to   = static_cast<char *>(o.shadow->data);
        for (const missed_row & row : rows) {
            const size_t index = o.per_k ? row.token * static_cast<size_t>(n_used) + row.k : row.token;
            std::memcpy(to, from + index * o.row_bytes, o.row_bytes);
            to += o.row_bytes;
        }
        const bool is_ids            = o.fetch == ids_fetch;
        o.shadow->ne[is_ids ? 1 : 2] = n;
        o.shadow->nb[2]              = is_ids ? o.row_bytes * rows.size() : o.row_bytes;
        o.shadow->nb[3]              = o.row_bytes * rows.size();
    }
    for (ggml_tensor * tensor : sized) {
        tensor->ne[2] = n;
        tensor->nb[3] = tensor->nb[2] * rows.size();
    }
}

missed_rows::result_row missed_rows::result(size_t output, size_t i, const missed_row & row) const {
    ggml_tensor * tensor = outputs[output].tensor;
    const size_t  size   = outputs[output].shadow->nb[1];
    return { tensor, row.token * tensor->nb[2] + row.k * tensor->nb[1],
             static_cast<const char *>(outputs[output].shadow->data) + i * size, size };
}

} // namespace moecache
