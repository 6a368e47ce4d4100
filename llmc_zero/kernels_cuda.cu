/*
 * The kernels of kernels_cuda.h. They move memory and little else: every thread takes 4 neighbouring elements, in one access where all of
 * them are there and aligned. Compiled with -fmad=false: what is to be one rounding is an fmaf, nothing else is. Of CUDA they use only what
 * tests/cuda/ can run on a processor.
 */
#include <cuda_runtime.h>
#include "kernels_cuda.h"
#include "numbers.h"

namespace {

enum { THREADS = 256, EACH = 4 };

struct bf16 { uint16_t bits; };
struct fp16 { uint16_t bits; };

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return bf16_widen(x.bits); }
__device__ inline float widen(fp16 x) { return fp16_widen(x.bits); }
__device__ inline void narrow(float *to, float x) { *to = x; }
__device__ inline void narrow(bf16 *to, float x) { to->bits = bf16_round(x); }
__device__ inline void narrow(fp16 *to, float x) { to->bits = fp16_round(x); }

template <class T> struct alignas(EACH * sizeof(T)) four { T e[EACH]; };

template <class T> __device__ inline bool whole(const T *p, int64_t left) { return left >= EACH && (uintptr_t)p % sizeof(four<T>) == 0; }

/* x[0..4) = p[0..left), 0 behind the end. */
template <class T> __device__ inline void load(float x[EACH], const T *p, int64_t left) {
    if (whole(p, left)) {
        four<T> v = *(const four<T> *)p;
        for (int i = 0; i < EACH; i++) x[i] = widen(v.e[i]);
    } else
        for (int i = 0; i < EACH; i++) x[i] = i < left ? widen(p[i]) : 0.0f;
}

template <class T> __device__ inline void store(T *p, const float x[EACH], int64_t left) {
    if (whole(p, left)) {
        four<T> v;
        for (int i = 0; i < EACH; i++) narrow(&v.e[i], x[i]);
        *(four<T> *)p = v;
    } else
        for (int i = 0; i < EACH && i < left; i++) narrow(&p[i], x[i]);
}

/* A thread's first element. */
__device__ inline int64_t first() { return ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EACH; }

template <class K, class... A> cudaError_t launch(cudaStream_t s, int64_t n, K kernel, A... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)((n + THREADS * EACH - 1) / (THREADS * EACH)));
    config.blockDim = dim3(THREADS);
    config.stream = s;
    return n ? cudaLaunchKernelEx(&config, kernel, args...) : cudaSuccess;
}

template <class To, class From> __global__ void convert(To *to, const From *from, int64_t n) {
    int64_t i = first();
    float x[EACH];
    if (i >= n) return;
    load(x, from + i, n - i);
    store(to + i, x, n - i);
}

/* Where the ranks' parts lie: handed over with the launch, or in memory of the device, to which launches of their own bring them. */
struct listed { const void *of[CUDA_LISTED]; };
struct tabled { const void *const *of; };

__global__ void write_table(const void **table, listed parts, int n) {
    if ((int)threadIdx.x < n) table[threadIdx.x] = parts.of[threadIdx.x];
}

template <class To, class T, class Parts> __global__ void sum_ranks(To *to, Parts parts, int ranks, float scale, int64_t n, int add) {
    int64_t i = first();
    float sum[EACH], x[EACH];
    if (i >= n) return;
    load(sum, (const T *)parts.of[0] + i, n - i);
    for (int r = 1; r < ranks; r++) {
        load(x, (const T *)parts.of[r] + i, n - i);
        for (int j = 0; j < EACH; j++) sum[j] += x[j];
    }
    for (int j = 0; j < EACH; j++) sum[j] *= scale;
    if (add) {
        load(x, to + i, n - i);
        for (int j = 0; j < EACH; j++) sum[j] = x[j] + sum[j];
    }
    store(to + i, sum, n - i);
}

template <class T> __global__ void accumulate(float *to, const T *from, int64_t n, int is_first) {
    int64_t i = first();
    float sum[EACH], x[EACH];
    if (i >= n) return;
    load(sum, from + i, n - i);
    if (!is_first) {
        load(x, to + i, n - i);
        for (int j = 0; j < EACH; j++) sum[j] = x[j] + sum[j];
    }
    store(to + i, sum, n - i);
}

