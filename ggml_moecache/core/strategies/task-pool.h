// Prefetches that wait for the link, and the orders in which they get it. A position is an event; a task whose expert
// is asked for at event d is in time if its copy is complete when event d is looked up.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace moecache {

struct prefetch_task {
    uint32_t item       = 0;
    uint64_t deadline   = 0; // event
    double   confidence = 0;
    uint64_t arrival    = 0; // tasks are numbered as they come
};

// What an order may look at: all of it is known at run time.
struct link_state {
    uint64_t position            = 0; // the event that was looked up last
    double   copies_left         = 1; // copies that the link is expected to begin before the next position
    double   copies_per_position = 1; // mean
    double   wait_ns             = 0; // until the link is free, from the look-up of `position`
    double   copy_ns             = 0; // of one expert
    double   position_ns         = 0; // mean time between two look-ups
};

enum class task_order {
    arrival,    // first come, first served
    deadline,   // ProMoE: the earliest deadline, then the higher confidence
    distance,   // MoE-Infinity: the highest confidence * (1 - (deadline - position) / (layers + 1))
    gain,       // HybriMoE: the highest confidence among those that can still be in time
    scheduling, // SeqMoE: job sequencing with deadlines by the matroid greedy, then the earliest deadline of the chosen
};

// Returns false for a name that is none of the above.
bool parse_order(const std::string & name, task_order & out);

// The subset of `tasks` with the largest sum of confidences such that, for every deadline d, at most capacity(d) of the
// chosen have a deadline of d or earlier. `capacity` must not fall. By rising deadline, then falling confidence.
// Feasible sets form a matroid, so the greedy is optimal: the least confident is dropped whenever there are too many.
std::vector<prefetch_task> feasible(std::vector<prefetch_task>                       tasks,
                                    const std::function<double(uint64_t deadline)> & capacity);

class task_pool {
public:
    // `least_lead`: tasks with fewer events to their deadline are dropped (1: it must not have come yet).
    task_pool(task_order order, uint32_t n_layers, uint32_t least_lead) :
        rule(order), layers(n_layers), lead(least_lead) {}

    // One task per expert: the earlier deadline stays, of equal ones the newer confidence.
    void add(const prefetch_task & task);

    // Take the next task out. False if there is none that the order would send.
    bool next(const link_state & link, prefetch_task & out);

    size_t   size() const { return tasks.size(); }
    uint64_t n_expired() const { return expired; }

private:
    void   drop_expired(uint64_t position);
    void   insert(const prefetch_task & task);
    size_t chosen(const link_state & link); // tasks.size(): none
    size_t by_scheduling(const link_state & link);

    task_order                 rule;
    uint32_t                   layers;
    uint32_t                   lead;
    std::vector<prefetch_task> tasks; // scheduling: by rising deadline
    std::vector<size_t>        best;  // of scheduling, kept for its memory
    uint64_t                   expired = 0;
    uint64_t                   n_added = 0;
};

} // namespace moecache
