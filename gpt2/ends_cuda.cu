// The CUDA layers at the two ends of the model: the encoder, softmax with cross-entropy, the sum of losses.
// Tokens and targets are on the host.
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include "cuda.h"

enum { THREADS = 128, WARPS = THREADS / WARP };

// Memory of sort_by_token.
static struct {
    int *count;   // (Vp) the count of each token, then its cursor; zeros between calls
    int *tokens;  // (rows) the tokens that occur
    int *bucket;  // (rows + 1) the number of tokens with this count, then where they begin
    int rows, Vp;
} sorting;

void ends_cuda_free(void) {
    staging_free();
    free(sorting.count);
    free(sorting.tokens);
    free(sorting.bucket);
    memset(&sorting, 0, sizeof sorting);
}

int ends_cuda_plan(int rows, int Vp, size_t *scratch_bytes) {
    ends_cuda_free();
    sorting.rows = rows;
    sorting.Vp = Vp;
    sorting.count = (int *)calloc(Vp, sizeof(int));
    sorting.tokens = (int *)calloc(rows, sizeof(int));
    sorting.bucket = (int *)calloc((size_t)rows + 1, sizeof(int));
    if (!sorting.count || !sorting.tokens || !sorting.bucket)
        return gpt2_fail("encoder: no host memory to sort %d positions by %d tokens", rows, Vp);
    // No layer sends more than sort_by_token's result.
    return staging_plan(4 * (size_t)rows, scratch_bytes);
}

static int send(const int **device, const int *host, size_t n) {
    int *slot = staging_slot(n);
    if (!slot) return -1;
    memcpy(slot, host, n * sizeof(int));
    return staging_send(n, device);
}

// -------- encoder: each warp handles one row, or one token, and a strip of WARP * W channels

template <class T> static __global__ void encoder_forward_kernel(T *out, const int *tokens, const T *wte,
                                                                 const T *wpe, int rows, int length, int C) {
    constexpr int W = wide<T>;
    int row = blockIdx.x * WARPS + threadIdx.x / WARP, c = (blockIdx.y * WARP + threadIdx.x % WARP) * W;
    if (row >= rows || c >= C) return;
    vec<T, W> x = load<W>(wte + (size_t)tokens[row] * C + c);
    vec<T, W> y = load<W>(wpe + (size_t)(row % length) * C + c);
    for (int k = 0; k < W; k++) x.e[k] = from_float<T>(to_float(x, k) + to_float(y, k));
    store(out + (size_t)row * C + c, x);
}

// dwpe's row t += the sum over b of dout's rows (b, t)
template <class T>
static __global__ void encoder_backward_wpe_kernel(T *dwpe, const T *dout, int B, int length, int C) {
    constexpr int W = wide<T>;
    int t = blockIdx.x * WARPS + threadIdx.x / WARP, c = (blockIdx.y * WARP + threadIdx.x % WARP) * W;
    if (t >= length || c >= C) return;
    vec<T, W> x = load<W>(dwpe + (size_t)t * C + c);
    float sum[W] = {};
    add_vectors<4>(sum, 0, B, 1, [&](int b) { return dout + ((size_t)b * length + t) * C + c; });
    for (int k = 0; k < W; k++) x.e[k] = from_float<T>(to_float(x, k) + sum[k]);
    store(dwpe + (size_t)t * C + c, x);
}

// One block per token and strip; its warps share the token's positions. A token's strips are consecutive
// blocks, so that the most frequent tokens start first.
template <class T> static __global__ void encoder_backward_wte_kernel(T *dwte, const T *dout,
                                                                      const int *positions,
                                                                      const int *entries, int strips, int C) {
    constexpr int W = wide<T>;
    __shared__ float total[WARP * W];
    const int *entry = entries + blockIdx.x / strips * 3;
    int token = entry[0], first = entry[1], count = entry[2], lane = threadIdx.x % WARP;
    int c = (blockIdx.x % strips * WARP + lane) * W;
    float sum[W] = {};
    if (c < C) {
        add_vectors<4>(sum, threadIdx.x / WARP, count, WARPS,
                       [&](int i) { return dout + (size_t)positions[first + i] * C + c; });
    }
    add_by_turns(total, lane * W, sum);
    if (threadIdx.x >= WARP || c >= C) return;
    T *at = dwte + (size_t)token * C + c;
    vec<T, W> x = load<W>(at);
    for (int k = 0; k < W; k++) x.e[k] = from_float<T>(to_float(x, k) + total[lane * W + k]);
    store(at, x);
}

