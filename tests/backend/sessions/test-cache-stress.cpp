// The cache under stress, on the stand-in: contexts that come and go on several threads, each with a capacity, policy,
// speed of copies and log of its own drawing, on the weights of one store; readers of the status and of the settings
// beside them. Every result must be, bit for bit, the plain CPU backend's. Built with the thread or address sanitizer
// (presets tsan, asan) it also looks for races and wrong accesses.
//
// MOECACHE_STRESS_SEED repeats a run's draws (not the threads' interleaving); the seed is printed.
// MOECACHE_STRESS_CONTEXTS is the number of contexts on each thread.
#include "backend/device.h"
#include "core/config.h"
#include "ggml-moecache.h"
#include "small-moe.h"

#include "check.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <thread>

using namespace moecache;
using namespace small_moe;

extern "C" ggml_backend_reg_t ggml_backend_init(void);

namespace {

constexpr int n_threads           = 3;
constexpr int n_batches           = 24; // of one context
constexpr int n_different_batches = 64;

uint32_t number_of(const char * variable, uint32_t otherwise) {
    const char * text = std::getenv(variable);
    return text != nullptr && *text != '\0' ? static_cast<uint32_t>(std::strtoul(text, nullptr, 10)) : otherwise;
}

// Everything the threads share. Batches and their results are made before the threads start.
struct setting {
    uint32_t                        seed;
    ggml_backend_dev_t              device;
    std::filesystem::path           folder;
    std::unique_ptr<weights>        stored;
    std::vector<batch>              batches;
    std::vector<std::vector<float>> expected;
    std::atomic<bool>               done { false };
    std::atomic<int>                n_logs { 0 };
    std::mutex                      checks; // check.h counts without one
};

const char * one_of(std::mt19937 & random, const std::vector<const char *> & values) {
    return values[random() % values.size()];
}

void set(const char * name, const std::string & value) {
    const std::string error = config_set(name, value.c_str());
    if (!error.empty()) {
        std::cerr << error << "\n";
        std::abort();
    }
}

// What the next context reads; another thread may draw in between, which must not matter either.
void draw_settings(setting & shared, std::mt19937 & random) {
    set("GGML_MOECACHE_CAPACITY",
        one_of(random, { "1", "2", "5", "13", "47", "10%", "50%", "20KiB", "100KiB", "auto", "0", "all" }));
    set("GGML_MOECACHE_POLICY", one_of(random, { "lru", "cumulative-lfu", "decayed-lfu:half-life=8", "lfru",
                                                 "random:seed=5", "interval-refresh:every=4", "cold-static" }));
    set("GGML_MOECACHE_PER_LAYER", one_of(random, { "0", "0", "1" }));
    set("GGML_MOECACHE_SYNC", one_of(random, { "0", "0", "0", "1" }));
    set("GGML_MOECACHE_STANDIN_COPY_DELAY_US", one_of(random, { "0", "0", "20", "200", "3000" }));
    set("GGML_MOECACHE_STANDIN_COPY_MIB_S", one_of(random, { "0", "10", "1000" }));
    set("GGML_MOECACHE_LOG_RING_EVENTS", one_of(random, { "64", "64", "4096" }));
    const char * log = one_of(random, { "", "drop", "wait", "live" });
    set("GGML_MOECACHE_LOG", "");
    set("GGML_MOECACHE_LOG_LIVE", "0");
    set("GGML_MOECACHE_LOG_FULL", std::strcmp(log, "wait") == 0 ? "wait" : "drop");
    if (std::strcmp(log, "live") == 0) {
        set("GGML_MOECACHE_LOG_LIVE", "1");
    } else if (*log != '\0') {
        set("GGML_MOECACHE_LOG", (shared.folder / std::to_string(shared.n_logs++)).string());
    }
}

// The first two contexts of a thread, so that whatever is drawn for the others there are late copies, hits and
// evictions.
void settle(uint32_t context) {
    if (context < 2) {
        set("GGML_MOECACHE_CAPACITY", context == 0 ? "13" : "50%");
        set("GGML_MOECACHE_POLICY", "lru");
        set("GGML_MOECACHE_PER_LAYER", "0");
        set("GGML_MOECACHE_SYNC", context == 0 ? "0" : "1");
        set("GGML_MOECACHE_STANDIN_COPY_DELAY_US", context == 0 ? "10000000" : "0"); // ten seconds
        set("GGML_MOECACHE_STANDIN_COPY_MIB_S", "0");
    }
}

// One context from its making to its end.
void run_context(setting & shared, std::mt19937 & random, uint32_t number) {
    std::unique_ptr<session> tested;
    {
        // Settings that contradict each other make no context, so nobody else may draw before it is made.
        static std::mutex           one_draw;
        std::lock_guard<std::mutex> lock(one_draw);
        draw_settings(shared, random);
        settle(number);
        tested = std::make_unique<session>(shared.device, *shared.stored);
    }
    for (int i = 0; i < n_batches; i++) {
        const size_t               index = random() % shared.batches.size();
        const std::vector<float>   found = tested->ok() ? tested->run(shared.batches[index]) : std::vector<float>();
        const std::vector<float> & right = shared.expected[index];
        const bool                 equal =
            found.size() == right.size() && std::memcmp(found.data(), right.data(), right.size() * sizeof(float)) == 0;
        if (!equal) {
            std::lock_guard<std::mutex> lock(shared.checks);
            CHECK_EQ(found.size(), right.size());
            CHECK(equal);
            return;
        }
    }
}

// A program's other threads: the status as JSON, settings, and the live ring of whatever context has one.
void look_on(setting & shared) {
    std::vector<char> text(1 << 16);
    for (uint64_t context = 0; !shared.done; context = (context + 1) % 200) {
        moecache_status_json(text.data(), text.size());
        moecache_run_json(text.data(), text.size());
        moecache_config_get("GGML_MOECACHE_CAPACITY");
        moecache_ring * ring = nullptr;
        if (moecache_ring_open(context, &ring) == nullptr) {
            const void * events = nullptr;
            moecache_ring_release(ring, moecache_ring_peek(ring, &events));
        }
        moecache_ring_close(ring);
        std::this_thread::yield();
    }
}

// Sum of a counter over all contexts.
uint64_t total_of(const std::string & status, const std::string & counter) {
    const std::string key   = "\"" + counter + "\":";
    uint64_t          total = 0;
    for (size_t at = status.find(key); at != std::string::npos; at = status.find(key, at + 1)) {
        total += std::strtoull(status.c_str() + at + key.size(), nullptr, 10);
    }
    return total;
}

} // namespace

