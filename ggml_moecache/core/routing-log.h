// The routing log of one context: a ring that the graph's thread fills and a writer thread that turns it into JSON
// Lines.
//
// Format: traces/FORMAT.md. Every write to the file ends with a complete line, so a process that is killed leaves a
// readable file. The writer wakes up every millisecond, so that the producer never has to call the system to wake it.
// An error of the file (disk full) is kept and ends the writing; the writer then empties the ring and counts what is
// lost.
#pragma once

#include "core/cache-geometry.h"
#include "core/event-ring.h"
#include "core/residency-lines.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace moecache {

// Identifies this process's logs, such as "20261129T201502Z-4711-5f3a". The same for all contexts.
const std::string & routing_run_id();

struct routing_log_options {
    std::string                           folder;    // of the log; made when it does not exist
    std::string                           file_name; // "routing.jsonl"
    uint64_t                              context_id    = 0;
    size_t                                n_ring_events = 0;
    size_t                                k_max         = 0; // ids of one event at most
    std::shared_ptr<const cache_geometry> cache;             // nullptr: there is no cache
};

class routing_log {
public:
    // Open the file, which must not exist yet, and start the writer. Returns nullptr and a message on failure.
    static std::unique_ptr<routing_log> open(const routing_log_options & options, std::string & error);

    ~routing_log(); // close()

    // Write what is in the ring and the end record, stop the writer. The counts are final then.
    void close();

    routing_log(const routing_log &)             = delete;
    routing_log & operator=(const routing_log &) = delete;

    event_ring & ring() { return events; }

    uint64_t n_written() const { return written; }

    // Events that the ring has taken, but for those that the file system has refused. After close(): n_written().
    uint64_t n_taken() const {
        const uint64_t n_refused = unwritten; // read first: it is never above n_committed()
        return events.n_committed() - n_refused;
    }
    uint64_t    n_lost() const { return events.n_lost() + unwritten; } // ring full, or not stored by the file system
    bool        failed() const { return error_number != 0; }
    std::string error() const; // of the file, "" = none

private:
    routing_log(const routing_log_options & options, int file);

    void run();
    bool drain();
    void read_slot(const routing_event & slot);
    void write_event(const routing_event & event, const float * weights);
    void write_cache(const routing_event & event);
    void write_overflow(uint64_t batch_id, uint64_t n_lost);
    void store();

    const uint64_t                              context_id;
    const std::shared_ptr<const cache_geometry> geometry;
    event_ring                                  events;
    std::vector<routing_decision>               decisions; // of the event that comes next
    std::unique_ptr<residency_lines>            residency; // with a cache
    int                                         file;      // -1 after an error
    std::string                                 prefix;    // ',"run_id":...,"context_id":...' of every line
    std::string                                 buffer;    // complete lines
    uint64_t                                    n_in_buffer = 0;

    std::atomic<uint64_t> written { 0 };
    std::atomic<uint64_t> unwritten { 0 };
    std::atomic<int>      error_number { 0 };
    uint64_t              reported_lost = 0; // of the ring's losses, those in overflow records

    std::atomic<bool> stop { false };
    std::thread       writer;
};

} // namespace moecache
