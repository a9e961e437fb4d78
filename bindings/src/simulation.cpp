// bindings/src/simulation.cpp: the policy table, event streams and the simulator.
#include "arrays.h"
#include "core/capacity.h"
#include "core/policies/table.h"
#include "core/sim/sweep.h"
#include "event-stream.h"

#include <nanobind/stl/unique_ptr.h>

namespace nb = nanobind;
using namespace moecache;

static std::unique_ptr<bound_stream> make_stream(const std::vector<column_tuple> & columns, input<int64_t> order,
                                                 input<int32_t> ids, input<int64_t> column, input<int64_t> token,
                                                 input<int64_t> request, input<uint8_t> phase, input<int64_t> unit,
                                                 bool per_access) {
    auto       result = std::make_unique<bound_stream>();
    trace_rows rows;
    if (ids.ndim() != 2) {
        throw std::invalid_argument("ids must have the shape [rows, k]");
    }
    rows.n_rows = order.size();
    rows.k      = ids.shape(1);
    for (const size_t n : { column.size(), token.size(), request.size(), phase.size(), unit.size() }) {
        if (n != ids.shape(0)) {
            throw std::invalid_argument("column, token, request, phase and unit must have one entry per row");
        }
    }
    for (size_t i = 0; i < rows.n_rows; i++) {
        if (order.data()[i] < 0 || order.data()[i] >= static_cast<int64_t>(ids.shape(0))) {
            throw std::invalid_argument("order must name rows");
        }
    }
    rows.order           = order.data();
    rows.ids             = ids.data();
    rows.column          = column.data();
    rows.token           = token.data();
    rows.request         = request.data();
    rows.phase           = phase.data();
    rows.unit            = unit.data();
    result->columns      = columns_of(columns);
    const auto  geometry = cache_geometry::make(result->columns, true);
    std::string error;
    {
        const nb::gil_scoped_release release;
        error = event_stream::make(rows, geometry, per_access, result->stream);
    }
    require(error);
    return result;
}

static policy_spec parse(const std::string & text, int64_t seed) {
    policy_spec spec;
    require(policy_spec::parse(text, spec));
    if (spec.has("seed")) {
        require(spec.set_default("seed", std::to_string(seed)));
    }
    return spec;
}

static std::vector<std::tuple<uint32_t, uint64_t>> budgets(const std::vector<column_tuple> & columns, bool per_column) {
    const auto                                  geometry = cache_geometry::make(columns_of(columns), per_column);
    std::vector<std::tuple<uint32_t, uint64_t>> result;
    for (uint32_t budget = 0; budget < geometry.n_budgets(); budget++) {
        size_t column = 0;
        while (geometry.budget_of_column[column] != budget) {
            column++;
        }
        result.emplace_back(geometry.items_of_budget[budget], geometry.columns[column].expert_bytes);
    }
    return result;
}

static std::vector<uint32_t> capacity_slots(const std::vector<column_tuple> & columns, bool per_column,
                                            const std::string & text) {
    capacity_setting capacity;
    require(capacity_setting::parse(text, capacity) && capacity.kind != capacity_kind::automatic ?
                "" :
                "capacity must be a number of experts, a share, a size, or all. Got '" + text + "' instead.");
    std::vector<uint32_t> slots;
    require(capacity.slots(cache_geometry::make(columns_of(columns), per_column), per_column, 0, slots));
    return slots;
}

static std::vector<sim_result> simulate(const bound_stream & s, bool per_column, const std::string & policy,
                                        int64_t seed, const std::vector<std::vector<uint32_t>> & slots,
                                        const sim_options & options) {
    const policy_spec       spec     = parse(policy, seed);
    const auto              geometry = cache_geometry::make(s.columns, per_column);
    std::vector<sim_result> results;
    std::string             error;
    {
        const nb::gil_scoped_release release;
        error = simulate_capacities(s.stream, geometry, spec, slots, options, results);
    }
    require(error);
    return results;
}

// --- the simulator step by step ---

struct bound_simulator {
    nb::object                 stream; // keeps it alive
    uint64_t                   n_events = 0;
    std::unique_ptr<simulator> sim;
};

static std::unique_ptr<bound_simulator> make_simulator(nb::object stream, bool per_column, const std::string & policy,
                                                       int64_t seed, const std::vector<uint32_t> & slots,
                                                       const sim_options & options) {
    const auto & s        = nb::cast<const bound_stream &>(stream);
    auto         geometry = cache_geometry::make(s.columns, per_column);
    auto         result   = std::make_unique<bound_simulator>();
    require(geometry.set_slots(slots));
    require(simulator::make(s.stream, geometry, parse(policy, seed), options, result->sim));
    result->stream   = std::move(stream);
    result->n_events = s.stream.n_events();
    return result;
}

