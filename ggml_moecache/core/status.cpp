#include "core/status.h"

#include "core/file.h"
#include "core/json.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <mutex>

namespace moecache {

// Guards the list and everything in a context_status but its counters. Not destroyed at exit: contexts may outlive
// static objects.
static std::mutex & status_mutex() {
    static std::mutex * mutex = new std::mutex;
    return *mutex;
}

static std::vector<std::shared_ptr<context_status>> & contexts() {
    static auto * list = new std::vector<std::shared_ptr<context_status>>;
    return *list;
}

static const std::ptrdiff_t max_closed = 64; // closed contexts that are remembered

// Guarded by the mutex.
static uint64_t next_context_id = 0;
static bool     any_known       = false; // a context that had written its line was closed
static reason   process_reason  = reason::none;

static std::string & process_detail() {
    static auto * detail = new std::string;
    return *detail;
}

static const char * state_name(context_state state) {
    return state == context_state::active ? "active" : state == context_state::inactive ? "inactive" : "idle";
}

__attribute__((format(printf, 1, 2))) static std::string format(const char * pattern, ...) {
    char    buffer[1024];
    va_list arguments;
    va_start(arguments, pattern);
    std::vsnprintf(buffer, sizeof(buffer), pattern, arguments);
    va_end(arguments);
    return buffer;
}

static double mib(uint64_t bytes) {
    return static_cast<double>(bytes) / (1 << 20);
}

static std::string store_text(const context_facts & facts) {
    const char * pinned = facts.store_pinned_bytes == 0                 ? "not pinned" :
                          facts.store_pinned_bytes == facts.store_bytes ? "pinned" :
                                                                          "partly pinned";
    return format("%.1f MiB of experts in host memory (%s)", mib(facts.store_bytes), pinned);
}

std::shared_ptr<context_status> context_status::create(const context_facts & facts) {
    auto                        status = std::make_shared<context_status>();
    std::lock_guard<std::mutex> lock(status_mutex());
    status->id      = next_context_id++;
    status->current = facts;
    contexts().push_back(status);
    return status;
}

std::shared_ptr<context_status> context_status::find(uint64_t context_id) {
    std::lock_guard<std::mutex> lock(status_mutex());
    for (const auto & context : contexts()) {
        if (context->id == context_id) {
            return context;
        }
    }
    return nullptr;
}

context_facts context_status::facts() const {
    std::lock_guard<std::mutex> lock(status_mutex());
    return current;
}

bool context_status::is_closed() const {
    std::lock_guard<std::mutex> lock(status_mutex());
    return closed;
}

void context_status::update(const context_facts & facts) {
    std::lock_guard<std::mutex> lock(status_mutex());
    current = facts;
}

bool context_status::add_fallback(reason why) {
    std::lock_guard<std::mutex> lock(status_mutex());
    const bool                  known = std::find(fallbacks.begin(), fallbacks.end(), why) != fallbacks.end();
    if (!known) {
        fallbacks.push_back(why);
    }
    return !known;
}

void context_status::close() {
    std::lock_guard<std::mutex> lock(status_mutex());
    auto &                      list = contexts();
    const auto                  drop = [&list](const auto & which) {
        const auto it = std::find_if(list.begin(), list.end(), which);
        if (it != list.end()) {
            list.erase(it);
        }
    };
    closed = true;
    any_known |= counters.n_warmup_graphs > 0; // used, if only for a warm-up
    if (current.state == context_state::idle) {
        drop([this](const auto & context) { return context.get() == this; });
        return;
    }
    any_known            = true;
    const auto is_closed = [](const auto & context) { return context->closed; };
    if (std::count_if(list.begin(), list.end(), is_closed) > max_closed) {
        drop(is_closed); // the oldest
    }
}

// "25", and with a decimal what is no whole number: 1023 of 1024 are not 100 %.
static std::string percent_text(const context_facts & facts) {
    const uint64_t hundred = 100 * facts.n_resident;
    const bool     whole   = facts.n_experts == 0 || hundred % facts.n_experts == 0;
    const double   percent =
        facts.n_experts == 0 ? 0.0 : static_cast<double>(hundred) / static_cast<double>(facts.n_experts);
    return whole ? format("%.0f", percent) : format("%.1f", std::floor(percent * 10) / 10);
}

static std::string policy_text(const context_facts & facts) {
    return facts.policy.empty() ? "" : ", policy " + facts.policy;
}

std::string context_status::status_line() const {
    const context_facts f = facts();
    if (f.state == context_state::inactive) {
        return format("moecache: inactive: %s: %s%s%s", reason_name(f.why), f.detail.c_str(),
                      f.detail.empty() ? "" : " - ", reason_text(f.why));
    }
    std::string line = format(
        "moecache: active: %" PRIu64 " of %" PRIu64 " experts (%s %%) in %.1f MiB on %s over %s, capacity %s%s%s, %s",
        f.n_resident, f.n_experts, percent_text(f).c_str(), mib(f.resident_bytes), f.device.c_str(), f.inner.c_str(),
        f.capacity.c_str(), f.per_layer ? " per layer" : "", policy_text(f).c_str(), store_text(f).c_str());
    if (f.n_layers_elsewhere > 0) {
        line += format(", %" PRIu64 " MoE layers elsewhere", f.n_layers_elsewhere);
    }
    return line;
}

std::string context_status::exit_line() const {
    const auto & c = counters;
    std::string  line =
        format("moecache: exit: %" PRIu64 " hits, %" PRIu64 " misses, %" PRIu64 " copies, %.1f MiB copied, "
               "%" PRIu64 " graphs, %" PRIu64 " warm-up graphs",
               c.n_hits.load(), c.n_misses.load(), c.n_copies.load(), mib(c.copy_bytes.load()), c.n_graphs.load(),
               c.n_warmup_graphs.load());
    if (c.n_log_events > 0 || c.n_log_lost > 0) {
        line += format(", %" PRIu64 " events logged, %" PRIu64 " lost", c.n_log_events.load(), c.n_log_lost.load());
    }
    return line;
}

static void write_facts(json_writer & json, const context_facts & facts) {
    json.value("state", state_name(facts.state)).value("reason", reason_name(facts.why)).value("detail", facts.detail);
    json.value("device", facts.device)
        .value("inner", facts.inner)
        .value("capacity", facts.capacity)
        .value("per_layer", facts.per_layer)
        .value("policy", facts.policy);
    json.value("n_experts", facts.n_experts).value("n_resident", facts.n_resident).value("n_layers", facts.n_layers);
    json.value("n_layers_elsewhere", facts.n_layers_elsewhere).value("resident_bytes", facts.resident_bytes);
    json.value("store_bytes", facts.store_bytes).value("store_pinned_bytes", facts.store_pinned_bytes);
}

static void write_counters(json_writer & json, const context_counters & c) {
    json.value("n_graphs", c.n_graphs.load()).value("n_warmup_graphs", c.n_warmup_graphs.load());
    json.value("n_events", c.n_events.load()).value("n_hits", c.n_hits.load()).value("n_misses", c.n_misses.load());
    json.value("n_copies", c.n_copies.load()).value("copy_bytes", c.copy_bytes.load());
    json.value("n_partial_blocks", c.n_partial_blocks.load()).value("n_unknown_blocks", c.n_unknown_blocks.load());
    json.value("n_whole_blocks", c.n_whole_blocks.load())
        .value("n_evictions", c.n_evictions.load())
        .value("n_copies_late", c.n_copies_late.load())
        .value("frozen", c.frozen.load());
    json.value("n_log_events", c.n_log_events.load())
        .value("n_log_lost", c.n_log_lost.load())
        .value("log_ns", c.log_ns.load());
}

std::string status_json() {
    std::lock_guard<std::mutex> lock(status_mutex());
    json_writer                 json;
    json.begin_object()
        .value("version", MOECACHE_VERSION)
        .value("ggml_version", MOECACHE_GGML_VERSION)
        .value("reason", reason_name(process_reason))
        .value("detail", process_detail())
        .begin_array("contexts");
    for (const auto & context : contexts()) {
        json.begin_object().value("context_id", context->id).value("closed", context->closed);
        write_facts(json, context->current);
        json.begin_array("fallbacks");
        for (const reason why : context->fallbacks) {
            json.value(nullptr, reason_name(why));
        }
        json.end_array();
        write_counters(json, context->counters);
        json.end_object();
    }
    json.end_array().end_object();
    return json.text();
}

bool status_any_created() {
    std::lock_guard<std::mutex> lock(status_mutex());
    return next_context_id > 0;
}

bool status_any_known() {
    std::lock_guard<std::mutex> lock(status_mutex());
    return any_known || std::any_of(contexts().begin(), contexts().end(),
                                    [](const auto & context) { return context->current.state != context_state::idle; });
}

void status_set_reason(reason why, const std::string & detail) {
    std::lock_guard<std::mutex> lock(status_mutex());
    process_reason   = why;
    process_detail() = detail;
}

std::string status_write(const std::string & path) {
    return file_replace(path, status_json() + "\n");
}

} // namespace moecache