// Writes the positions (BT) to out, grouped by token and in order, followed by (token, first, count) for each
// token that occurs, the most frequent first. Returns the number of these tokens, or -1 on failure. It is a
// counting sort, which takes the time of a few passes over BT.
static int sort_by_token(int *out, const int *inp, int BT) {
    int *count = sorting.count, *tokens = sorting.tokens, *bucket = sorting.bucket, *entries = out + BT;
    int n = 0;
    for (int i = 0; i < BT; i++) {
        if (inp[i] < 0 || inp[i] >= sorting.Vp)
            return gpt2_fail("encoder: token %d at %d, the vocabulary has %d", inp[i], i, sorting.Vp);
    }
    for (int i = 0; i < BT; i++) {
        if (count[inp[i]]++ == 0) tokens[n++] = inp[i];
    }
    memset(bucket, 0, ((size_t)BT + 1) * sizeof(int));
    for (int i = 0; i < n; i++) bucket[count[tokens[i]]]++;
    for (int c = BT, at = 0; c > 0; c--) {  // now bucket[c] is where tokens with count c begin
        int size = bucket[c];
        bucket[c] = at;
        at += size;
    }
    for (int i = 0; i < n; i++) {
        int *entry = entries + 3 * (size_t)bucket[count[tokens[i]]]++;
        entry[0] = tokens[i];
        entry[2] = count[tokens[i]];
    }
    for (int i = 0, first = 0; i < n; i++) {
        int *entry = entries + 3 * (size_t)i;
        entry[1] = first;
        count[entry[0]] = first;
        first += entry[2];
    }
    for (int i = 0; i < BT; i++) out[count[inp[i]]++] = i;
    for (int i = 0; i < n; i++) count[tokens[i]] = 0;
    return n;
}

int cuda_encoder_forward(gpt2_dtype dt, void *out, const int *inp, const void *wte, const void *wpe, int B,
                         int length, int C) {
    const int *tokens, rows = B * length;
    if (send(&tokens, inp, (size_t)rows)) return -1;
    return BY_DTYPE(dt, launch("encoder_forward", encoder_forward_kernel<T>,
                               dim3(blocks_for(rows, WARPS), blocks_for(C, WARP * wide<T>)), THREADS,
                               (T *)out, tokens, (const T *)wte, (const T *)wpe, rows, length, C));
}

template <class T> static int encoder_backward(void *dwte, void *dwpe, const void *dout, const int *positions,
                                               int tokens, int B, int length, int C) {
    int strips = (int)blocks_for(C, WARP * wide<T>);
    if (launch("encoder_backward", encoder_backward_wte_kernel<T>, tokens * strips, THREADS, (T *)dwte,
               (const T *)dout, positions, positions + B * length, strips, C))
        return -1;
    return launch("encoder_backward", encoder_backward_wpe_kernel<T>, dim3(blocks_for(length, WARPS), strips),
                  THREADS, (T *)dwpe, (const T *)dout, B, length, C);
}

int cuda_encoder_backward(gpt2_dtype dt, void *dwte, void *dwpe, const void *dout, const int *inp, int B,
                          int length, int C) {
    int BT = B * length, *slot = staging_slot(4 * (size_t)BT);
    int tokens = slot ? sort_by_token(slot, inp, BT) : -1;
    const int *positions;
    if (tokens < 0 || staging_send((size_t)BT + 3 * (size_t)tokens, &positions)) return -1;
    return BY_DTYPE(dt, encoder_backward<T>(dwte, dwpe, dout, positions, tokens, B, length, C));
}

// -------- softmax and cross-entropy: loss = log(sum of e^logit) - logit[target]. One block per row.

// At this block size a multiprocessor works on two rows at a time. For GPT-2 in bf16 they fit into its L1.
enum { SOFTMAX_THREADS = 768 };
// A row of a small vocabulary has fewer threads, one for each wide load.
template <class T> static int softmax_threads(int Vp) {
    int warps = (Vp / wide<T> + WARP - 1) / WARP;
    return warps * WARP < SOFTMAX_THREADS ? warps * WARP : SOFTMAX_THREADS;
}

// The maximum of some logits, and the sum of their e^(logit - top).
struct Softmax {
    float top, sum;
};

__device__ static inline Softmax merge(Softmax a, Softmax b) {
    float top = fmaxf(a.top, b.top);
    // Each product is rounded separately, so that merge(a, b) and merge(b, a) have the same bits in all
    // lanes.
    return Softmax{ top, __fmul_rn(a.sum, fast_exp(a.top - top)) + __fmul_rn(b.sum, fast_exp(b.top - top)) };
}

