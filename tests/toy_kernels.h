// The toy's arithmetic, one element at a time. It gives the same bits on the CPU (toy.h) and on CUDA
// (toy_cuda.cu).
#ifndef TESTS_TOY_KERNELS_H
#define TESTS_TOY_KERNELS_H
#include <math.h>
#include "../llmc_zero/device/numbers.h"
#include "../llmc_zero/zero.h"

ZERO_INLINE float toy_load(zero_dtype dtype, const void *p, int64_t i) {
    if (dtype == ZERO_F32) return ((const float *)p)[i];
    uint16_t x = ((const uint16_t *)p)[i];
    return dtype == ZERO_BF16 ? bf16_widen(x) : fp16_widen(x);
}
ZERO_INLINE void toy_store(zero_dtype dtype, void *p, int64_t i, float x) {
    if (dtype == ZERO_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = dtype == ZERO_BF16 ? bf16_round(x) : fp16_round(x);
}

// Returns the sum of x (n) in tree order. Level by level, each value that has a right neighbour takes it in.
ZERO_INLINE float toy_tree(float *x, int n) {
    for (int apart = 1; apart < n; apart *= 2)
        for (int i = 0; i + apart < n; i += 2 * apart) x[i] = x[i] + x[i + apart];
    return x[0];
}

// Returns the activation after reading parameter x, which is element i of its tensor. It depends on all
// parameters read so far, so a single stale one changes the gradients.
ZERO_INLINE float toy_add_parameter(float activation, float x, int64_t i) {
    return activation + x * ((float)(i % 13 - 6) / 64);
}

// One use of one tensor in backward.
typedef struct {
    zero_dtype dtype;
    int ranks, rank, micro, use;
    int exact;  // gradients are multiples of ranks / 32, so that sums and means are exact in any order
    float loss_scale;
    int writes;  // 1: overwrites g instead of adding to it; gives the same bits if g was 0
} toy_use;

// p: the parameters, or NULL if this use reads none.
ZERO_INLINE void toy_add_gradient(const toy_use *u, float activation, const void *p, void *g, int64_t i) {
    float x = (p ? 3 * toy_load(u->dtype, p, i) : 0.5f) + (activation - rintf(activation)) +
              0.01f * (float)(i % 11);
    x += 0.3f * u->rank + 0.17f * u->micro + 0.2f * u->use;
    float y = x / (1 + x * x);
    if (u->exact) y = u->ranks * rintf(32 * y) / 32;
    toy_store(u->dtype, g, i, (u->writes ? 0.0f : toy_load(u->dtype, g, i)) + u->loss_scale * y);
}

// An optimizer without states.
ZERO_INLINE void toy_sgd(void *ctx, const zero_piece *p) {
    (void)ctx;
    for (int64_t i = 0; i < p->n; i++) p->weights[i] -= p->lr * p->gradient[i];
}

// The toy in device memory. Each function queues its work on a stream, does not wait, and returns 0 or the
// launch's error. The activation is one float on the device. The last three update a piece.
typedef struct {
    int (*start)(void *stream, float *activation, float value);
    int (*read)(void *stream, float *activation, zero_dtype dtype, const void *p, int64_t n);
    int (*add_gradient)(void *stream, const toy_use *u, const float *activation, const void *p, void *g,
                        int64_t n);
    void (*sgd)(const zero_piece *p), (*sgd_momentum)(const zero_piece *p), (*lion)(const zero_piece *p);
} toy_device;

#ifdef __cplusplus
extern "C" {
#endif
extern const toy_device toy_cuda;
#ifdef __cplusplus
}
#endif

#endif
