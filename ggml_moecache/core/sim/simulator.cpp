#include "core/sim/simulator.h"

#include "core/policies/table.h"
#include "core/sim/engine.h"
#include "transfer/virtual-clock.h"

#include <algorithm>
#include <string>

namespace moecache {

simulator::simulator(const event_stream & e, const cache_geometry & g, const policy_spec & s, const sim_options & o) :
    events(e), geometry(g), spec(s), options(o) {}

std::string simulator::make(const event_stream & events, const cache_geometry & geometry, const policy_spec & spec,
                            const sim_options & options, std::unique_ptr<simulator> & out) {
    std::unique_ptr<simulator> made(new simulator(events, geometry, spec, options));
    const future *             ahead = spec.info->needs_future ? &events.ahead() : nullptr;
    const std::string          error = make_policy({ made->spec, made->geometry, ahead }, made->rules);
    if (!error.empty()) {
        return error;
    }
    uint32_t n_slots = 0;
    for (const uint32_t n : geometry.slots_of_budget) {
        n_slots += n;
    }
    if (options.clocked) {
        auto clock   = std::make_unique<virtual_clock>(n_slots, options.costs.copy_latency_ns,
                                                       options.costs.copy_bandwidth_bytes_per_s);
        made->clock  = clock.get();
        made->copies = std::move(clock);
    } else {
        made->copies = std::make_unique<instant_transfer>();
    }
    made->manager = std::make_unique<cache_manager>(made->geometry, *made->rules, *made->copies);
    made->so_far.column_accesses.assign(geometry.columns.size(), 0);
    made->so_far.column_hits.assign(geometry.columns.size(), 0);
    made->hit.resize(geometry.most_experts());
    if (options.victim_agreement) {
        made->meter = std::make_unique<victim_agreement>(events.ahead(), geometry);
    }
    if (options.log) {
        made->log_of_slot.assign(n_slots, 0);
    }
    out = std::move(made);
    return "";
}

void simulator::start() {
    started = true;
    manager->place();
    if (clock != nullptr) {
        clock->complete_all();
    }
    if (options.log) {
        std::vector<decision> placed;
        for (uint32_t slot = 0; slot < manager->n_slots(); slot++) {
            if (manager->item_of(slot) != no_item) {
                placed.push_back({ manager->item_of(slot), no_item });
            }
        }
        log_decisions(-1, placed);
    }
    manager->publish_all();
}

void simulator::run(uint64_t until_event) {
    if (!started) {
        start();
    }
    const uint64_t end = std::min<uint64_t>(until_event, events.n_events());
    for (; next_event < end; next_event++) {
        step(next_event);
    }
    so_far.counters = manager->counters(); // hits are counted here as well
}

void simulator::step(uint64_t index) {
    cache_event event = events.event(index);
    event.index += static_cast<uint64_t>(before.events);
    event.first_access += static_cast<uint64_t>(before.accesses);
    event.token += before.tokens;
    event.request += before.requests;
    if (clock != nullptr) {
        if (events.decode[index] && event.token != last_decode_token) {
            last_decode_token = event.token;
            clock->now_ns += options.costs.other_token_ns;
        }
        clock->now_ns += options.costs.other_layer_ns;
    }
    const std::vector<copy_outcome> & outcomes = manager->publish(event.column);
    if (options.log) {
        log_outcomes(outcomes);
    }
    const uint32_t n_hits = manager->look_up(event, hit.data());
    so_far.column_accesses[event.column] += event.n_items;
    so_far.decode_accesses += events.decode[index] ? event.n_items : 0;
    count_hits(so_far, event.column, event.n_items, n_hits, events.decode[index] != 0);
    const double gpu_ns = n_hits * options.costs.gpu_hit_ns;
    if (clock != nullptr) {
        clock->readers_done_ns = clock->now_ns + gpu_ns;
    }
    const std::vector<decision> & decisions = manager->decide(event);
    if (meter != nullptr) {
        const uint32_t budget = geometry.budget_of_column[event.column];
        meter->count(event, decisions, manager->held(budget), manager->n_held(budget));
        so_far.agreed = meter->agreed();
    }
    manager->apply();
    so_far.decode_admissions += events.decode[index] ? decisions.size() : 0;
    if (options.log) {
        so_far.log.hit.insert(so_far.log.hit.end(), hit.begin(), hit.begin() + event.n_items);
        log_decisions(static_cast<int64_t>(index), decisions);
    }
    if (clock != nullptr) {
        const uint32_t n_misses = event.n_items - n_hits;
        const double   cpu_ns   = n_misses == 0 ? 0 : options.costs.cpu_event_ns + n_misses * options.costs.cpu_miss_ns;
        clock->now_ns += std::max(gpu_ns, cpu_ns) + decisions.size() * options.costs.copy_event_ns;
    }
    manager->readers_finished(event.index);
}

void simulator::log_outcomes(const std::vector<copy_outcome> & outcomes) {
    for (const copy_outcome & outcome : outcomes) {
        so_far.log.copy_ready[log_of_slot[outcome.slot]] = outcome.ready ? 1 : 0;
    }
}

// REQUIRES: the decisions have been applied.
void simulator::log_decisions(int64_t event_index, const std::vector<decision> & decisions) {
    sim_log & log = so_far.log;
    for (const decision & d : decisions) {
        const uint32_t slot = manager->slot_of(d.admitted);
        log_of_slot[slot]   = log.admitted.size();
        log.admitted_event.push_back(event_index);
        log.admitted.push_back(d.admitted);
        log.evicted.push_back(d.evicted);
        log.copy_ready.push_back(-1);
        if (clock != nullptr) {
            log.copy_enqueued_ns.push_back(clock->enqueued_ns(slot));
            log.copy_ready_ns.push_back(clock->ready_ns(slot));
        }
    }
}

void simulator::save(session_state & state) const {
    state.policy = spec.canonical();
    manager->save(state);
    if (meter != nullptr) {
        meter->save(state);
    }
    session_clock now = before;
    now.events += static_cast<int64_t>(next_event);
    now.accesses += static_cast<int64_t>(events.offsets[next_event]);
    if (next_event > 0) {
        const auto newest =
            std::max_element(events.request.begin(), events.request.begin() + static_cast<std::ptrdiff_t>(next_event));
        now.tokens += events.token[next_event - 1] + 1;
        now.requests += *newest + 1;
    }
    now.save(state);
}

std::string simulator::load_parts(const session_state & state, session_clock & clock) {
    if (state.policy != spec.canonical()) {
        return "the session state is of policy " + state.policy + ", this one is " + spec.canonical();
    }
    std::string error = manager->load(state);
    error             = error.empty() && meter != nullptr ? meter->load(state) : error;
    started           = true;
    return error.empty() ? clock.load(state) : error;
}

std::string simulator::load(const session_state & state) {
    session_clock clock;
    std::string   error = load_parts(state, clock);
    if (error.empty() && static_cast<uint64_t>(clock.events) > events.n_events()) {
        error = "the session state goes on with event " + std::to_string(clock.events) + ", the trace has " +
                std::to_string(events.n_events());
    }
    next_event = static_cast<uint64_t>(clock.events);
    return error;
}

std::string simulator::load_from_start(const session_state & state, bool continues) {
    if (spec.info->needs_future || meter != nullptr) {
        return "a policy or a measure that sees the whole trace goes on in the same trace only";
    }
    const std::string error = load_parts(state, before);
    before.requests -= continues && before.requests > 0 ? 1 : 0;
    return error;
}

} // namespace moecache
