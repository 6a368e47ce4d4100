// Loops over an array in blocks that stay in the first-level cache.
#ifndef LLMC_ZERO_DEVICE_THREAD_BLOCKS_H
#define LLMC_ZERO_DEVICE_THREAD_BLOCKS_H
#include <stdint.h>

enum { BLOCK = 1024 };
typedef void block_work(const void *ctx, int64_t b, int64_t len);  // elements [b, b + len)

// Uses all threads, unless there is so little work that a parallel region would cost more. Even with a false
// `if` clause the region has that cost, so it is not entered then.
static inline void for_each_block(int64_t n, block_work *work, const void *ctx) {
    if (n <= 8 * BLOCK) {
        for (int64_t b = 0; b < n; b += BLOCK) work(ctx, b, n - b < BLOCK ? n - b : BLOCK);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < n; b += BLOCK) work(ctx, b, n - b < BLOCK ? n - b : BLOCK);
}

#endif
