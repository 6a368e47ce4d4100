/* The arithmetic of the plugin on a processor. The same bits whatever the vector width: no contraction, no reassociation, explicit fmaf. */
#ifndef LLMC_ZERO_KERNELS_H
#define LLMC_ZERO_KERNELS_H
#include "zero.h"

/* One binary runs everywhere: the loader picks the widest version the processor has. Off under the thread and address sanitizers,
 * whose run time is not ready when the loader picks. */
#if !defined(__x86_64__) || !defined(__GLIBC__) || defined(__clang__) || defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ZERO_CLONES
#elif __GNUC__ >= 12
#define ZERO_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else           /* no levels yet; avx2 alone would leave fmaf to the library */
#define ZERO_CLONES __attribute__((target_clones("avx512f", "fma", "default")))
#endif

static inline size_t dtype_bytes(zero_dtype t) { return t == ZERO_BF16 ? 2 : 4; }

/* to[i] = from[i] in another dtype; bf16 rounds to nearest even, NaN stays NaN. */
void kernel_convert(zero_dtype to_type, void *to, zero_dtype from_type, const void *from, int64_t n);

/* The sum of a gradient over the ranks: ((p0 + p1) + p2 ..) in fp32 in rank order, times scale, rounded once to `to`;
 * add: added to `to`, which is fp32. */
void kernel_sum_ranks(zero_dtype to_type, void *to, zero_dtype type, const void *const *parts, int ranks, float scale, int64_t n, int add);

/* to[i] = from[i] (first) or += from[i], in fp32. */
void kernel_accumulate(float *to, zero_dtype type, const void *from, int64_t n, int first);

/* Sum of squares in fp64. Blocks of fixed size, each with the same order of additions, summed in order: the same bits at any number of
 * threads. Not finite if an element is not: squares of floats cannot overflow a double. */
double kernel_sum_squares(zero_dtype type, const void *x, int64_t n);

void kernel_fill_nan(void *x, size_t bytes);

/* AdamW on n elements. g: the mean gradient, fp32 or bf16, times grad_scale. low: where the updated parameter is stored as bf16, or
 * NULL when the parameter is its own master. */
typedef struct { float beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt_correction2, eps, keep, grad_scale; } adamw_constants;
adamw_constants adamw_prepare(const zero_hyper *h, double grad_scale, int decay);
void kernel_adamw(const adamw_constants *c, float *p, float *m, float *v, zero_dtype g_type, const void *g, uint16_t *low, int64_t n);

#endif
