// Which copies neighbouring router tensors are merged to. Addresses are made up: nothing is read.
#include "transfer/gather.h"

#include "check.h"

#include <cstdint>

using namespace moecache;

namespace {

struct tensor_at {
    ggml_tensor tensor = {};

    tensor_at(ggml_backend_buffer_t buffer, uintptr_t address) {
        tensor.buffer = buffer;
        tensor.data   = reinterpret_cast<void *>(address);
    }
};

ggml_backend_buffer one_buffer     = {};
ggml_backend_buffer another_buffer = {};

uintptr_t address(const gather_run & run) {
    return reinterpret_cast<uintptr_t>(run.data);
}

} // namespace

// Decode: top-8 ids of 256 experts in three layers, 1,024 bytes apart.
TEST(single_rows_at_equal_distances_are_one_copy) {
    tensor_at  a(&one_buffer, 0x1000), b(&one_buffer, 0x1400), c(&one_buffer, 0x1800);
    const auto runs =
        gather_merge({ { &a.tensor, 32, 1, 1024, 0 }, { &b.tensor, 32, 1, 1024, 32 }, { &c.tensor, 32, 1, 1024, 64 } });
    CHECK_EQ(runs.size(), size_t(1));
    CHECK_EQ(runs[0].n_rows, size_t(3));
    CHECK_EQ(runs[0].row_bytes, size_t(32));
    CHECK_EQ(runs[0].stride_bytes, size_t(1024));
    CHECK_EQ(runs[0].offset, size_t(0));
}

// Decode with ids and weights of two layers in the recorder's memory, each tensor as far apart as the largest.
TEST(ids_and_weights_of_a_single_token_are_one_copy) {
    tensor_at  ids_a(&one_buffer, 0x1000), ids_b(&one_buffer, 0x1400);
    tensor_at  weights_a(&one_buffer, 0x1800), weights_b(&one_buffer, 0x1c00);
    const auto runs = gather_merge({ { &ids_a.tensor, 32, 1, 1024, 0 },
                                     { &ids_b.tensor, 32, 1, 1024, 32 },
                                     { &weights_a.tensor, 32, 1, 32, 64 },
                                     { &weights_b.tensor, 32, 1, 32, 96 } });
    CHECK_EQ(runs.size(), size_t(1));
    CHECK_EQ(runs[0].n_rows, size_t(4));
    CHECK_EQ(runs[0].row_bytes, size_t(32));
    CHECK_EQ(runs[0].stride_bytes, size_t(1024));
}

// Prefill of 4 tokens: layer b begins where layer a's fifth row would.
TEST(rows_of_layers_that_follow_one_another_are_one_copy) {
    tensor_at  a(&one_buffer, 0x1000), b(&one_buffer, 0x2000);
    const auto runs = gather_merge({ { &a.tensor, 32, 4, 1024, 0 }, { &b.tensor, 32, 4, 1024, 128 } });
    CHECK_EQ(runs.size(), size_t(1));
    CHECK_EQ(runs[0].n_rows, size_t(8));
    CHECK_EQ(runs[0].stride_bytes, size_t(1024));
}

// A layer that sees output rows only comes last.
TEST(a_single_row_behind_several_joins_them) {
    tensor_at  a(&one_buffer, 0x1000), b(&one_buffer, 0x2000);
    const auto runs = gather_merge({ { &a.tensor, 32, 4, 1024, 0 }, { &b.tensor, 32, 1, 1024, 128 } });
    CHECK_EQ(runs.size(), size_t(1));
    CHECK_EQ(runs[0].n_rows, size_t(5));
}

// Router weights: 4 tokens of 8 lie packed, 128 bytes a layer.
TEST(packed_rows_count_as_one) {
    tensor_at  a(&one_buffer, 0x1000), b(&one_buffer, 0x1100);
    const auto runs = gather_merge({ { &a.tensor, 32, 4, 32, 0 }, { &b.tensor, 32, 4, 32, 128 } });
    CHECK_EQ(runs.size(), size_t(1));
    CHECK_EQ(runs[0].row_bytes, size_t(128));
    CHECK_EQ(runs[0].n_rows, size_t(2));
    CHECK_EQ(runs[0].stride_bytes, size_t(256));
}

TEST(what_does_not_line_up_stays_apart) {
    tensor_at a(&one_buffer, 0x1000), b(&one_buffer, 0x1400), far(&one_buffer, 0x1c00);
    // The third lies at twice the distance.
    CHECK_EQ(gather_merge(
                 { { &a.tensor, 32, 1, 1024, 0 }, { &b.tensor, 32, 1, 1024, 32 }, { &far.tensor, 32, 1, 1024, 64 } })
                 .size(),
             size_t(2));
    // Behind the first on the device, before it on the host.
    CHECK_EQ(gather_merge({ { &a.tensor, 32, 1, 1024, 32 }, { &b.tensor, 32, 1, 1024, 0 } }).size(), size_t(2));
    // The same the other way round.
    CHECK_EQ(gather_merge({ { &b.tensor, 32, 1, 1024, 0 }, { &a.tensor, 32, 1, 1024, 32 } }).size(), size_t(2));
    // Rows of other sizes.
    CHECK_EQ(gather_merge({ { &a.tensor, 32, 1, 1024, 0 }, { &b.tensor, 16, 1, 1024, 32 } }).size(), size_t(2));
    // A distance that the second's own rows do not have.
    CHECK_EQ(gather_merge({ { &a.tensor, 32, 1, 1024, 0 }, { &b.tensor, 32, 2, 512, 32 } }).size(), size_t(2));
    // A gap behind four rows.
    tensor_at gap(&one_buffer, 0x2400);
    CHECK_EQ(gather_merge({ { &a.tensor, 32, 4, 1024, 0 }, { &gap.tensor, 32, 4, 1024, 128 } }).size(), size_t(2));
    tensor_at other(&another_buffer, 0x1400);
    CHECK_EQ(gather_merge({ { &a.tensor, 32, 1, 1024, 0 }, { &other.tensor, 32, 1, 1024, 32 } }).size(), size_t(2));
}

TEST(sources_without_rows_are_left_out) {
    tensor_at  a(&one_buffer, 0x1000), b(&one_buffer, 0x1400);
    const auto runs = gather_merge({ { &a.tensor, 32, 0, 1024, 0 }, { &b.tensor, 32, 1, 1024, 0 } });
    CHECK_EQ(runs.size(), size_t(1));
    CHECK_EQ(address(runs[0]), uintptr_t(0x1400));
    CHECK_EQ(gather_merge({}).size(), size_t(0));
}
