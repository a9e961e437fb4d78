// The Python module ggml_moecache._native: its table of contents. One file per topic binds the rest.
#include "core/policies/default-policy.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_simulation(nb::module_ & m);
void bind_states(nb::module_ & m);
void bind_strategies(nb::module_ & m);
void bind_tables(nb::module_ & m);

NB_MODULE(_native, m) {
    m.doc()                  = "Tables and types of the C++ core; see ggml_moecache for the public names.";
    m.attr("version")        = MOECACHE_VERSION;
    m.attr("ggml_version")   = MOECACHE_GGML_VERSION;
    m.attr("default_policy") = moecache::default_policy;
    bind_simulation(m);
    bind_states(m);
    bind_strategies(m);
    bind_tables(m);
}
