#include "core/strategies/task-pool.h"

#include <algorithm>

namespace moecache {

bool parse_order(const std::string & name, task_order & out) {
    static const std::pair<const char *, task_order> names[] = {
        { "arrival", task_order::arrival },       { "deadline", task_order::deadline },
        { "distance", task_order::distance },     { "gain", task_order::gain },
        { "scheduling", task_order::scheduling },
    };
    for (const auto & [known, order] : names) {
        if (name == known) {
            out = order;
            return true;
        }
    }
    return false;
}

// By rising deadline, then falling confidence, then the lower expert.
static bool sooner(const prefetch_task & a, const prefetch_task & b) {
    if (a.deadline != b.deadline) {
        return a.deadline < b.deadline;
    }
    return a.confidence != b.confidence ? a.confidence > b.confidence : a.item < b.item;
}

static bool surer(const prefetch_task & a, const prefetch_task & b) {
    return a.confidence != b.confidence ? a.confidence > b.confidence : a.item < b.item;
}

// The greedy over tasks by rising deadline. `chosen` holds their places afterwards, as a heap with the least sure
// first.
template <typename Capacity>
static void choose(const std::vector<prefetch_task> & tasks, const Capacity & capacity, std::vector<size_t> & chosen) {
    const auto least_sure_first = [&](size_t a, size_t b) { return surer(tasks[a], tasks[b]); };
    chosen.clear();
    for (size_t i = 0; i < tasks.size(); i++) {
        chosen.push_back(i);
        std::push_heap(chosen.begin(), chosen.end(), least_sure_first);
        while (!chosen.empty() && static_cast<double>(chosen.size()) > capacity(tasks[i].deadline)) {
            std::pop_heap(chosen.begin(), chosen.end(), least_sure_first);
            chosen.pop_back();
        }
    }
}

std::vector<prefetch_task> feasible(std::vector<prefetch_task>                       tasks,
                                    const std::function<double(uint64_t deadline)> & capacity) {
    std::sort(tasks.begin(), tasks.end(), sooner);
    std::vector<size_t> chosen;
    choose(tasks, capacity, chosen);
    std::sort(chosen.begin(), chosen.end());
    std::vector<prefetch_task> result;
    for (const size_t place : chosen) {
        result.push_back(tasks[place]);
    }
    return result;
}

void task_pool::insert(const prefetch_task & task) {
    const auto place =
        rule == task_order::scheduling ? std::upper_bound(tasks.begin(), tasks.end(), task, sooner) : tasks.end();
    tasks.insert(place, task);
}

void task_pool::add(const prefetch_task & task) {
    prefetch_task added = task;
    added.arrival       = ++n_added;
    const auto known    = std::find_if(tasks.begin(), tasks.end(), [&](const auto & t) { return t.item == task.item; });
    if (known != tasks.end()) {
        if (task.deadline > known->deadline) {
            return;
        }
        tasks.erase(known);
    }
    insert(added);
}

void task_pool::drop_expired(uint64_t position) {
    const size_t before = tasks.size();
    tasks.erase(std::remove_if(tasks.begin(), tasks.end(),
                               [&](const prefetch_task & task) { return task.deadline < position + lead; }),
                tasks.end());
    expired += before - tasks.size();
}

size_t task_pool::by_scheduling(const link_state & link) {
    const auto capacity = [&](uint64_t deadline) {
        const auto later = static_cast<double>(deadline - link.position - 1);
        return std::max(1.0, link.copies_left) + link.copies_per_position * later;
    };
    choose(tasks, capacity, best);
    return best.empty() ? tasks.size() : *std::min_element(best.begin(), best.end());
}

size_t task_pool::chosen(const link_state & link) {
    if (rule == task_order::scheduling) {
        return by_scheduling(link);
    }
    const auto in_time = [&](const prefetch_task & task) {
        return link.wait_ns + link.copy_ns <= static_cast<double>(task.deadline - link.position) * link.position_ns;
    };
    const auto worth = [&](const prefetch_task & task) {
        const auto distance = static_cast<double>(task.deadline - link.position);
        return rule == task_order::distance ? task.confidence * (1 - distance / (layers + 1)) : task.confidence;
    };
    size_t best = tasks.size();
    for (size_t i = 0; i < tasks.size(); i++) {
        if (rule == task_order::gain && !in_time(tasks[i])) {
            continue;
        }
        bool better = best == tasks.size();
        if (!better && rule == task_order::arrival) {
            better = tasks[i].arrival < tasks[best].arrival;
        } else if (!better && rule == task_order::deadline) {
            better = sooner(tasks[i], tasks[best]);
        } else if (!better) {
            const double own = worth(tasks[i]), other = worth(tasks[best]);
            better = own != other ? own > other : sooner(tasks[i], tasks[best]);
        }
        best = better ? i : best;
    }
    return best;
}

bool task_pool::next(const link_state & link, prefetch_task & out) {
    drop_expired(link.position);
    const size_t index = chosen(link);
    if (index == tasks.size()) {
        return false;
    }
    out = tasks[index];
    tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(index));
    return true;
}

} // namespace moecache