static nb::dict save(const bound_simulator & s) {
    session_state state;
    s.sim->save(state);
    nb::dict arrays;
    for (const auto & [name, values] : state.arrays()) {
        arrays[name.c_str()] = array_of(values);
    }
    nb::dict result;
    result["policy"] = state.policy;
    result["arrays"] = arrays;
    return result;
}

static void load(bound_simulator & s, const nb::dict & saved, bool from_start, bool continues) {
    session_state state;
    state.policy = nb::cast<std::string>(saved["policy"]);
    for (const auto & [name, values] : nb::cast<nb::dict>(saved["arrays"])) {
        const auto array = nb::cast<input<int64_t>>(values);
        state.put(nb::cast<std::string>(name), { array.data(), array.data() + array.size() });
    }
    require(from_start ? s.sim->load_from_start(state, continues) : s.sim->load(state));
}

// (slot, item, state) of every slot that is not empty.
static std::vector<std::tuple<uint32_t, uint32_t, std::string>> slots_of(const bound_simulator & s) {
    static const char * const                                names[] = { "empty", "loading", "resident", "draining" };
    std::vector<std::tuple<uint32_t, uint32_t, std::string>> result;
    const cache_manager &                                    cache = s.sim->cache();
    for (uint32_t slot = 0; slot < cache.n_slots(); slot++) {
        if (cache.item_of(slot) != no_item) {
            result.emplace_back(slot, cache.item_of(slot), names[cache.state_of(slot)]);
        }
    }
    return result;
}

static void bind_policies(nb::module_ & m) {
    nb::class_<parameter_info>(m, "PolicyParameter", "One parameter of a policy.")
        .def_ro("name", &parameter_info::name, "As in name:parameter=value.")
        .def_ro("unit", &parameter_info::unit, "Empty: none.")
        .def_ro("default", &parameter_info::default_value, "Empty: it must be given.")
        .def_ro("values", &parameter_info::values, "What it takes; of a choice the words, separated by |.")
        .def_ro("summary", &parameter_info::summary);
    nb::class_<policy_info>(m, "Policy", "One line of the table of policies.")
        .def_ro("name", &policy_info::name)
        .def_ro("summary", &policy_info::summary)
        .def_ro("parameters", &policy_info::parameters)
        .def_ro("needs_future", &policy_info::needs_future, "It can be simulated, not run.")
        .def_ro("per_access_only", &policy_info::per_access_only, "It exists for comparisons in per-access replay.");
    m.def(
        "policies",
        [] {
            std::vector<policy_info> result;
            for (const policy_entry & entry : policy_table()) {
                result.push_back(entry.info);
            }
            return result;
        },
        "All policies, in the order of the documentation.");
    m.def(
        "canonical_policy", [](const std::string & text, int64_t seed) { return parse(text, seed).canonical(); },
        nb::arg("policy"), nb::arg("seed") = 0,
        "The policy as its results name it: parameters that are not the default. Raises ValueError.");
}

static void bind_results(nb::module_ & m) {
    nb::class_<sim_options>(m, "SimulationOptions", "How to replay; times in nanoseconds.")
        .def(nb::init<>())
        .def_rw("clocked", &sim_options::clocked)
        .def_rw("victim_agreement", &sim_options::victim_agreement)
        .def_rw("log", &sim_options::log)
        .def_prop_rw(
            "costs",
            [](const sim_options & o) {
                const sim_costs & c = o.costs;
                return std::vector<double> { c.cpu_miss_ns,
                                             c.cpu_event_ns,
                                             c.gpu_hit_ns,
                                             c.other_layer_ns,
                                             c.other_token_ns,
                                             c.copy_latency_ns,
                                             c.copy_bandwidth_bytes_per_s,
                                             c.copy_event_ns };
            },
            [](sim_options & o, const std::vector<double> & c) {
                if (c.size() != 8) {
                    throw std::invalid_argument("costs must be eight numbers");
                }
                o.costs = { c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7] };
            });
    nb::class_<sim_result>(m, "SimulationCounts", "What a replay has counted.")
        .def_prop_ro("n_events", [](const sim_result & r) { return r.counters.n_events; })
        .def_prop_ro("accesses", [](const sim_result & r) { return r.counters.accesses; })
        .def_prop_ro("hits", [](const sim_result & r) { return r.counters.hits; })
        .def_prop_ro("admissions", [](const sim_result & r) { return r.counters.admissions; })
        .def_prop_ro("evictions", [](const sim_result & r) { return r.counters.evictions; })
        .def_prop_ro("copy_bytes", [](const sim_result & r) { return r.counters.copy_bytes; })
        .def_prop_ro("copies_late", [](const sim_result & r) { return r.counters.copies_late; })
        .def_ro("decode_accesses", &sim_result::decode_accesses)
        .def_ro("decode_admissions", &sim_result::decode_admissions)
        .def_ro("decode_hits", &sim_result::decode_hits)
        .def_ro("column_accesses", &sim_result::column_accesses)
        .def_ro("column_hits", &sim_result::column_hits)
        .def_ro("agreed", &sim_result::agreed)
        .def_ro("decode_events", &sim_result::decode_events, "[n][h]: decode events of n experts of which h hit.")
        .def(
            "log",
            [](const sim_result & r) {
                nb::dict result;
                result["hit"]              = array_of(r.log.hit);
                result["admitted_event"]   = array_of(r.log.admitted_event);
                result["admitted"]         = array_of(r.log.admitted);
                result["evicted"]          = array_of(r.log.evicted);
                result["copy_enqueued_ns"] = array_of(r.log.copy_enqueued_ns);
                result["copy_ready_ns"]    = array_of(r.log.copy_ready_ns);
                result["copy_ready"]       = array_of(r.log.copy_ready);
                return result;
            },
            "The decisions as arrays by name.");
}

