#include "core/graph-gate.h"

#include "check.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

using namespace moecache;

// Two graphs and the visitors between them write to what only one of them may hold.
TEST(visitors_come_between_graphs_and_never_into_one) {
    graph_gate       gate;
    int              held     = 0; // not atomic: a data race is what a sanitizer would report
    long             n_graphs = 0;
    long             n_visits = 0;
    bool             clean    = true;
    std::atomic<int> n_left { 4 };
    const auto       work = [&](long & count) {
        clean = clean && held == 0;
        held  = 1;
        std::this_thread::yield();
        held = 0;
        count++;
    };
    std::vector<std::thread> visitors;
    for (int i = 0; i < 4; i++) {
        visitors.emplace_back([&] {
            for (int k = 0; k < 200; k++) {
                const graph_gate::visit visit(gate);
                work(n_visits);
            }
            n_left--;
        });
    }
    long n_begun = 0;
    while (n_left > 0 || n_begun < 1000) {
        gate.begin();
        work(n_graphs);
        gate.end();
        n_begun++;
    }
    for (std::thread & visitor : visitors) {
        visitor.join();
    }
    CHECK(clean);
    CHECK_EQ(n_visits, 800);
    CHECK_EQ(n_graphs, n_begun);
}

TEST(an_idle_gate_lets_a_visitor_in_at_once) {
    graph_gate gate;
    gate.begin();
    gate.end();
    bool                    was_in = false;
    const graph_gate::visit visit(gate);
    was_in = true;
    CHECK(was_in);
}

TEST(the_thread_of_a_graph_knows_that_it_is_inside) {
    graph_gate gate;
    CHECK(!gate.inside());
    gate.begin();
    CHECK(gate.inside());
    bool other = true;
    std::thread([&] { other = gate.inside(); }).join();
    CHECK(!other);
    gate.end();
    CHECK(!gate.inside());
}
