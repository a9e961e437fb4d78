// bindings/src/tables.cpp: the configuration variables and the reason codes, as Python lists.
#include "core/capacity.h"
#include "core/config.h"
#include "core/reasons.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

namespace nb = nanobind;

static std::vector<moecache::variable_info> variables() {
    size_t                          n     = 0;
    const moecache::variable_info * table = moecache::variable_table(n);
    return { table, table + n };
}

static std::vector<moecache::reason_info> reasons() {
    size_t                        n     = 0;
    const moecache::reason_info * table = moecache::reason_table(n);
    return { table, table + n };
}

void bind_tables(nb::module_ & m) {
    nb::class_<moecache::variable_info>(m, "Variable", "One setting of the plugin.")
        .def_ro("name", &moecache::variable_info::name, "As in the environment.")
        .def_ro("default", &moecache::variable_info::default_value, "Empty: none.")
        .def_ro("values", &moecache::variable_info::values, "What it takes.")
        .def_ro("summary", &moecache::variable_info::summary);
    m.def("variables", &variables, "All settings of the plugin, in the order of the documentation.");
    m.def("unknown_variables", &moecache::config_unknown,
          "Variables of the environment that begin as ours do and are none, in rising order.");

    nb::class_<moecache::reason_info>(m, "Reason", "Why the cache, or a part of it, does not do what was asked.")
        .def_ro("name", &moecache::reason_info::name, "As in the log and in the status.")
        .def_ro("text", &moecache::reason_info::text, "What it means and what to do about it.");
    m.def(
        "is_capacity",
        [](const std::string & text) {
            moecache::capacity_setting ignored;
            return moecache::capacity_setting::parse(text, ignored);
        },
        nb::arg("text"), "Whether the plugin takes it for a capacity: 12, 25%, 2GiB, auto, all.");
    m.attr("MAX_UBATCH_TOKENS") = moecache::max_ubatch_tokens;
    m.attr("capacity_rule")     = moecache::capacity_setting::rule();
    m.def("reasons", &reasons, "All reason codes; the first one is 'none'.");
}
