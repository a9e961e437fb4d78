#include "core/strategies/strategy-simulator.h"

#include <algorithm>

namespace moecache {

namespace {

constexpr uint32_t no_slot = UINT32_MAX;
constexpr double   mean_of = 64; // positions that the running means remember

struct slot_entry {
    uint32_t item            = no_item;
    double   ready_ns        = 0;
    uint64_t protected_until = 0; // no victim before this event is looked up
    uint64_t last_read       = 0; // 1 + event
    size_t   copy            = 0; // its entry in the log
};

class replay {
public:
    replay(const event_stream & e, const cache_geometry & g, const strategy_options & o, const forecast * f, scorer & s,
           strategy_result & r) :
        events(e), geometry(g), options(o), candidates(f), ranking(s), result(r),
        pool(o.order, static_cast<uint32_t>(g.columns.size()), o.least_lead), slot_of_item(g.n_items(), no_slot),
        pending(g.columns.size()) {
        first_slots.push_back(0);
        for (const uint32_t n : g.slots_of_budget) {
            first_slots.push_back(first_slots.back() + n);
        }
        slots.resize(first_slots.back());
        n_taken.assign(g.n_budgets(), 0);
        result.hit.reserve(e.items.size());
        if (o.victim_agreement) {
            meter = std::make_unique<victim_agreement>(e.ahead(), g);
        }
    }

    void run() {
        for (uint64_t index = 0; index < events.n_events(); index++) {
            step(index);
        }
        result.expired = pool.n_expired();
        result.end_ns  = end_ns;
    }

private:
    void step(uint64_t index) {
        const cache_event event  = events.event(index);
        double            lookup = end_ns + options.costs.other_layer_ns;
        if (events.decode[index] && event.token != last_decode_token) {
            last_decode_token = event.token;
            lookup += options.costs.other_token_ns;
        }
        if (index > 0) {
            lookup = prefetch_until(lookup, index - 1);
            position_ns += (lookup - now_ns - position_ns) / std::min<double>(mean_of, static_cast<double>(index));
        }
        now_ns = lookup;
        judge(event);
        const uint32_t n_hits   = look_up(event);
        const uint32_t n_misses = event.n_items - n_hits;
        const double   gpu_ns   = n_hits * options.costs.gpu_hit_ns;
        const double   cpu_ns   = n_misses == 0 ? 0 : options.costs.cpu_event_ns + n_misses * options.costs.cpu_miss_ns;
        readers_done_ns         = now_ns + gpu_ns;
        ranking.see(event);
        decisions.clear();
        if (meter != nullptr) {
            remember_content(geometry.budget_of_column[event.column]);
        }
        const size_t n_copies = result.copies.event.size();
        if (options.demand) {
            admit(event);
        }
        if (meter != nullptr) {
            meter->count(event, decisions, content.data(), static_cast<uint32_t>(content.size()));
            result.agreed = meter->agreed();
        }
        add_tasks(index);
        const size_t n_admitted = result.copies.event.size() - n_copies;
        end_ns = now_ns + std::max(gpu_ns, cpu_ns) + static_cast<double>(n_admitted) * options.costs.copy_event_ns;
    }

    // --- what became of copies ---

    void judge(const cache_event & event) {
        std::vector<pending_copy> & waiting = pending[event.column];
        size_t                      kept    = 0;
        for (const pending_copy & copy : waiting) {
            if (copy.prefetch && copy.deadline > event.index) {
                waiting[kept++] = copy;
                continue;
            }
            const slot_entry & slot = slots[copy.slot];
            const bool         held = slot.item == copy.item && slot.copy == copy.copy;
            if (held) {
                const bool ready                   = slot.ready_ns <= now_ns;
                result.copies.in_time[copy.copy]   = ready ? 1 : 0;
                result.copies.made_late[copy.copy] = !ready && !copy.prefetch && copy.ready_alone_ns <= now_ns ? 1 : 0;
            }
            if (copy.prefetch && copy.deadline == event.index) {
                result.copies.asked[copy.copy] =
                    std::find(event.items, event.items + event.n_items, copy.item) != event.items + event.n_items;
            }
        }
        waiting.resize(kept);
    }

    uint32_t look_up(const cache_event & event) {
        uint32_t n_hits = 0;
        for (uint32_t i = 0; i < event.n_items; i++) {
            const uint32_t slot = slot_of_item[event.items[i]];
            const bool     hit  = slot != no_slot && slots[slot].ready_ns <= now_ns;
            if (hit) {
                n_hits++;
                slots[slot].last_read                = event.index + 1;
                result.copies.used[slots[slot].copy] = 1;
            }
            result.hit.push_back(hit ? 1 : 0);
        }
        result.accesses += event.n_items;
        result.hits += n_hits;
        return n_hits;
    }

