// One block per entry, 4-byte words, one thread per word in turn. The entries and the targets of the routing log lie in
// mapped host memory: 40 layers of top-8 are 80 entries of 32 bytes each, so one launch costs a few microseconds,
// against some 3 us for each of 80 copies.
#include <cuda_runtime.h>

#include "kernels/gather-rows.cuh"

static __global__ void gather_rows_kernel(const gather_rows_entry * entries) {
    const gather_rows_entry entry     = entries[blockIdx.x];
    const uint32_t          row_words = entry.row_bytes / 4;
    const uint64_t          n_words   = uint64_t(row_words) * entry.n_rows;
    for (uint64_t i = threadIdx.x; i < n_words; i += blockDim.x) {
        const uint64_t row  = i / row_words;
        const uint64_t word = i % row_words;
        const auto *   from = reinterpret_cast<const uint32_t *>(entry.source + row * entry.stride_bytes);
        reinterpret_cast<uint32_t *>(entry.target)[i] = from[word];
    }
}

cudaError_t gather_rows(const gather_rows_entry * entries, int n_entries, cudaStream_t stream) {
    if (n_entries == 0) {
        return cudaSuccess;
    }
    gather_rows_kernel<<<n_entries, 128, 0, stream>>>(entries);
    return cudaGetLastError();
}
