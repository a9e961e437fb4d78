#include "check.h"
#include "core/strategies/task-pool.h"

using namespace moecache;

// The worked example of job sequencing: six prefetches, one copy until deadline 1, three until 2, four until 3.
static const std::vector<prefetch_task> example = {
    { 'A', 1, .55, 0 }, { 'B', 2, .90, 0 }, { 'C', 2, .40, 0 },
    { 'D', 3, .75, 0 }, { 'E', 3, .70, 0 }, { 'F', 3, .30, 0 },
};

// What an order sends if the link carries `copies[p]` copies between position p and the next.
static std::string sent(task_order order, const std::vector<int> & copies) {
    task_pool pool(order, 24, 1);
    for (const prefetch_task & task : example) {
        pool.add(task);
    }
    std::string result;
    for (size_t position = 0; position < copies.size(); position++) {
        link_state link;
        link.position = position;
        link.copy_ns = link.position_ns = 1;
        for (int i = 0; i < copies[position]; i++) {
            prefetch_task task;
            result += pool.next(link, task) ? std::string(1, static_cast<char>(task.item)) : "-";
        }
    }
    return result;
}

TEST(the_optimum_of_the_example) {
    const auto  capacity = [](uint64_t deadline) { return deadline == 1 ? 1.0 : deadline == 2 ? 3.0 : 4.0; };
    std::string chosen;
    double      total = 0;
    for (const prefetch_task & task : feasible(example, capacity)) {
        chosen += static_cast<char>(task.item);
        total += task.confidence;
    }
    CHECK_EQ(chosen, "ABDE");
    CHECK(total > 2.899 && total < 2.901);
}

TEST(distance_takes_the_surest_and_loses_what_expires) {
    CHECK_EQ(sent(task_order::distance, { 1, 2, 1 }), "BDEF");
}

TEST(deadline_takes_what_is_due_first) {
    CHECK_EQ(sent(task_order::deadline, { 1, 2, 1 }), "ABCD");
}

TEST(arrival_takes_what_came_first) {
    CHECK_EQ(sent(task_order::arrival, { 1, 2, 1 }), "ABCD");
}

// One copy per position, and one copy takes as long as two positions: what is due next cannot be in time.
TEST(gain_passes_over_what_would_be_late) {
    task_pool pool(task_order::gain, 24, 1);
    pool.add({ 1, 1, .9, 0 });
    pool.add({ 2, 3, .5, 0 });
    link_state link;
    link.copy_ns     = 2;
    link.position_ns = 1;
    prefetch_task task;
    CHECK(pool.next(link, task));
    CHECK_EQ(task.item, 2u);
    CHECK(!pool.next(link, task));
    CHECK_EQ(pool.size(), 1u);
}

TEST(a_task_whose_deadline_has_come_expires) {
    task_pool pool(task_order::deadline, 24, 1);
    pool.add({ 1, 4, .9, 0 });
    link_state link;
    link.position = 4;
    prefetch_task task;
    CHECK(!pool.next(link, task));
    CHECK_EQ(pool.n_expired(), 1u);
}

TEST(an_expert_has_one_task_the_earlier_deadline) {
    task_pool pool(task_order::deadline, 24, 1);
    pool.add({ 1, 4, .9, 0 });
    pool.add({ 1, 9, .95, 0 });
    pool.add({ 1, 4, .2, 0 });
    link_state    link;
    prefetch_task task;
    CHECK(pool.next(link, task));
    CHECK_EQ(task.deadline, 4u);
    CHECK_EQ(task.confidence, .2);
    CHECK(!pool.next(link, task));
}

// With 1 copy left and 1 per position, two tasks of confidence .5 and .6 due next and one of .9 due in two positions:
// one of the first pair can be sent, the surer; it goes first because it is due first.
TEST(scheduling_sends_the_earliest_of_the_chosen) {
    task_pool pool(task_order::scheduling, 24, 1);
    pool.add({ 1, 1, .5, 0 });
    pool.add({ 2, 1, .6, 0 });
    pool.add({ 3, 2, .9, 0 });
    link_state    link;
    prefetch_task task;
    CHECK(pool.next(link, task));
    CHECK_EQ(task.item, 2u);
}

// Against every subset: the greedy's sum is the largest of a feasible one.
TEST(the_greedy_is_optimal) {
    uint64_t   state  = 1;
    const auto random = [&](uint64_t n) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (state >> 33) % n;
    };
    for (int round = 0; round < 300; round++) {
        std::vector<prefetch_task> tasks;
        const size_t               n = 1 + random(9);
        for (uint32_t i = 0; i < n; i++) {
            tasks.push_back({ i, 1 + random(4), static_cast<double>(1 + random(20)), i });
        }
        std::vector<double> capacity = { 0 };
        for (int d = 1; d <= 4; d++) {
            capacity.push_back(capacity.back() + static_cast<double>(random(3)));
        }
        double best = 0;
        for (uint32_t set = 0; set < (1u << n); set++) {
            std::vector<double> until(5, 0);
            double              total = 0;
            for (uint32_t i = 0; i < n; i++) {
                if (set >> i & 1) {
                    total += tasks[i].confidence;
                    for (uint64_t d = tasks[i].deadline; d <= 4; d++) {
                        until[d]++;
                    }
                }
            }
            bool fits = true;
            for (int d = 1; d <= 4; d++) {
                fits = fits && until[d] <= capacity[d];
            }
            best = fits && total > best ? total : best;
        }
        double found = 0;
        for (const prefetch_task & task : feasible(tasks, [&](uint64_t d) { return capacity[d]; })) {
            found += task.confidence;
        }
        CHECK_EQ(found, best);
    }
}
