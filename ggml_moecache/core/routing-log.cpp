#include "core/routing-log.h"

#include "core/expert-name.h"
#include "core/file.h"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <random>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace moecache {

static const size_t buffer_bytes = size_t(1) << 20; // handed to the file system at once

const std::string & routing_run_id() {
    static const std::string & id = *new std::string([] { // contexts may outlive static objects
        char         text[64];
        const time_t now = time(nullptr);
        tm           utc;
        gmtime_r(&now, &utc);
        const size_t n = strftime(text, sizeof(text), "%Y%m%dT%H%M%SZ", &utc);
        snprintf(text + n, sizeof(text) - n, "-%d-%04x", static_cast<int>(getpid()), std::random_device {}() & 0xffff);
        return std::string(text);
    }());
    return id;
}

// Make `path` and its parents. Returns "" or what is wrong.
static std::string make_folder(const std::string & path) {
    for (size_t i = 1; i <= path.size(); i++) {
        if (i < path.size() && path[i] != '/') {
            continue;
        }
        const std::string part = path.substr(0, i);
        if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) {
            return "cannot make the folder " + part + ": " + strerror(errno);
        }
    }
    struct stat info;
    if (stat(path.c_str(), &info) != 0) {
        return "cannot use the folder " + path + ": " + strerror(errno);
    }
    return S_ISDIR(info.st_mode) ? "" : path + " is a file, not a folder; name another one";
}

std::unique_ptr<routing_log> routing_log::open(const routing_log_options & options, std::string & error) {
    error = make_folder(options.folder);
    if (!error.empty()) {
        return nullptr;
    }
    const std::string path = options.folder + "/" + options.file_name;
    const int         file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) {
        error = errno == EEXIST ? path + " exists already and is not overwritten; name another folder or remove it" :
                                  "cannot write " + path + ": " + strerror(errno);
        return nullptr;
    }
    return std::unique_ptr<routing_log>(new routing_log(options, file));
}

routing_log::routing_log(const routing_log_options & options, int file) :
    context_id(options.context_id), geometry(options.cache),
    events(options.n_ring_events, options.k_max, options.cache != nullptr), file(file) {
    prefix = ",\"run_id\":\"" + routing_run_id() + "\",\"context_id\":" + std::to_string(context_id);
    buffer.reserve(2 * buffer_bytes);
    if (geometry != nullptr) {
        residency = std::make_unique<residency_lines>(geometry);
    }
    writer = std::thread([this] { run(); });
}

routing_log::~routing_log() {
    close();
}

void routing_log::close() {
    if (!writer.joinable()) {
        return;
    }
    stop = true;
    writer.join();
    if (file >= 0) {
        ::close(file);
    }
}

std::string routing_log::error() const {
    const int number = error_number;
    return number != 0 ? strerror(number) : "";
}

// --- text ---------------------------------------------------------------------------------------------------------------------------

template <typename number>
static void append(std::string & text, number value) {
    char       digits[32];
    const auto result =
        std::to_chars(digits, digits + sizeof(digits), value); // a float's shortest form that reads back the same
    text.append(digits, result.ptr);
}

template <typename number>
static void append_list(std::string & text, const number * values, size_t n) {
    text += '[';
    for (size_t i = 0; i < n; i++) {
        if (i > 0) {
            text += ',';
        }
        append(text, values[i]);
    }
    text += ']';
}

static bool all_finite(const float * values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!std::isfinite(values[i])) {
            return false;
        }
    }
    return true;
}

void routing_log::write_event(const routing_event & event, const float * weights) {
    std::string & text = buffer;
    text += "{\"type\":\"event\"";
    text += prefix;
    text += ",\"batch_id\":";
    append(text, event.batch_id);
    text += ",\"request_id\":";
    append(text, event.request_id);
    text += ",\"token_index\":";
    append(text, event.token_index);
    text += ",\"layer_id\":";
    append(text, event.layer_id);
    text += ",\"family\":\"";
    text += expert_family_name(event.family);
    text += event.phase == MOECACHE_PHASE_DECODE ? "\",\"phase\":\"decode\",\"expert_ids\":" :
                                                   "\",\"phase\":\"prefill\",\"expert_ids\":";
    append_list(text, event.ids(), event.n_used);
    text += ",\"router_weights\":";
    if (event.has_weights && all_finite(weights, event.n_used)) { // JSON has no NaN
        append_list(text, weights, event.n_used);
    } else {
        text += "null";
    }
    write_cache(event);
    n_in_buffer++;
}

// "name":value, null for 0.
static void append_known(std::string & text, const char * name, uint64_t value) {
    text += name;
    if (value == 0) {
        text += "null";
    } else {
        append(text, value);
    }
}