__device__ static inline Softmax merge_warp(Softmax x) {
    for (int i = WARP / 2; i > 0; i /= 2) {
        Softmax other = { __shfl_xor_sync(0xffffffffu, x.top, i), __shfl_xor_sync(0xffffffffu, x.sum, i) };
        x = merge(x, other);
    }
    return x;
}

__device__ static inline Softmax merge_block(Softmax x) {
    __shared__ Softmax warps[WARP];
    int lane = threadIdx.x % WARP;
    x = merge_warp(x);
    if (lane == 0) warps[threadIdx.x / WARP] = x;
    __syncthreads();
    return merge_warp(lane < (int)blockDim.x / WARP ? warps[lane] : Softmax{ -FLT_MAX, 0 });
}

// Maximum and sum in one pass (online softmax, arXiv 1805.02867). The maximum starts at a finite value, so
// that no difference is inf - inf.
template <class T> __device__ inline Softmax softmax_of(const T *row, int V) {
    constexpr int W = wide<T>;
    Softmax own = { -FLT_MAX, 0 };
#pragma unroll 2
    for (int c = threadIdx.x * W; c < V; c += blockDim.x * W) {
        vec<T, W> x = load<W>(row + c);
        float logit[W], top = own.top, sum = 0;
        for (int k = 0; k < W; k++) logit[k] = to_float(x, k);
        if (c + W > V) {
            for (int k = 0; k < W; k++) logit[k] = c + k < V ? logit[k] : -INFINITY;
        }
        for (int k = 0; k < W; k++) top = fmaxf(top, logit[k]);
        for (int k = 0; k < W; k++) sum += fast_exp(logit[k] - top);
        own = Softmax{ top, own.sum * fast_exp(own.top - top) + sum };
    }
    return merge_block(own);
}

template <class T> static __global__ void __launch_bounds__(SOFTMAX_THREADS, 2)
    softmax_crossentropy_kernel(float *losses, T *logits, float dloss, const int *targets, int V, int Vp) {
    constexpr int W = wide<T>;
    T *row = logits + (size_t)blockIdx.x * Vp;
    int target = targets[blockIdx.x];
    float hit = to_float(row[target]);  // read before the barrier in softmax_of; writes come after it
    Softmax s = softmax_of<T>(row, V);
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(s.sum) + s.top - hit;
    if (dloss == 0) return;
    float scale = dloss / s.sum;
    int vectors = Vp / W;
    int threads = blockDim.x, last = (vectors - 1) / threads * threads + threadIdx.x;
    for (int i = last; i >= 0; i -= threads) {  // from the end of the row, which is still in L1
        int c = i * W;
        if (c >= Vp) continue;
        vec<T, W> x = load<W>(row + c);
        float e[W];
        for (int k = 0; k < W; k++) e[k] = fast_exp(to_float(x, k) - s.top);
        if ((unsigned)(target - c) < W) {  // (p - 1) * dloss at the target, p * dloss elsewhere
            for (int k = 0; k < W; k++) e[k] -= c + k == target ? s.sum : 0;
        }
        for (int k = 0; k < W; k++) x.e[k] = from_float<T>(e[k] * scale);
        if (c + W > V) {  // 0 beyond V, even if the row has a NaN
            for (int k = 0; k < W; k++) x.e[k] = c + k < V ? x.e[k] : from_float<T>(0);
        }
        store(row + c, x);
    }
}

int cuda_softmax_crossentropy(gpt2_dtype dt, float *losses, void *logits, float dloss, const int *targets,
                              int rows, int V, int Vp) {
    const int *sent;
    if (send(&sent, targets, rows)) return -1;
    return BY_DTYPE(dt, launch("softmax_crossentropy", softmax_crossentropy_kernel<T>, rows,
                               softmax_threads<T>(Vp), losses, (T *)logits, dloss, sent, V, Vp));
}

// -------- the sum of losses

__device__ static inline double warp_sum(double x) {
    for (int i = WARP / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

static __global__ void sum_kernel(double *total, const float *x, int n, int add) {
    __shared__ double warps[WARP];
    double sums[1] = {};
    add_vectors<8>(sums, threadIdx.x, n, blockDim.x, [&](int i) { return x + i; });
    double sum = warp_sum(sums[0]);
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    sum = warp_sum(warps[threadIdx.x]);
    if (threadIdx.x == 0) *total = add ? *total + sum : sum;
}

int cuda_sum(double *total, const float *x, int n, int add) {
    return launch("sum", sum_kernel, 1, WARP * WARP, total, x, n, add);
}
