// The arithmetic of kernels.h on CUDA. Each function queues its kernel on a stream, takes pointers to device
// memory, and returns the result of the launch.
#ifndef LLMC_ZERO_DEVICE_KERNELS_CUDA_H
#define LLMC_ZERO_DEVICE_KERNELS_CUDA_H
#include <cuda_runtime_api.h>
#include "kernels.h"
#ifdef __cplusplus
extern "C" {
#endif

// One launch for all stretches.
cudaError_t cuda_clear_stretches(cudaStream_t s, zero_dtype type, void *x, const stretches *of_x);
cudaError_t cuda_sum_ranks(cudaStream_t s, zero_dtype to_type, void *to, zero_dtype type,
                           const rank_parts *parts, float scale, int64_t n, const float *plus);
// Adds the squares of all stretches to an exact sum, in one launch. A stretch has a piece for each SUM_BLOCK.
cudaError_t cuda_add_squares(cudaStream_t s, uint64_t *words, const stretches *of_x, zero_dtype type,
                             const void *x);
// One launch for all segments.
cudaError_t cuda_adamw(cudaStream_t s, const adamw_constants *c, const adamw_arrays *a, const adamw_table *t);

#ifdef __cplusplus
}
#endif
#endif