    // --- demand ---

    struct ranked {
        score    rank;
        uint32_t item;
        bool     worse_than(const ranked & other) const {
            return rank == other.rank ? item > other.item : rank < other.rank;
        }
    };

    // The rule of ranked policies (core/policies/README.md), but protected slots are no victims.
    void admit(const cache_event & event) {
        newcomers.clear();
        for (uint32_t i = 0; i < event.n_items; i++) {
            if (slot_of_item[event.items[i]] == no_slot) {
                newcomers.push_back({ ranking.of(event.items[i]), event.items[i] });
            }
        }
        std::sort(newcomers.begin(), newcomers.end(),
                  [](const ranked & a, const ranked & b) { return b.worse_than(a); });
        const uint32_t budget = geometry.budget_of_column[event.column];
        for (const ranked & newcomer : newcomers) {
            uint32_t slot = empty_slot(budget);
            if (slot == no_slot) {
                slot = worst_slot(budget, event.index, now_ns, false);
                if (slot == no_slot || !(ranking.of(slots[slot].item) < newcomer.rank)) {
                    return;
                }
            }
            if (slots[slot].item != no_item) {
                decisions.push_back({ newcomer.item, slots[slot].item });
                result.demand_victims++;
            }
            copy_into(slot, newcomer.item, event.index, now_ns, nullptr);
        }
    }

    void remember_content(uint32_t budget) {
        content.clear();
        for (uint32_t slot = first_slots[budget]; slot < first_slots[budget] + n_taken[budget]; slot++) {
            content.push_back(slots[slot].item);
        }
    }

    // --- prefetching ---

    void add_tasks(uint64_t index) {
        if (candidates == nullptr) {
            return;
        }
        for (uint64_t i = candidates->offsets[index]; i < candidates->offsets[index + 1]; i++) {
            if (!(candidates->confidence[i] >= options.least_confidence)) {
                continue;
            }
            result.tasks++;
            if (slot_of_item[candidates->items[i]] != no_slot) {
                result.held_already++;
            } else {
                pool.add({ candidates->items[i], index + candidates->ahead[i], candidates->confidence[i], 0 });
            }
        }
    }

    // Fill the idle link between the look-up of event `position` and the next one, at `lookup` if nothing is sent: each
    // copy that is handed over takes time from the event in which it is. Returns when the next look-up is.
    double prefetch_until(double lookup, uint64_t position) {
        const double copy_ns  = copy_time(mean_bytes());
        const double idle_ns  = std::max(0.0, lookup - std::max(queue_free_ns, now_ns));
        const double possible = copy_ns > 0 ? idle_ns / copy_ns : 0;
        copies_left           = copies_per_position;
        while (pool.size() > 0) {
            const double start = std::max(queue_free_ns, now_ns);
            if (start >= lookup) {
                break;
            }
            const link_state link = {
                position, copies_left, copies_per_position, start - now_ns, copy_ns, position_ns
            };
            prefetch_task task;
            if (!pool.next(link, task)) {
                break;
            }
            if (begin(task, position, start)) {
                copies_left--;
                lookup += options.costs.copy_event_ns;
            }
        }
        copies_per_position +=
            (possible - copies_per_position) / std::min<double>(mean_of, static_cast<double>(position + 1));
        return lookup;
    }

    bool begin(const prefetch_task & task, uint64_t position, double start) {
        if (slot_of_item[task.item] != no_slot) {
            result.held_already++;
            return false;
        }
        const uint32_t budget = geometry.budget_of_item(task.item);
        uint32_t       slot   = empty_slot(budget);
        if (slot == no_slot) {
            slot = worst_slot(budget, position, start, true);
            if (slot == no_slot || (options.only_better && !(ranking.of(slots[slot].item) < ranking.of(task.item)))) {
                result.without_slot++;
                return false;
            }
        }
        copy_into(slot, task.item, position, start, &task);
        return true;
    }

    // --- slots ---

    uint32_t empty_slot(uint32_t budget) const {
        const uint32_t next = first_slots[budget] + n_taken[budget];
        return next < first_slots[budget + 1] ? next : no_slot;
    }

