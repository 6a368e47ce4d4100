// The kernels of kernels_cuda.h. They are memory-bound, so a thread handles 4 contiguous elements (16 bytes
// for the norm) in one access if all exist and are aligned. They are compiled with -fmad=false, so that only
// explicit fmaf calls are fused. They use only the subset of CUDA that tests/cuda/ can run on a CPU.
#include <cuda_runtime.h>
#include "kernels_cuda.h"

namespace {

enum { WARP = 32, THREADS = 256, EACH = 4 };

struct bf16 {
    uint16_t bits;
};
struct fp16 {
    uint16_t bits;
};

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return bf16_widen(x.bits); }
__device__ inline float widen(fp16 x) { return fp16_widen(x.bits); }
__device__ inline void narrow(float *to, float x) { *to = x; }
__device__ inline void narrow(bf16 *to, float x) { to->bits = bf16_round(x); }
__device__ inline void narrow(fp16 *to, float x) { to->bits = fp16_round(x); }

template <class T> struct alignas(EACH * sizeof(T)) four { T e[EACH]; };

template <class T> __device__ inline bool whole(const T *p, int64_t left) {
    return left >= EACH && (uintptr_t)p % sizeof(four<T>) == 0;
}

// Loads p[0..4) in one access, or element by element with 0 after the end.
template <bool WHOLE, class T> __device__ inline four<T> fetch(const T *p, int64_t left) {
    if constexpr (WHOLE) {
        return *(const four<T> *)p;
    } else {
        four<T> v;
        for (int i = 0; i < EACH; i++) v.e[i] = i < left ? p[i] : T{};
        return v;
    }
}
template <bool WHOLE, class T> __device__ inline void put(T *p, const float x[EACH], int64_t left) {
    four<T> v;
    for (int i = 0; i < EACH; i++) narrow(&v.e[i], x[i]);
    if constexpr (WHOLE)
        *(four<T> *)p = v;
    else
        for (int i = 0; i < EACH && i < left; i++) p[i] = v.e[i];
}

template <class T> __device__ inline void load(float x[EACH], const T *p, int64_t left) {
    four<T> v = whole(p, left) ? fetch<true>(p, left) : fetch<false>(p, left);
    for (int i = 0; i < EACH; i++) x[i] = widen(v.e[i]);
}
template <class T> __device__ inline void store(T *p, const float x[EACH], int64_t left) {
    if (whole(p, left))
        put<true>(p, x, left);
    else
        put<false>(p, x, left);
}

// Returns the thread's first element.
__device__ inline int64_t first() { return ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EACH; }

template <class K, class... A> cudaError_t launch(cudaStream_t s, int64_t n, K kernel, A... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)((n + THREADS * EACH - 1) / (THREADS * EACH)));
    config.blockDim = dim3(THREADS);
    config.stream = s;
    return n ? cudaLaunchKernelEx(&config, kernel, args...) : cudaSuccess;
}

template <class T> __device__ inline const T *part_of(const rank_parts &p, int r) {
    return (const T *)(r == p.rank ? p.own : p.others + r * p.stride);
}

enum { LEVELS = 31 };  // of a tree with as many ranks as an int can count
__device__ inline void keep(float *to, const float *x) {
    for (int j = 0; j < EACH; j++) to[j] = x[j];
}
__device__ inline void add_to(float *sum, const float *before) {
    for (int j = 0; j < EACH; j++) sum[j] = before[j] + sum[j];
}

// Sums in tree order in one pass: `sums` keeps the finished left branches, the largest first, like the digits
// of a binary counter.
template <class To, class T>
__global__ void sum_ranks(To *to, rank_parts parts, float scale, int64_t n, const float *plus) {
    int64_t i = first();
    float sums[LEVELS][EACH], sum[EACH], x[EACH];
    int kept = 0;
    if (i >= n) return;
    for (int r = 0; r < parts.ranks; r++) {
        if (r) keep(sums[kept++], sum);
        load(sum, part_of<T>(parts, r) + i, n - i);
        for (int m = r; m & 1; m >>= 1) add_to(sum, sums[--kept]);
    }
    while (kept) add_to(sum, sums[--kept]);
    for (int j = 0; j < EACH; j++) sum[j] *= scale;
    if (plus) {
        load(x, plus + i, n - i);
        for (int j = 0; j < EACH; j++) sum[j] = x[j] + sum[j];
    }
    store(to + i, sum, n - i);
}

// Returns the index of the last of n entries whose `first` is at most x. The warp's lanes check 32 entries at
// a time.
template <class E> __device__ inline int find(const E *list, int n, int64_t x) {
    int lane = threadIdx.x % WARP, from = 0;
    while (n > 1) {
        int step = (n + WARP - 1) / WARP, i = lane * step;
        int found = (__popc(__ballot_sync(~0u, i < n && list[from + i].first <= x)) - 1) * step;
        from += found;
        n = n - found < step ? n - found : step;
    }
    return from;
}