TEST(random_contexts_compute_what_the_cpu_computes) {
    setting shared;
    shared.seed = number_of("MOECACHE_STRESS_SEED", std::random_device {}());
    std::printf("seed %u (MOECACHE_STRESS_SEED=%u repeats it)\n", shared.seed, shared.seed);
    setenv("GGML_MOECACHE_STANDIN", "1", 1);
    ggml_backend_load_all_from_path(MOECACHE_LLAMA_BIN);
    ggml_backend_reg_t reg = ggml_backend_init();
    CHECK(reg != nullptr);
    shared.device = ggml_backend_reg_dev_get(reg, 0);
    shared.folder = std::filesystem::temp_directory_path() / ("moecache-stress-" + std::to_string(shared.seed));
    std::filesystem::create_directories(shared.folder);
    set("GGML_MOECACHE_STATUS", (shared.folder / "status.json").string());
    set("MOECACHE_REQUIRE", "0"); // two contexts of one process may meet in a log's folder: that one goes without
    shared.stored = std::make_unique<weights>(device_get(shared.device)->extra_types[0], 11);
    {
        weights      plain(ggml_backend_cpu_buffer_type(), 11);
        session      stock(nullptr, plain);
        std::mt19937 random(shared.seed);
        for (int i = 0; i < n_different_batches; i++) {
            const int64_t n_tokens = i % 8 == 0 ? 1 + random() % max_tokens : 1 + random() % 3;
            shared.batches.push_back(random_batch(random, n_tokens, i / 16));
            shared.expected.push_back(stock.run(shared.batches.back()));
            CHECK_EQ(shared.expected.back().size(), static_cast<size_t>(n_tokens * n_embd));
        }
        CHECK_EQ(plain.checksum(), shared.stored->checksum());
    }
    const uint64_t before     = shared.stored->checksum();
    const uint32_t n_contexts = number_of("MOECACHE_STRESS_CONTEXTS", 12);

    std::vector<std::thread> threads;
    threads.emplace_back([&] { look_on(shared); });
    for (int i = 0; i < n_threads; i++) {
        threads.emplace_back([&, i] {
            std::mt19937 random(shared.seed + 1 + static_cast<uint32_t>(i));
            for (uint32_t context = 0; context < n_contexts; context++) {
                run_context(shared, random, context);
            }
        });
    }
    for (size_t i = 1; i < threads.size(); i++) {
        threads[i].join();
    }
    shared.done = true;
    threads[0].join();

    // What must have come about, or this would test little.
    std::string status(moecache_status_json(nullptr, 0), '\0');
    moecache_status_json(&status[0], status.size());
    for (const char * counter : { "n_hits", "n_misses", "n_copies", "n_evictions", "n_copies_late", "n_log_events" }) {
        const uint64_t total = total_of(status, counter);
        std::printf("%s %llu\n", counter, static_cast<unsigned long long>(total));
        CHECK(total > 0);
    }
    CHECK_EQ(shared.stored->checksum(), before); // canonical weights are never written
    CHECK_EQ(device_get(shared.device)->resident_bytes.load(), 0u);
    shared.stored.reset();
    CHECK_EQ(device_get(shared.device)->store_bytes.load(), 0u);
    std::filesystem::remove_all(shared.folder);
}
