// Missed rows: the CPU's part of an MoE block of which the device computes the rest.
//
// The block's operations work row by row: row (token, k) of every result depends on row (token, k), or on row `token`,
// of the operands. So the CPU computes them on n rows packed together: results [d, n_used, n_tokens] become [d, 1, n],
// router ids [n_used, n_tokens] become [1, n]. Forms that are not of this kind are refused by make(), and the CPU
// computes the whole block.
#pragma once

#include "backend/expert-cache.h"
#include "backend/graph-plan.h"

#include <memory>
#include <unordered_map>
#include <vector>

namespace moecache {

class missed_rows {
public:
    // The CPU's part of nodes [first, last] of `graph`, all of them of the block that has the router ids `ids`. nullptr
    // when a node does not work row by row.
    static std::unique_ptr<missed_rows> make(ggml_cgraph * graph, int first, int last, const ggml_tensor * ids,
                                             const weight_mirror & mirror);
    ~missed_rows();
    missed_rows(const missed_rows &)             = delete;
    missed_rows & operator=(const missed_rows &) = delete;

    // Lay the host memory out, from `arena` on; nullptr: only learn how much is needed. Returns the bytes.
    size_t lay_out(char * arena);

    // What must be fetched before route(); ids() is among them and may be read then.
    const std::vector<host_transfer> & inputs() const { return fetches; }
    const int32_t *                    ids() const;

    // Pack the rows' operands. The graph to compute then is graph().
    void          pack(const std::vector<missed_row> & rows);
    ggml_cgraph * graph() { return shadow_graph; }

    // Where the results of the i-th row go: for each tensor that nodes outside need.
    struct result_row {
        ggml_tensor * tensor;
        size_t        offset;
        const char *  host;
        size_t        size_bytes;
    };
    size_t     n_results() const { return outputs.size(); }
    result_row result(size_t output, size_t i, const missed_row & row) const;

private:
    // An operand from outside: fetched whole, then packed.
    struct operand {
        ggml_tensor * shadow    = nullptr; // [d, 1, n]; ids: [1, n]
        size_t        fetch     = 0;       // index in fetches
        size_t        row_bytes = 0;
        bool          per_k     = false; // row (token, k), else row `token`
    };
    struct output {
        ggml_tensor * tensor = nullptr;
        ggml_tensor * shadow = nullptr;
    };

    missed_rows() = default;
    bool          add_node(ggml_tensor * node);
    ggml_tensor * resolve(ggml_tensor * src);
    ggml_tensor * add_weight(ggml_tensor * src);
    ggml_tensor * add_operand(ggml_tensor * src);
    ggml_tensor * copy_of(const ggml_tensor * tensor);

    int64_t               n_used       = 0;
    int64_t               n_tokens     = 0;
    const ggml_tensor *   router_ids   = nullptr;
    size_t                ids_fetch    = SIZE_MAX;
    const weight_mirror * mirror       = nullptr; // only inside make()
    ggml_context *        ctx          = nullptr;
    ggml_cgraph *         shadow_graph = nullptr;

    std::unordered_map<const ggml_tensor *, ggml_tensor *> shadow_of; // only inside make()
    std::vector<ggml_tensor *>                             roots;     // results with memory of their own
    std::vector<ggml_tensor *>                             sized;     // tensors whose ne[2] is the number of rows
    std::vector<operand>                                   operands;
    std::vector<host_transfer>                             fetches;
    std::vector<output>                                    outputs;
};

} // namespace moecache
