// Lets other threads work on what the thread of the graph owns, between two graphs and never in the middle of one.
//
// The thread of the graph passes begin() and end() around each graph: one atomic exchange and two reads; it takes the
// lock only while somebody waits. Another thread takes the gate with a graph_gate::visit, which waits for the end of
// the graph that is being computed, if any; the next graph then waits for the end of the visit.
//
// Dekker's rule: the graph writes `running` and then reads `n_visitors`, a visitor the reverse, both sequentially
// consistent, so one of them sees the other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace moecache {

class graph_gate {
public:
    void begin() {
        running.exchange(true);
        if (n_visitors.load() != 0) {
            wait_for_visitors();
        }
        owner.store(std::this_thread::get_id(), std::memory_order_relaxed);
    }

    void end() {
        owner.store(std::thread::id(), std::memory_order_relaxed);
        running.store(false);
        if (n_visitors.load() != 0) {
            std::lock_guard<std::mutex> lock(mutex); // a visitor that has just looked is asleep before it is woken
            changed.notify_all();
        }
    }

    // Whether the calling thread is in the middle of a graph (a callback of the computation): it would wait for itself.
    bool inside() const { return owner.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

    // REQUIRES: not inside().
    class visit {
    public:
        explicit visit(graph_gate & g) : gate(g) {
            gate.n_visitors.fetch_add(1);
            lock = std::unique_lock<std::mutex>(gate.mutex);
            gate.changed.wait(lock, [this] { return !gate.running.load() && !gate.visited; });
            gate.visited = true;
            lock.unlock();
        }
        ~visit() {
            lock.lock();
            gate.visited = false;
            gate.n_visitors.fetch_sub(1);
            gate.changed.notify_all();
        }
        visit(const visit &)             = delete;
        visit & operator=(const visit &) = delete;

    private:
        graph_gate &                 gate;
        std::unique_lock<std::mutex> lock;
    };

private:
    // Visitors that are in go first, and so do those that have not got in yet.
    void wait_for_visitors() {
        std::unique_lock<std::mutex> lock(mutex);
        running.store(false);
        changed.notify_all();
        changed.wait(lock, [this] { return n_visitors.load() == 0; });
        running.store(true); // under the lock: no visitor looks at it in between
    }

    std::atomic<bool>            running { false };
    std::atomic<int>             n_visitors { 0 };
    std::atomic<std::thread::id> owner { std::thread::id() };
    std::mutex                   mutex;
    std::condition_variable      changed;
    bool                         visited = false; // guarded by the mutex
};

} // namespace moecache
