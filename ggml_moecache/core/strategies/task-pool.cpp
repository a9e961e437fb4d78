#include "core/strategies/task-pool.h"

#include <algorithm>
#include <queue>

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

std::vector<prefetch_task> feasible(std::vector<prefetch_task>                       tasks,
                                    const std::function<double(uint64_t deadline)> & capacity) {
    const auto surer = [](const prefetch_task & a, const prefetch_task & b) {
        return a.confidence != b.confidence ? a.confidence > b.confidence : a.item < b.item;
    };
    std::sort(tasks.begin(), tasks.end(), sooner);
    std::priority_queue<prefetch_task, std::vector<prefetch_task>, decltype(surer)> chosen(surer); // least sure on top
    for (const prefetch_task & task : tasks) {
        chosen.push(task);
        while (!chosen.empty() && static_cast<double>(chosen.size()) > capacity(task.deadline)) {
            chosen.pop();
        }
    }
    std::vector<prefetch_task> result;
    for (; !chosen.empty(); chosen.pop()) {
        result.push_back(chosen.top());
    }
    std::sort(result.begin(), result.end(), sooner);
    return result;
}

void task_pool::add(const prefetch_task & task) {
    n_added++;
    for (prefetch_task & known : tasks) {
        if (known.item == task.item) {
            if (task.deadline <= known.deadline) {
                known         = task;
                known.arrival = n_added;
            }
            return;
        }
    }
    tasks.push_back(task);
    tasks.back().arrival = n_added;
}

void task_pool::drop_expired(uint64_t position) {
    const size_t before = tasks.size();
    tasks.erase(std::remove_if(tasks.begin(), tasks.end(),
                               [&](const prefetch_task & task) { return task.deadline < position + lead; }),
                tasks.end());
    expired += before - tasks.size();
}

size_t task_pool::by_scheduling(const link_state & link) const {
    const auto capacity = [&](uint64_t deadline) {
        const auto later = static_cast<double>(deadline - link.position - 1);
        return std::max(1.0, link.copies_left) + link.copies_per_position * later;
    };
    const std::vector<prefetch_task> best = feasible(tasks, capacity);
    for (size_t i = 0; i < tasks.size() && !best.empty(); i++) {
        if (tasks[i].item == best.front().item) {
            return i;
        }
    }
    return tasks.size();
}

size_t task_pool::chosen(const link_state & link) const {
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
    out          = tasks[index];
    tasks[index] = tasks.back();
    tasks.pop_back();
    return true;
}

} // namespace moecache
