// AdamW on a tensor whose slices need not be adjacent.
#ifndef ADAMW_CUH
#define ADAMW_CUH
#include <math.h>
#include "cuda_common.h"

inline void adamw_update(floatX *params, float *master, floatX *grads, float *m, float *v, size_t n,
                         ptrdiff_t stride, ptrdiff_t, ptrdiff_t, int slices, float lr, float beta1,
                         float beta2, int t, float eps, float wd, float scale, unsigned, cudaStream_t) {
    for (size_t i = 0; i < n * slices; i++) {
        size_t at = i / n * stride + i % n;
        float g = scale * (float)grads[at], p = master ? master[at] : (float)params[at];
        m[at] = beta1 * m[at] + (1.0f - beta1) * g;
        v[at] = beta2 * v[at] + (1.0f - beta2) * g * g;
        p -= lr * (m[at] / (1.0f - powf(beta1, t)) / (sqrtf(v[at] / (1.0f - powf(beta2, t))) + eps) + wd * p);
        params[at] = (floatX)p;
        if (master) {
            master[at] = p;
        }
    }
}
#endif
