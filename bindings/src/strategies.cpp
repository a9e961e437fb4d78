// bindings/src/strategies.cpp: the replay of strategies that prefetch or are ranked by scores made outside.
#include "core/strategies/strategy-simulator.h"
#include "event-stream.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

namespace nb = nanobind;
using namespace moecache;

using scores_input   = std::tuple<input<float>, input<int64_t>>;
using forecast_input = std::tuple<input<uint64_t>, input<uint32_t>, input<uint32_t>, input<float>>;

static score_table table_of(const scores_input & given, const event_stream & events, const cache_geometry & geometry) {
    const auto & [values, rows] = given;
    if (values.ndim() != 2 || rows.size() != events.n_events()) {
        throw std::invalid_argument("scores must have the shape [rows, experts], and one row number per event");
    }
    const score_table table = { values.data(), rows.data(), static_cast<uint32_t>(values.shape(1)) };
    require(check_scores(table, events.n_events(), values.shape(0), geometry.most_experts()));
    return table;
}

static forecast forecast_of(const forecast_input & given, const event_stream & events,
                            const cache_geometry & geometry) {
    const auto & [offsets, items, ahead, confidence] = given;
    if (offsets.size() != events.n_events() + 1 || items.size() != ahead.size() || items.size() != confidence.size()) {
        throw std::invalid_argument("a forecast must have events + 1 offsets, and as many items as deadlines and "
                                    "confidences");
    }
    const forecast made = { offsets.data(), items.data(), ahead.data(), confidence.data() };
    require(check_forecast(made, events.n_events(), items.size(), geometry.n_items()));
    return made;
}

static strategy_options options_of(const nb::dict & given, const std::vector<double> & c) {
    strategy_options options;
    options.scorer           = nb::cast<std::string>(given["scorer"]);
    options.half_life_tokens = nb::cast<double>(given["half_life_tokens"]);
    options.demand           = nb::cast<bool>(given["demand"]);
    options.least_lead       = nb::cast<uint32_t>(given["least_lead"]);
    options.least_confidence = nb::cast<double>(given["least_confidence"]);
    options.only_better      = nb::cast<bool>(given["only_better"]);
    options.victim_agreement = nb::cast<bool>(given["victim_agreement"]);
    const auto order         = nb::cast<std::string>(given["order"]);
    require(parse_order(order, options.order) ? "" : "there is no order of prefetches '" + order + "'");
    require(c.size() == 8 ? "" : "costs must be eight numbers");
    options.costs = { c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7] };
    return options;
}

static nb::dict as_dict(strategy_result && r) {
    nb::dict result;
    result["accesses"]        = r.accesses;
    result["hits"]            = r.hits;
    result["evictions"]       = r.evictions;
    result["copy_bytes"]      = r.copy_bytes;
    result["tasks"]           = r.tasks;
    result["expired"]         = r.expired;
    result["held_already"]    = r.held_already;
    result["without_slot"]    = r.without_slot;
    result["end_ns"]          = r.end_ns;
    result["demand_delay_ns"] = r.demand_delay_ns;
    result["demand_victims"]  = r.demand_victims;
    result["agreed"]          = r.agreed;
    result["hit"]             = array_of(std::move(r.hit));
    result["copy_event"]      = array_of(std::move(r.copies.event));
    result["prefetch"]        = array_of(std::move(r.copies.prefetch));
    result["in_time"]         = array_of(std::move(r.copies.in_time));
    result["asked"]           = array_of(std::move(r.copies.asked));
    result["used"]            = array_of(std::move(r.copies.used));
    result["delayed"]         = array_of(std::move(r.copies.delayed));
    result["made_late"]       = array_of(std::move(r.copies.made_late));
    return result;
}

static nb::dict replay(const bound_stream & s, bool per_column, const std::vector<uint32_t> & slots,
                       const nb::dict & given, const std::vector<double> & costs,
                       const std::optional<scores_input> & scores, const std::optional<forecast_input> & candidates) {
    auto geometry = cache_geometry::make(s.columns, per_column);
    require(geometry.set_slots(slots));
    const strategy_options options = options_of(given, costs);
    score_table            table;
    forecast               made;
    if (scores) {
        table = table_of(*scores, s.stream, geometry);
    }
    if (candidates) {
        made = forecast_of(*candidates, s.stream, geometry);
    }
    strategy_result result;
    std::string     error;
    {
        const nb::gil_scoped_release release;
        error = replay_strategy(s.stream, geometry, options, scores ? &table : nullptr, candidates ? &made : nullptr,
                                result);
    }
    require(error);
    return as_dict(std::move(result));
}

// The selection of the scheduling order alone, for tasks numbered by their place.
static std::vector<uint32_t> schedule(const std::vector<uint64_t> & deadlines, const std::vector<double> & confidence,
                                      const std::vector<double> & capacity) {
    std::vector<prefetch_task> tasks;
    require(deadlines.size() == confidence.size() ? "" : "deadlines and confidences must be as many");
    for (uint32_t i = 0; i < deadlines.size(); i++) {
        require(deadlines[i] < capacity.size() ? "" : "capacity must have an entry for every deadline");
        tasks.push_back({ i, deadlines[i], confidence[i], i });
    }
    std::vector<uint32_t> result;
    for (const prefetch_task & task : feasible(tasks, [&](uint64_t deadline) { return capacity[deadline]; })) {
        result.push_back(task.item);
    }
    return result;
}

void bind_strategies(nb::module_ & m) {
    m.def("replay_strategy", &replay, nb::arg("stream"), nb::arg("per_column"), nb::arg("slots"), nb::arg("options"),
          nb::arg("costs"), nb::arg("scores") = nb::none(), nb::arg("forecast") = nb::none(),
          "The clocked replay of a strategy, core/strategies. Releases the GIL. Raises ValueError.");
    m.def("schedule", &schedule, nb::arg("deadlines"), nb::arg("confidence"), nb::arg("capacity"),
          "Job sequencing with deadlines: the tasks (by place) with the most confidence such that at most capacity[d] "
          "of them have a deadline of d or earlier.");
}
