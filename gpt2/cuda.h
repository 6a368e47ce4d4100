// Shared by the CUDA layers: element types, 16-byte vectors, sums over a warp and a block, launches, scratch.
// This file and the .cu files use only the parts of CUDA that tests/cuda/ can run on a CPU.
#ifndef GPT2_CUDA_H
#define GPT2_CUDA_H
#include <cuda_runtime_api.h>
#include "layers.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "gpt2_error.h"

// Returns 0, or -1 with a message that contains `what` and CUDA's error.
int cuda_check(cudaError_t rc, const char *what);
#define CUDA_TRY(call)                            \
    do {                                          \
        if (cuda_check((call), #call)) return -1; \
    } while (0)

// Device memory for the running layer, of the size that its part of plan requested. Layers run one after
// another, so all use the same memory.
void *cuda_scratch(void);
int cuda_use_scratch(void *memory);
// The parts of plan: each returns the scratch it needs, and plan uses the largest.
int matmul_cuda_plan(gpt2_dtype dt, int BT, int C, int Vp, int chunk, size_t *scratch_bytes);
void matmul_cuda_free(void);
// trial_cuda.c: runs or times the planned matmuls, using trial_cuda_bytes() bytes of memory.
size_t trial_cuda_bytes(void);
int trial_cuda(void *memory);
int tune_wanted(void);  // 1: time the matmuls missing from the tuning file; 0: none is missing; -1: no file
int attention_cuda_plan(gpt2_dtype dt, int B, int T, int C, int NH, size_t *scratch_bytes);
void attention_cuda_free(void);

// matmul_cuda.c
void matmul_cuda_options(int tf32, int gelu);
DECLARE_LAYER(cuda, matmul_forward);
DECLARE_LAYER(cuda, matmul_gelu_forward);
DECLARE_LAYER(cuda, matmul_backward);
DECLARE_LAYER(cuda, dinp_bias_fused);

// peak_cuda.c
DECLARE_LAYER(cuda, peak_flops);
// Fills memory with values like those in training, in any dtype.
int cuda_random_values(void *to, size_t bytes);
// Measures the milliseconds per run, averaged over `runs` runs.
int cuda_time(int (*run)(const void *ctx), const void *ctx, int runs, double *ms);

// attention_cuda.cu, cache_cuda.cu
int attention_cuda_options(const char *attention);  // -1: not a word that layers_cuda_options accepts
DECLARE_LAYER(cuda, attention_forward);
DECLARE_LAYER(cuda, attention_backward);
DECLARE_LAYER(cuda, attention_cached);

// rows_cuda.cu; bias_backward uses the scratch, gelu does not
int rows_cuda_plan(gpt2_dtype dt, int C, size_t *scratch_bytes);
DECLARE_LAYER(cuda, layernorm_forward);
DECLARE_LAYER(cuda, residual_layernorm_forward);
DECLARE_LAYER(cuda, layernorm_backward);
DECLARE_LAYER(cuda, gelu_forward);
DECLARE_LAYER(cuda, gelu_backward);
DECLARE_LAYER(cuda, bias_from_sums);
// dbias (OC) = column sums of dout (BT, OC), or += with `add`
int cuda_bias_backward(gpt2_dtype dt, void *dbias, const void *dout, int BT, int OC, int add);

// ends_cuda.cu; rows: the maximum number of positions, or of rows of logits, in one call
int ends_cuda_plan(int rows, int Vp, size_t *scratch_bytes);
void ends_cuda_free(void);
DECLARE_LAYER(cuda, encoder_forward);
DECLARE_LAYER(cuda, encoder_backward);
DECLARE_LAYER(cuda, softmax_crossentropy);
DECLARE_LAYER(cuda, sum);

// staging_cuda.c: sends integers from the host to the scratch without waiting. staging_slot returns pinned
// memory for `ints` of them, or NULL with gpt2_fail's message. After the caller has filled it, staging_send
// queues its copy to the start of the scratch.
int staging_plan(size_t ints, size_t *scratch_bytes);  // ints: the maximum per call
void staging_free(void);
int *staging_slot(size_t ints);
int staging_send(size_t ints, const int **device);

// copy_cuda.c
DECLARE_LAYER(cuda, copy_beside);
DECLARE_LAYER(cuda, await_copy);
void copy_cuda_free(void);

#ifdef __cplusplus
}
#endif

#if defined(__CUDACC__) || (defined(CUDA_STAND_IN) && defined(__cplusplus))
#include <cuda_runtime.h>
#include <string.h>

// -------- element types: memory is T, arithmetic is float. Rounds to nearest even; NaN stays NaN.

struct bf16 {
    uint16_t bits;
};
struct fp16 {
    uint16_t bits;
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
template <class T> __device__ inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
#ifdef __CUDA_ARCH__
template <> __device__ inline bf16 from_float<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <> __device__ inline fp16 from_float<fp16>(float x) {
    fp16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
__device__ inline float to_float(fp16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
// e^x and 1/x by the hardware's approximations, to a few units in the last place. Values below 2^-126 become
// 0.
__device__ inline float fast_exp(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.442695041f));
    return y;
}
__device__ inline float fast_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#else
// tests/cuda/ defines these conversions. In nvcc's host pass none of this runs.
#ifndef CUDA_STAND_IN
static inline uint16_t bf16_round(float) { return 0; }
static inline uint16_t fp16_round(float) { return 0; }
static inline float fp16_widen(uint16_t) { return 0; }
#endif
template <> __device__ inline bf16 from_float<bf16>(float x) { return bf16{ bf16_round(x) }; }
template <> __device__ inline fp16 from_float<fp16>(float x) { return fp16{ fp16_round(x) }; }
__device__ inline float to_float(fp16 x) { return fp16_widen(x.bits); }
__device__ inline float fast_exp(float x) { return expf(x); }
__device__ inline float fast_reciprocal(float x) { return 1.0f / x; }
#endif

// W elements are accessed at once: 16 bytes, which divide the length of every row (LAYERS_CUDA_ROWS).
template <class T, int W> struct alignas(W * sizeof(T)) vec { T e[W]; };
template <class T> constexpr int wide = 16 / sizeof(T);
template <int W, class T> __device__ inline vec<T, W> load(const T *p) { return *(const vec<T, W> *)p; }
template <class T, int W> __device__ inline void store(T *p, vec<T, W> x) { *(vec<T, W> *)p = x; }
template <class T, int W> __device__ inline float to_float(const vec<T, W> &x, int k) {
    return to_float(x.e[k]);
}
// Converting whole 32-bit words takes half the instructions.
template <> __device__ inline float to_float(const vec<bf16, 8> &x, int k) {
    unsigned pair;
    memcpy(&pair, &x.e[k & ~1], sizeof pair);
    return __uint_as_float(k & 1 ? pair & 0xffff0000u : pair << 16);
}

// An expression in which T is the C++ type of dt
#define BY_DTYPE(dt, ...) \
    ((dt) == GPT2_F32    ? [&] { using T = float; return __VA_ARGS__; }() \
     : (dt) == GPT2_BF16 ? [&] { using T = bf16; return __VA_ARGS__; }() \
                         : [&] { using T = fp16; return __VA_ARGS__; }())

enum { WARP = 32 };
__device__ inline float warp_sum(float x) {
    for (int i = WARP / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
__device__ inline float warp_max(float x) {
    for (int i = WARP / 2; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

// sum += the vectors at row(i), i = first, first + step, ... < n. N loads are in flight before the first is
// used. Loads past the end repeat the last row, and their values are dropped.
template <int N, class Sum, int W, class Row>
__device__ inline void add_vectors(Sum (&sum)[W], int first, int n, int step, Row row) {
    for (int i = first; i < n; i += N * step) {
        decltype(load<W>(row(i))) x[N];
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = load<W>(row(i + j * step < n ? i + j * step : n - 1));
#pragma unroll
        for (int j = 0; j < N; j++) {
            for (int k = 0; k < W; k++) sum[k] += i + j * step < n ? to_float(x[j], k) : 0;
        }
    }
}

// The warps of a block, or teams of warps, take turns adding x, W values per lane, to total[at..at+W), so
// that the order and the bits are always the same.
template <int W>
__device__ inline void add_by_turns(float *total, int at, const float (&x)[W], int team, int teams) {
    for (int turn = 0; turn < teams; turn++) {
        if (turn == team)
            for (int k = 0; k < W; k++) total[at + k] = turn ? total[at + k] + x[k] : x[k];
        __syncthreads();
    }
}
template <int W> __device__ inline void add_by_turns(float *total, int at, const float (&x)[W]) {
    add_by_turns(total, at, x, threadIdx.x / WARP, blockDim.x / WARP);
}

// -------- launching, on the default stream

template <class... P, class... A>
int launch(const char *what, void (*kernel)(P...), dim3 grid, dim3 block, A... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    return cuda_check(cudaLaunchKernelEx(&config, kernel, args...), what);
}
// a / b, rounded up
inline unsigned blocks_for(size_t n, size_t each) { return (unsigned)((n + each - 1) / each); }
#endif
#endif