// Each warp clears one chunk.
template <class T> __global__ void clear(T *x, stretches of_x) {
    int64_t number = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP;
    const float none[EACH] = { 0 };
    if (number >= of_x.pieces) return;  // the same for a whole warp
    stretch s = of_x.list[find(of_x.list, of_x.n, number)];
    int64_t begin = (number - s.first) * CLEAR_CHUNK + threadIdx.x % WARP * EACH;
    for (int64_t i = begin; i < begin + CLEAR_CHUNK; i += WARP * EACH)
        store(x + s.offset + i, none, s.elems - i);
}

// Adds the squares of stretches, in blocks of SUM_BLOCK elements. SHARE adjacent threads handle a piece, and
// each thread as many of its lanes as fit into 16 bytes.
template <class T> struct lanes_of {
    enum { N = 16 / sizeof(T), SHARE = SUM_LANES / N, PIECES = THREADS / SHARE };
    struct alignas(16) access {
        T e[N];
    };
};

// Sums the squares of a thread's lanes of a piece; elements from `left` on count as 0. Squares are exact in
// fp64, so the fma rounds like the CPU's addition.
template <class T> __device__ inline void sum_lanes(double *sum, const T *x, int64_t left) {
    enum { RUN = SUM_PIECE / SUM_LANES };  // accesses in flight
    using lanes = lanes_of<T>;
    typename lanes::access v[RUN];
    bool is_whole = left >= (RUN - 1) * SUM_LANES + lanes::N && (uintptr_t)x % sizeof v[0] == 0;
    for (int r = 0; r < RUN && is_whole; r++) v[r] = *(const typename lanes::access *)(x + r * SUM_LANES);
    for (int i = 0; i < RUN * lanes::N && !is_whole; i++) {
        int at = i / lanes::N * SUM_LANES + i % lanes::N;
        v[i / lanes::N].e[i % lanes::N] = at < left ? x[at] : T{};
    }
    for (int r = 0; r < RUN; r++)
        for (int j = 0; j < lanes::N; j++) {
            double d = widen(v[r].e[j]);
            sum[j] = fma(d, d, sum[j]);
        }
}

// The first thread of a piece has an exact sum in shared memory, so that no two threads add to the same word.
// One word of padding puts these sums into different banks.
template <class T> __global__ void add_squares(uint64_t *words, stretches list, const T *x) {
    using lanes = lanes_of<T>;
    __shared__ uint64_t sums[lanes::PIECES][EXACT_WORDS + 1];
    stretch part = list.list[find(list.list, list.n, blockIdx.x)];
    int piece = threadIdx.x / lanes::SHARE, own = threadIdx.x % lanes::SHARE, half;
    int64_t begin = (blockIdx.x - part.first) * SUM_BLOCK;
    int64_t end = part.elems - begin < SUM_BLOCK ? part.elems : begin + SUM_BLOCK;
    for (int i = own; i < EXACT_WORDS; i += lanes::SHARE) sums[piece][i] = 0;
    __syncthreads();
    for (; begin < end; begin += lanes::PIECES * SUM_PIECE) {
        int64_t at = begin + piece * SUM_PIECE + own * lanes::N;
        double sum[lanes::N] = {};
        sum_lanes(sum, x + part.offset + at, part.elems - at);
        for (half = lanes::SHARE / 2; half; half /= 2)
            for (int j = 0; j < lanes::N; j++) sum[j] += __shfl_xor_sync(~0u, sum[j], half);
        for (half = lanes::N / 2; half; half /= 2)
            for (int j = 0; j < half; j++) sum[j] += sum[j + half];
        if (own == 0) exact_add(sums[piece], sum[0]);
    }
    __syncthreads();
    uint64_t all = 0;
    for (int i = 0; threadIdx.x < EXACT_WORDS && i < lanes::PIECES; i++) all += sums[i][threadIdx.x];
    if (all) atomicAdd((unsigned long long *)words + threadIdx.x, (unsigned long long)all);
}

// A warp handles one chunk of a segment, so that a small tensor occupies only a few warps, not a whole block.
// A chunk has two rows, and each thread has 4 contiguous elements in each row, so a warp accesses 512
// contiguous bytes of fp32, or 256 of a 16-bit dtype. A thread issues all reads before it uses the first
// value.
enum { ROW = WARP * EACH, ROWS = ADAMW_CHUNK / ROW };
template <class G, class Low> struct chunk {  // pointers to a thread's first element
    float *master, *m, *v;                    // master NULL: no masters
    Low *low;                                 // or NULL
    const G *g;
    int64_t left;  // elements up to the segment's end
    float step_size, keep;
    uint32_t noise_key, inside;  // without masters
};