void routing_log::write_cache(const routing_event & event) {
    std::string & text = buffer;
    if (!events.with_cache() || !events.cache(&event)->cached) {
        decisions.clear();
        text += ",\"resident_experts\":null,\"cache_hit\":[],\"admitted\":[],\"evicted\":[],\"copy_enqueued_ns\":null,"
                "\"copy_ready_ns\":null,\"ready_before_next_token\":null,\"copy_bytes\":0,\"copy_duration_ns\":null,"
                "\"cpu_duration_ns\":null,\"cuda_duration_ns\":null}\n";
        return;
    }
    const routing_cache & cache = *events.cache(&event);
    text += ",\"resident_experts\":";
    append(text, cache.generation);
    text += ",\"cache_hit\":[";
    for (size_t k = 0; k < event.n_used; k++) {
        text += k > 0 ? "," : "";
        text += (cache.hits >> k & 1) != 0 ? "true" : "false";
    }
    text += "],\"admitted\":[";
    for (size_t i = 0; i < decisions.size(); i++) {
        text += i > 0 ? "," : "";
        append_expert(text, *geometry, decisions[i].admitted);
    }
    text += "],\"evicted\":[";
    bool first = true;
    for (const routing_decision & decision : decisions) {
        if (decision.evicted == no_item) {
            continue;
        }
        text += first ? "" : ",";
        append_expert(text, *geometry, decision.evicted);
        first = false;
    }
    text += ']';
    append_known(text, ",\"copy_enqueued_ns\":", cache.enqueued_ns);
    append_known(text, ",\"copy_ready_ns\":", cache.ready_ns);
    text += ",\"ready_before_next_token\":";
    text += cache.ready < 0 ? "null" : (cache.ready > 0 ? "true" : "false");
    text += ",\"copy_bytes\":";
    append(text, cache.copy_bytes);
    append_known(text, ",\"copy_duration_ns\":", cache.copy_ns);
    append_known(text, ",\"cpu_duration_ns\":", cache.cpu_ns);
    append_known(text, ",\"cuda_duration_ns\":", cache.cuda_ns);
    text += "}\n";
    decisions.clear();
}

void routing_log::write_overflow(uint64_t batch_id, uint64_t n_lost) {
    buffer += "{\"type\":\"overflow\"" + prefix + ",\"batch_id\":" + std::to_string(batch_id) +
              ",\"lost_events\":" + std::to_string(n_lost) + "}\n";
    reported_lost += n_lost;
}

// --- writer -------------------------------------------------------------------------------------------------------------------------

// Events among the complete lines of a text that may be cut off.
static uint64_t count_events(const char * text, size_t n_bytes) {
    static const std::string begin    = "{\"type\":\"event\"";
    uint64_t                 n_events = 0;
    for (const char *line = text, *end; n_bytes > 0; n_bytes -= static_cast<size_t>(end - line), line = end) {
        const void * line_end = std::memchr(line, '\n', n_bytes);
        if (line_end == nullptr) {
            break;
        }
        end = static_cast<const char *>(line_end) + 1;
        n_events +=
            static_cast<size_t>(end - line) >= begin.size() && std::memcmp(line, begin.data(), begin.size()) == 0;
    }
    return n_events;
}

// Hand the complete lines of the buffer to the file system. What it took of them before an error counts as stored.
void routing_log::store() {
    size_t done = 0;
    while (file >= 0 && done < buffer.size()) {
        const ssize_t n = write(file, buffer.data() + done, buffer.size() - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            error_number = n < 0 ? errno : EIO;
            ::close(file);
            file = -1;
        } else {
            done += static_cast<size_t>(n);
        }
    }
    const uint64_t n_stored = file >= 0 ? n_in_buffer : count_events(buffer.data(), done);
    written += n_stored;
    unwritten += n_in_buffer - n_stored;
    n_in_buffer = 0;
    buffer.clear();
}

void routing_log::read_slot(const routing_event & slot) {
    if (slot.kind == MOECACHE_SLOT_DECISIONS) {
        decisions.insert(decisions.end(), events.decisions(&slot), events.decisions(&slot) + slot.n_used);
        return;
    }
    if (slot.kind == MOECACHE_SLOT_CHANGES) {
        residency->apply(events.changes(&slot), slot.n_used);
        return;
    }
    if (events.with_cache() && events.cache(&slot)->set_known) {
        residency->before_event(events.cache(&slot)->generation, prefix, buffer);
    }
    write_event(slot, events.weights(&slot));
}

// Everything that is in the ring now. Returns false when there was nothing.
bool routing_log::drain() {
    bool any = false;
    while (true) {
        const routing_event * first = nullptr;
        const size_t          n     = events.peek(&first);
        if (n == 0) {
            break;
        }
        any = true;
        for (size_t i = 0; i < n; i++) {
            const auto * event = reinterpret_cast<const routing_event *>(reinterpret_cast<const char *>(first) +
                                                                         i * events.stride_bytes());
            if (event->lost_before > 0) {
                write_overflow(event->lost_batch_id, event->lost_before);
            }
            read_slot(*event);
            if (buffer.size() >= buffer_bytes) {
                store();
            }
        }
        events.release(n);
    }
    if (!buffer.empty()) {
        store();
    }
    return any;
}

void routing_log::run() {
    const write_signals_blocked guard;
    while (!stop) {
        if (!drain()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
    drain();
    if (events.n_lost() > reported_lost) { // at the very end: no later event carries the count
        write_overflow(events.open_gap_batch_id(), events.n_lost() - reported_lost);
    }
    buffer += "{\"type\":\"end\"" + prefix + ",\"events\":" + std::to_string(written) +
              ",\"lost_events\":" + std::to_string(n_lost()) + "}\n";
    store();
}

} // namespace moecache
