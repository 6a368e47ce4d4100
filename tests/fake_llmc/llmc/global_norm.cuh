// The squared norm of a tensor whose slices need not be adjacent.
#ifndef GLOBAL_NORM_CUH
#define GLOBAL_NORM_CUH
#include "cuda_common.h"

inline void global_norm_squared(float *out, const floatX *x, size_t n, ptrdiff_t stride, int slices, int,
                                bool reset, cudaStream_t) {
    if (reset) {
        *out = 0;
    }
    for (int s = 0; s < slices; s++) {
        for (size_t i = 0; i < n; i++) {
            *out += (float)x[s * stride + i] * (float)x[s * stride + i];
        }
    }
}
#endif
