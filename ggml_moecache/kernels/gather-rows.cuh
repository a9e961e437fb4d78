// gather_rows: rows of many small tensors, packed into other memory (mapped host memory included), in one launch.
#pragma once

#include <cstdint>

struct gather_rows_entry {
    const char * source; // device memory; rows `stride_bytes` apart
    char *       target; // rows packed
    uint64_t     stride_bytes;
    uint32_t     row_bytes; // a multiple of 4, as source and stride are
    uint32_t     n_rows;
};

// `entries` must be readable by the device until the launch has ended. Returns the launch's error.
cudaError_t gather_rows(const gather_rows_entry * entries, int n_entries, cudaStream_t stream);
