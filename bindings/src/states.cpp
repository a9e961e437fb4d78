// bindings/src/states.cpp: session states as JSON text and files, in the form that the plugin reads and writes.
#include "arrays.h"
#include "core/state-file.h"

namespace nb = nanobind;
using namespace moecache;

static std::string format_state(const std::string & policy, bool per_layer, const std::vector<uint32_t> & slots,
                                const std::vector<column_tuple> & columns, const nb::dict & arrays,
                                const std::string & model) {
    saved_session saved;
    saved.model        = model;
    saved.state.policy = policy;
    saved.per_layer    = per_layer;
    saved.slots        = slots;
    saved.columns      = columns_of(columns);
    for (const auto & [name, values] : arrays) {
        const auto array = nb::cast<input<int64_t>>(values);
        saved.state.put(nb::cast<std::string>(name), { array.data(), array.data() + array.size() });
    }
    return saved_session_text(saved);
}

static nb::dict as_dict(const saved_session & saved) {
    std::vector<column_tuple> columns;
    for (const column_info & column : saved.columns) {
        columns.emplace_back(column.layer_id, column.family, column.n_experts, column.expert_bytes);
    }
    nb::dict arrays;
    for (const auto & [name, values] : saved.state.arrays()) {
        arrays[name.c_str()] = array_of(values);
    }
    nb::dict result;
    result["policy"]    = saved.state.policy;
    result["per_layer"] = saved.per_layer;
    result["slots"]     = nb::tuple(nb::cast(saved.slots));
    result["columns"]   = nb::tuple(nb::cast(columns));
    result["arrays"]    = arrays;
    result["model"]     = saved.model;
    return result;
}

void bind_states(nb::module_ & m) {
    m.def("format_state", &format_state, nb::arg("policy"), nb::arg("per_layer"), nb::arg("slots"), nb::arg("columns"),
          nb::arg("arrays"), nb::arg("model") = "", "A session state as JSON.");
    m.def(
        "parse_state",
        [](const std::string & text) {
            saved_session saved;
            require(saved_session_parse(text, saved));
            return as_dict(saved);
        },
        nb::arg("text"), "The arguments of format_state, by name. Raises ValueError.");
    m.def(
        "read_state",
        [](const std::string & path) {
            saved_session saved;
            require(saved_session_read(path, saved));
            return as_dict(saved);
        },
        nb::arg("path"), "The same of a file, which the message names. Raises ValueError.");
}
