// Shared by the CPU layers: scratch memory, function multiversioning, and rows stored as fp32 or bf16. Row
// kernels compute in fp32: they use fp32 rows in place, and widen bf16 piece by piece into a small buffer
// that stays in L1.
#ifndef GPT2_CPU_H
#define GPT2_CPU_H
#include "layers.h"

// VECTOR functions are compiled once per instruction set, and the loader picks one. Helpers that they call in
// their inner loops must be INLINE, or they stay at the baseline. VECTOR is off with sanitizers, because
// their runtime is not ready yet when the loader picks, and with clang, because other files cannot see its
// clones.
#if !defined(__x86_64__) || !defined(__GLIBC__) || defined(__clang__) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)
#define VECTOR
#elif __GNUC__ >= 12
#define VECTOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTOR __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#define INLINE static inline __attribute__((always_inline))

enum { PIECE = 1024 };  // elements widened at a time
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

// rows_cpu.c: the threads of every parallel region and their scratch, fixed by plan. scratch_plan returns the
// bytes of scratch for `threads` threads with `floats` floats each.
size_t scratch_plan(int threads, size_t floats);
void set_scratch(void *memory);
int layers_threads(void);
float *thread_scratch(int thread);  // belongs to one thread
void *shared_scratch(void);         // belongs to the running layer

// number of floats that a thread needs for attention
size_t attention_scratch_floats(int T, int C, int NH);

// Both find the scratch of the matmuls, which matmul_prepare then compiles.
int matmul_plan(gpt2_dtype dt, int BT, int C, int Vp, int chunk, size_t *scratch_bytes);
int matmul_plan_forward(gpt2_dtype dt, int tokens, int rows, int C, int Vp, size_t *scratch_bytes);
int matmul_prepare(void);
void matmul_free(void);

// rows_cpu.c, matmul_cpu.c, peak_cpu.c and attention_cpu.c
DECLARE_LAYER(cpu, has_dtype);
DECLARE_LAYER(cpu, gelu_forward);
DECLARE_LAYER(cpu, gelu_backward);
DECLARE_LAYER(cpu, matmul_forward);
DECLARE_LAYER(cpu, matmul_gelu_forward);
DECLARE_LAYER(cpu, matmul_backward);
DECLARE_LAYER(cpu, dinp_bias_fused);
DECLARE_LAYER(cpu, peak_flops);
DECLARE_LAYER(cpu, attention_forward);
DECLARE_LAYER(cpu, attention_backward);
DECLARE_LAYER(cpu, attention_cached);

// acc (n, fp32) += x[at..at+n)
void accumulate(float *acc, gpt2_dtype dt, const void *x, size_t at, size_t n);
// x[at..at+n) += acc, rounded once
void add_sums(gpt2_dtype dt, void *x, size_t at, const float *acc, size_t n);
// sums (OC, of type sums_dt) += the sums of x's columns; x (BT, OC)
void add_column_sums(gpt2_dtype sums_dt, void *sums, gpt2_dtype dt, const void *x, int BT, int OC);

// Rounds to nearest even in integer arithmetic, so that every instruction set gives the same bits. NaN stays
// NaN even if its low bits are cut off.
INLINE uint16_t narrow(float x) {
    union {
        float f;
        uint32_t u;
    } v = { x };
    uint32_t rounded = (v.u + 0x7fff + ((v.u >> 16) & 1)) >> 16;
    return (uint16_t)((v.u & 0x7fffffff) > 0x7f800000 ? (v.u >> 16) | 0x40 : rounded);
}

// Returns x[at..at+n) in fp32: the memory itself, or buf with the widened values.
INLINE const float *view(gpt2_dtype dt, const void *x, size_t at, size_t n, float *buf) {
    if (dt == GPT2_F32) return (const float *)x + at;
    const uint16_t *row = (const uint16_t *)x + at;
#pragma omp simd
    for (size_t i = 0; i < n; i++) buf[i] = bf16_to_f32(row[i]);
    return buf;
}

// Returns where to write x[at..) in fp32: the memory itself, or buf, which commit then narrows.
INLINE float *target(gpt2_dtype dt, void *x, size_t at, float *buf) {
    return dt == GPT2_F32 ? (float *)x + at : buf;
}

INLINE void commit(gpt2_dtype dt, void *x, size_t at, size_t n, const float *buf) {
    if (dt == GPT2_F32) return;
    uint16_t *row = (uint16_t *)x + at;
#pragma omp simd
    for (size_t i = 0; i < n; i++) row[i] = narrow(buf[i]);
}

// e^x to about 2 ulp: 0 below -87, where fp32 becomes subnormal; infinity above 88.72; NaN stays NaN. It is a
// polynomial in r times 2^n, where x = n ln 2 + r and |r| <= ln 2 / 2.
INLINE float exp_f32(float x) {
    x = x < -87.3f ? -87.3f : x;  // NaN passes both comparisons unchanged
    x = x > 88.8f ? 88.8f : x;
    union {
        float f;
        uint32_t u;
    } n = { x * 1.44269504f + 12582912.0f };  // 1.5 * 2^23: rounds, leaving n in the low bits
    float k = n.f - 12582912.0f;
    float r = x - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    n.u = (n.u + 126) << 23;  // 2^(n-1), so that n = 128 does not overflow before the multiplication
    return p * n.f * 2.0f;
}
#endif