    // The lowest score of the budget that is not protected at `position`; `complete`: nor on its way.
    uint32_t worst_slot(uint32_t budget, uint64_t position, double at_ns, bool complete) const {
        uint32_t worst = no_slot;
        ranked   least = {};
        for (uint32_t slot = first_slots[budget]; slot < first_slots[budget + 1]; slot++) {
            const slot_entry & entry = slots[slot];
            if (entry.item == no_item || entry.protected_until > position || (complete && entry.ready_ns > at_ns)) {
                continue;
            }
            const ranked own = { ranking.of(entry.item), entry.item };
            if (worst == no_slot || own.worse_than(least)) {
                worst = slot;
                least = own;
            }
        }
        return worst;
    }

    void copy_into(uint32_t slot, uint32_t item, uint64_t event, double from_ns, const prefetch_task * task) {
        slot_entry & entry = slots[slot];
        if (entry.item == no_item) {
            n_taken[geometry.budget_of_item(item)]++;
        } else {
            slot_of_item[entry.item] = no_slot;
            result.evictions++;
        }
        const uint64_t bytes    = geometry.columns[geometry.column_of_item[item]].expert_bytes;
        const double   readable = entry.last_read == event + 1 ? std::max(from_ns, readers_done_ns) : from_ns;
        const double   ready    = std::max(readable, queue_free_ns) + copy_time(bytes);
        double         alone    = ready; // without any prefetch in the queue
        queue_free_ns           = ready;
        if (task == nullptr) {
            alone          = std::max(readable, demand_free_ns) + copy_time(bytes);
            demand_free_ns = alone;
            result.demand_delay_ns += ready - alone;
        }
        const size_t copy = result.copies.event.size();
        log_copy(event, task != nullptr, ready > alone);
        entry              = { item, ready, task != nullptr ? task->deadline : 0, 0, copy };
        slot_of_item[item] = slot;
        result.copy_bytes += bytes;
        pending[geometry.column_of_item[item]].push_back(
            { slot, item, copy, task != nullptr, task != nullptr ? task->deadline : 0, alone });
    }

    void log_copy(uint64_t event, bool prefetch, bool delayed) {
        strategy_copies & log = result.copies;
        log.event.push_back(static_cast<int64_t>(event));
        log.prefetch.push_back(prefetch ? 1 : 0);
        log.in_time.push_back(-1);
        log.asked.push_back(0);
        log.used.push_back(0);
        log.delayed.push_back(delayed ? 1 : 0);
        log.made_late.push_back(0);
    }

    double copy_time(uint64_t bytes) const {
        return options.costs.copy_latency_ns +
               static_cast<double>(bytes) / (options.costs.copy_bandwidth_bytes_per_s * 1e-9);
    }

    uint64_t mean_bytes() const {
        uint64_t total = 0;
        for (const column_info & column : geometry.columns) {
            total += column.expert_bytes;
        }
        return total / geometry.columns.size();
    }

    struct pending_copy {
        uint32_t slot;
        uint32_t item;
        size_t   copy;
        bool     prefetch;
        uint64_t deadline;
        double   ready_alone_ns;
    };

    const event_stream &                   events;
    const cache_geometry &                 geometry;
    const strategy_options &               options;
    const forecast *                       candidates;
    scorer &                               ranking;
    strategy_result &                      result;
    task_pool                              pool;
    std::vector<uint32_t>                  first_slots; // [budgets + 1]
    std::vector<uint32_t>                  n_taken;     // [budgets]
    std::vector<slot_entry>                slots;
    std::vector<uint32_t>                  slot_of_item; // [items]
    std::vector<std::vector<pending_copy>> pending;      // [columns] copies that are not judged yet
    std::vector<ranked>                    newcomers;
    std::vector<decision>                  decisions; // of the event at hand: those with a victim
    std::vector<uint32_t>                  content;   // of its budget, before them
    std::unique_ptr<victim_agreement>      meter;     // NULL: not wanted
    int64_t                                last_decode_token   = -1;
    double                                 now_ns              = 0; // look-up of the event at hand
    double                                 end_ns              = 0; // end of the event before
    double                                 readers_done_ns     = 0;
    double                                 queue_free_ns       = 0;
    double                                 demand_free_ns      = 0; // if there were demand copies only
    double                                 position_ns         = 0; // mean
    double                                 copies_per_position = 0; // mean of what the idle link could carry
    double                                 copies_left         = 0;
};

} // namespace

std::string replay_strategy(const event_stream & events, const cache_geometry & geometry,
                            const strategy_options & options, const score_table * scores, const forecast * candidates,
                            strategy_result & out) {
    std::unique_ptr<scorer> ranking;
    const std::string       error = make_scorer(options.scorer, options.half_life_tokens, geometry, scores, ranking);
    if (!error.empty()) {
        return error;
    }
    replay(events, geometry, options, candidates, *ranking, out).run();
    return "";
}

} // namespace moecache