void bind_simulation(nb::module_ & m) {
    bind_policies(m);
    bind_results(m);
    nb::class_<bound_stream>(m, "EventStream", "The events of a trace, as the simulator replays them.")
        .def_static("make", &make_stream, nb::arg("columns"), nb::arg("order"), nb::arg("ids"), nb::arg("column"),
                    nb::arg("token"), nb::arg("request"), nb::arg("phase"), nb::arg("unit"), nb::arg("per_access"))
        .def_prop_ro("n_events", [](const bound_stream & s) { return s.stream.n_events(); })
        .def_prop_ro("n_accesses", [](const bound_stream & s) { return s.stream.items.size(); })
        .def("offsets", [](const bound_stream & s) { return array_of(s.stream.offsets); })
        .def("items", [](const bound_stream & s) { return array_of(s.stream.items); })
        .def("column", [](const bound_stream & s) { return array_of(s.stream.column); })
        .def("token", [](const bound_stream & s) { return array_of(s.stream.token); })
        .def("request", [](const bound_stream & s) { return array_of(s.stream.request); })
        .def("row", [](const bound_stream & s) { return array_of(s.stream.row); })
        .def("decode", [](const bound_stream & s) { return array_of(s.stream.decode); });
    m.def("budgets", &budgets, nb::arg("columns"), nb::arg("per_column"),
          "(experts, bytes of an expert or 0) of each budget.");
    m.def("capacity_slots", &capacity_slots, nb::arg("columns"), nb::arg("per_column"), nb::arg("text"),
          "Slots of each budget at a capacity as the runtime reads it. Raises ValueError.");
    m.def(
        "one_pass",
        [](const bound_stream & s, bool per_column, const std::string & policy, const sim_options & options) {
            return sweeps_in_one_pass(s.stream, cache_geometry::make(s.columns, per_column), parse(policy, 0), options);
        },
        nb::arg("stream"), nb::arg("per_column"), nb::arg("policy"), nb::arg("options"),
        "Whether simulate() takes one pass for all capacities.");
    m.def("simulate", &simulate, nb::arg("stream"), nb::arg("per_column"), nb::arg("policy"), nb::arg("seed"),
          nb::arg("slots"), nb::arg("options"), "One result per capacity. Releases the GIL. Raises ValueError.");
    nb::class_<bound_simulator>(m, "Simulator", "A replay that can be stopped, saved and gone on with.")
        .def_static("make", &make_simulator, nb::arg("stream"), nb::arg("per_column"), nb::arg("policy"),
                    nb::arg("seed"), nb::arg("slots"), nb::arg("options"))
        .def(
            "run", [](bound_simulator & s, uint64_t until) { s.sim->run(until); }, nb::arg("until_event"),
            "Replay up to this event, which is not replayed.")
        .def("counts", [](const bound_simulator & s) { return s.sim->result(); })
        .def("slots", &slots_of, "(slot, item, state) of every slot that is not empty.")
        .def(
            "check", [](const bound_simulator & s) { return s.sim->cache().check(); },
            "Empty, or the first invariant of the slots that does not hold.")
        .def("save", &save, "The session's state.")
        .def(
            "load", &load, nb::arg("state"), nb::arg("from_start") = false, nb::arg("continues") = false,
            "Go on from a saved state: in its trace, or `from_start` of another one, whose first request is the state's "
            "last one if it `continues`. Raises ValueError.");
}
