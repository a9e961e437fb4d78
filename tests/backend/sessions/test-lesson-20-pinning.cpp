// Lesson 20: memory that cannot be pinned. The device below is the CPU with a host buffer type that behaves as CUDA's:
// where pinning fails it hands out a plain CPU buffer without a word.
#include "backend/buffer-type.h"
#include "backend/device.h"
#include "core/config.h"
#include "core/status.h"
#include "small-moe.h"

#include "check.h"

#include <cstdlib>
#include <cstring>

using namespace moecache;
using namespace small_moe;

extern "C" ggml_backend_reg_t ggml_backend_init(void);

namespace {

int n_pinnable = 0; // buffers that can still be pinned

ggml_backend_buffer_type pinned_type = {};

ggml_backend_buffer_t pin(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (n_pinnable > 0) {
        n_pinnable--;
        buffer->buft = type;
    }
    return buffer;
}

// A device of ours over it; made once.
ggml_backend_dev_t device() {
    static ggml_backend_dev_t made = [] {
        setenv("GGML_MOECACHE_STANDIN", "1", 1);
        ggml_backend_load_all_from_path(MOECACHE_LLAMA_BIN);
        static ggml_backend_device inner = *ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        pinned_type                      = *ggml_backend_cpu_buffer_type();
        pinned_type.iface.alloc_buffer   = pin;
        inner.iface.get_host_buffer_type = [](ggml_backend_dev_t) { return &pinned_type; };
        return device_create(ggml_backend_init(), &inner, 1, /* standin = */ true);
    }();
    return made;
}

// Eight ubatches on the device; whether each gave the CPU's bits.
bool computes_right() {
    weights      stored(device_get(device())->extra_types[0], 3);
    weights      plain(ggml_backend_cpu_buffer_type(), 3);
    session      tested(device(), stored);
    session      stock(nullptr, plain);
    std::mt19937 random(3);
    bool         right = tested.ok();
    for (int i = 0; right && i < 8; i++) {
        const batch              input    = random_batch(random, 1 + i % 3, 0);
        const std::vector<float> found    = tested.run(input);
        const std::vector<float> expected = stock.run(input);
        right                             = found.size() == expected.size() &&
                !std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float));
    }
    return right;
}

bool status_says(const char * text) {
    return status_json().find(text) != std::string::npos;
}

} // namespace

TEST(lesson_20_all_is_pinned_where_it_can_be) {
    CHECK_EQ(config_set("GGML_MOECACHE_CAPACITY", "50%"), "");
    n_pinnable                  = 1000;
    ggml_backend_buffer_t store = ggml_backend_buft_alloc_buffer(device_get(device())->extra_types[0], 4096);
    CHECK_EQ(device_get(device())->store_pinned_bytes.load(), 4096u);
    ggml_backend_buffer_free(store);
    CHECK(computes_right());
    CHECK(status_says("\"state\":\"active\""));
    CHECK(!status_says("pinned\"]"));
}

TEST(lesson_20_pinning_fails_and_the_model_runs) {
    n_pinnable = 0;
    CHECK(computes_right());
    CHECK(status_says("\"not_pinned\""));
    CHECK_EQ(device_get(device())->store_pinned_bytes.load(), 0u);
}

TEST(lesson_20_pinning_that_fails_is_an_error_where_it_is_required) {
    CHECK_EQ(config_set("MOECACHE_REQUIRE", "1"), "");
    n_pinnable = 0;
    CHECK(ggml_backend_buft_alloc_buffer(device_get(device())->extra_types[0], 4096) == nullptr);
    CHECK_EQ(device_get(device())->store_bytes.load(), 0u);
    CHECK_EQ(config_set("MOECACHE_REQUIRE", nullptr), "");
}

TEST(lesson_20_a_store_in_pieces_may_be_pinned_in_part) {
    n_pinnable                  = 1;
    ggml_backend_buffer_t first = ggml_backend_buft_alloc_buffer(device_get(device())->extra_types[0], 4096);
    CHECK(computes_right());
    CHECK(status_says("\"partly_pinned\""));
    CHECK_EQ(device_get(device())->store_pinned_bytes.load(), 4096u);
    ggml_backend_buffer_free(first);
    CHECK_EQ(device_get(device())->store_pinned_bytes.load(), 0u);
}