template <bool WHOLE, class G, class Low>
__device__ inline void update(const adamw_constants &c, const chunk<G, Low> &k) {
    four<float> master[ROWS], m[ROWS], v[ROWS];
    four<Low> low[ROWS];
    four<G> g[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t left = k.left - r * ROW;
        if (k.master)
            master[r] = fetch<WHOLE>(k.master + r * ROW, left);
        else
            low[r] = fetch<WHOLE>(k.low + r * ROW, left);
        m[r] = fetch<WHOLE>(k.m + r * ROW, left);
        v[r] = fetch<WHOLE>(k.v + r * ROW, left);
        g[r] = fetch<WHOLE>(k.g + r * ROW, left);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t left = k.left - r * ROW;
        float p[EACH];
        for (int j = 0; j < EACH; j++) {
            float old = k.master ? master[r].e[j] : widen(low[r].e[j]);
            uint32_t noise = noise_at(k.noise_key, k.inside + (uint32_t)(r * ROW + j));
            p[j] = adamw_element(&c, k.step_size, k.keep, old, &m[r].e[j], &v[r].e[j], widen(g[r].e[j]));
            if (!k.master) p[j] = bf16_widen(bf16_round_with(p[j], noise));
        }
        put<WHOLE>(k.m + r * ROW, m[r].e, left);
        put<WHOLE>(k.v + r * ROW, v[r].e, left);
        if (k.master) put<WHOLE>(k.master + r * ROW, p, left);
        if (k.low) put<WHOLE>(k.low + r * ROW, p, left);
    }
}

// Returns true if all four elements of each row exist and are aligned.
template <class G, class Low> __device__ inline bool is_whole(const chunk<G, Low> &k) {
    int64_t left = k.left - (ROWS - 1) * ROW;
    return whole(k.m, left) && whole(k.v, left) && whole(k.master, left) && whole(k.low, left) &&
           whole(k.g, left);
}

template <class G, class Low> __global__ void adamw(adamw_constants c, adamw_arrays a, adamw_table t) {
    int64_t number = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP;
    if (number >= t.chunks) return;  // the same for a whole warp
    const adamw_segment s = t.segments[find(t.segments, t.n, number)];
    int64_t at = (number - s.first) * ADAMW_CHUNK + threadIdx.x % WARP * EACH;
    int64_t first = s.offset + at;
    chunk<G, Low> k;
    k.master = a.p ? a.p + first : nullptr;
    k.m = a.m + first;
    k.v = a.v + first;
    k.low = a.low ? (Low *)a.low + first : nullptr;
    k.g = (const G *)a.g + first;
    k.left = s.elems - at;
    k.step_size = c.step_size * s.lr_factor;
    k.keep = adamw_keep(&c, &s);
    k.noise_key = noise_key(c.noise, s.tensor, s.layer);
    k.inside = (uint32_t)(s.inside + at);
    if (is_whole(k))
        update<true>(c, k);
    else
        update<false>(c, k);
}

// Calls f with a `type<T>`, where T is the C++ type for t.
template <class T> struct type { using t = T; };
template <class F> cudaError_t with(zero_dtype t, F f) {
    return t == ZERO_F32 ? f(type<float>()) : t == ZERO_BF16 ? f(type<bf16>()) : f(type<fp16>());
}

}  // namespace

extern "C" {

cudaError_t cuda_clear_stretches(cudaStream_t s, zero_dtype type_, void *x, const stretches *of_x) {
    return with(type_, [=](auto f) {
        using T = typename decltype(f)::t;
        return launch(s, of_x->pieces * WARP * EACH, clear<T>, (T *)x, *of_x);  // one warp each
    });
}

cudaError_t cuda_sum_ranks(cudaStream_t s, zero_dtype to_type, void *to, zero_dtype type_,
                           const rank_parts *parts, float scale, int64_t n, const float *plus) {
    return with(to_type, [=](auto t) {
        using To = typename decltype(t)::t;
        return with(type_, [=](auto f) {
            using T = typename decltype(f)::t;
            return launch(s, n, sum_ranks<To, T>, (To *)to, *parts, scale, n, plus);
        });
    });
}

cudaError_t cuda_add_squares(cudaStream_t s, uint64_t *words, const stretches *of_x, zero_dtype type_,
                             const void *x) {
    return with(type_, [=](auto f) {
        using T = typename decltype(f)::t;
        return launch(s, of_x->pieces * THREADS * EACH, add_squares<T>, words, *of_x, (const T *)x);
    });
}

cudaError_t cuda_adamw(cudaStream_t s, const adamw_constants *c, const adamw_arrays *a,
                       const adamw_table *t) {
    return with(a->g_type, [=](auto g) {
        using G = typename decltype(g)::t;
        return with(a->low ? a->low_type : ZERO_BF16, [=](auto l) {
            using Low = typename decltype(l)::t;
            return launch(s, t->chunks * WARP * EACH, adamw<G, Low>, *c, *a, *t);  // one warp each
        });
    });
}
}