/* partial[block]: the sum of squares of one SUM_BLOCK. Sixteen threads take a piece: thread j is lane j. */
enum { SQUARES_THREADS = 512, PIECES = SUM_BLOCK / SUM_PIECE };
template <class T> __global__ void sum_squares(double *partial, const T *x, int64_t n) {
    __shared__ double lanes[PIECES][SUM_LANES];
    int64_t begin = (int64_t)blockIdx.x * SUM_BLOCK;
    for (int piece = threadIdx.x / SUM_LANES; piece < PIECES; piece += SQUARES_THREADS / SUM_LANES) {
        int lane = threadIdx.x % SUM_LANES;
        int64_t from = begin + piece * SUM_PIECE + lane, end = begin + (piece + 1) * SUM_PIECE < n ? begin + (piece + 1) * SUM_PIECE : n;
        double sum = 0;
        for (int64_t i = from; i < end; i += SUM_LANES) {
            double d = widen(x[i]);
            sum += d * d;
        }
        lanes[piece][lane] = sum;
    }
    __syncthreads();
    if (threadIdx.x < PIECES) {                 /* a piece's lanes in their order */
        double sum = 0;
        for (int lane = 0; lane < SUM_LANES; lane++) sum += lanes[threadIdx.x][lane];
        lanes[threadIdx.x][0] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {                     /* the pieces in theirs; those behind the end are +0, which changes nothing */
        double sum = 0;
        for (int piece = 0; piece < PIECES; piece++) sum += lanes[piece][0];
        partial[blockIdx.x] = sum;
    }
}

__global__ void add_up(double *sum, const double *partial, int64_t n) {
    double total = 0;
    for (int64_t i = 0; i < n; i++) total += partial[i];
    *sum = total;
}

__device__ inline float adamw_element(const adamw_constants &c, float p, float *m, float *v, float g) {
    float grad = g * c.grad_scale;
    *m = fmaf(c.one_minus_beta1, grad, c.beta1 * *m);
    *v = fmaf(c.one_minus_beta2 * grad, grad, c.beta2 * *v);
    float denominator = fmaf(sqrtf(*v), c.inv_sqrt_correction2, c.eps);
    return fmaf(-c.step_size, *m / denominator, c.keep * p);
}

template <class G, class Low> __global__ void adamw(adamw_constants c, adamw_arrays a, int64_t n) {
    int64_t i = first(), left = n - i;
    float p[EACH], m[EACH], v[EACH], g[EACH];
    Low *low = a.low ? (Low *)a.low + i : nullptr;
    if (i >= n) return;
    if (a.p) load(p, a.p + i, left);
    else load(p, low, left);
    load(m, a.m + i, left);
    load(v, a.v + i, left);
    load(g, (const G *)a.g + i, left);
    for (int j = 0; j < EACH; j++) p[j] = adamw_element(c, p[j], &m[j], &v[j], g[j]);
    store(a.m + i, m, left);
    store(a.v + i, v, left);
    if (a.p) store(a.p + i, p, left);
    else
        for (int j = 0; j < EACH; j++) p[j] = bf16_widen(bf16_round_with(p[j], noise_at(a.noise_key, a.noise_first + (uint32_t)(i + j))));
    if (low) store(low, p, left);
}

/* Calls f with a `type<T>` of the T that t stands for. */
template <class T> struct type { using t = T; };
template <class F> cudaError_t with(zero_dtype t, F f) {
    return t == ZERO_F32 ? f(type<float>()) : t == ZERO_BF16 ? f(type<bf16>()) : f(type<fp16>());
}

listed list(const void *const *parts, int n) {
    listed all = {};
    for (int i = 0; i < n; i++) all.of[i] = parts[i];
    return all;
}

template <class Parts> cudaError_t sum_parts(cudaStream_t s, zero_dtype to_type, void *to, zero_dtype type_, Parts parts, int ranks,
                                             float scale, int64_t n, int add) {
    return with(to_type, [=](auto t) {
        using To = typename decltype(t)::t;
        return with(type_, [=](auto f) {
            using T = typename decltype(f)::t;
            return launch(s, n, sum_ranks<To, T, Parts>, (To *)to, parts, ranks, scale, n, add);
        });
    });
}

}   // namespace

extern "C" {

cudaError_t cuda_convert(cudaStream_t s, zero_dtype to_type, void *to, zero_dtype from_type, const void *from, int64_t n) {
    if (to_type == from_type) return cudaMemcpyAsync(to, from, n * dtype_bytes(to_type), cudaMemcpyDeviceToDevice, s);
    return with(to_type, [=](auto t) {
        using To = typename decltype(t)::t;
        return with(from_type, [=](auto f) {
            using From = typename decltype(f)::t;
            return launch(s, n, convert<To, From>, (To *)to, (const From *)from, n);
        });
    });
}

cudaError_t cuda_sum_ranks(cudaStream_t s, zero_dtype to_type, void *to, zero_dtype type_, const void *const *parts, const void **table,
                           int ranks, float scale, int64_t n, int add) {
    if (!table && ranks > CUDA_LISTED) return cudaErrorInvalidValue;
    if (!table) return sum_parts(s, to_type, to, type_, list(parts, ranks), ranks, scale, n, add);
    for (int r = 0; r < ranks; r += CUDA_LISTED) {
        int some = ranks - r < CUDA_LISTED ? ranks - r : CUDA_LISTED;
        cudaError_t rc = launch(s, some, write_table, table + r, list(parts + r, some), some);
        if (rc != cudaSuccess) return rc;
    }
    return sum_parts(s, to_type, to, type_, tabled{ table }, ranks, scale, n, add);
}

cudaError_t cuda_accumulate(cudaStream_t s, float *to, zero_dtype type_, const void *from, int64_t n, int first) {
    return with(type_, [=](auto f) {
        using T = typename decltype(f)::t;
        return launch(s, n, accumulate<T>, to, (const T *)from, n, first);
    });
}

cudaError_t cuda_sum_squares(cudaStream_t s, double *sum, double *partial, zero_dtype type_, const void *x, int64_t n) {
    cudaLaunchConfig_t config = {};
    int64_t blocks = kernel_sum_squares_partials(n);
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(SQUARES_THREADS);
    config.stream = s;
    cudaError_t rc = with(type_, [&](auto f) {
        using T = typename decltype(f)::t;
        return cudaLaunchKernelEx(&config, sum_squares<T>, partial, (const T *)x, n);
    });
    if (rc != cudaSuccess) return rc;
    config.gridDim = config.blockDim = dim3(1);
    return cudaLaunchKernelEx(&config, add_up, sum, (const double *)partial, blocks);
}

cudaError_t cuda_adamw(cudaStream_t s, const adamw_constants *c, const adamw_arrays *a, int64_t n) {
    return with(a->g_type, [=](auto g) {
        using G = typename decltype(g)::t;
        return with(a->low ? a->low_type : ZERO_BF16, [=](auto l) { return launch(s, n, adamw<G, typename decltype(l)::t>, *c, *a, n); });
    });
}

}
