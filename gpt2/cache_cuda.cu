// Attention over a cache of keys and values on CUDA, for text that grows token by token. A layer's cache
// stores each row as (NH, 2, room, hs): each head's keys, then its values. One warp handles one head of one
// token: each lane scores one key, then the lanes share the weighted sums of the values, with an online
// softmax (arXiv 1805.02867). A token's bits do not depend on the other rows.
#include <cmath>
#include "cuda.h"

enum { THREADS = 128, WARPS = THREADS / WARP, MOST_HS = 256 };

// A token's place in the cache: its span's begin and room, and its position in the row.
struct Slot {
    int begin, room, position;
};

// The token that a warp or thread works on: the cached keys and values of one head, and the token's position.
template <class T> struct Place {
    T *keys, *values;
    int position;
};

template <class T> __device__ static inline Place<T> place_of(T *cache, Slot s, int head, int C, int hs) {
    T *keys = cache + 2 * ((size_t)s.begin * C + (size_t)head * s.room * hs);
    return Place<T>{ keys, keys + (size_t)s.room * hs, s.position };
}

template <class T> __device__ static inline float dot(const T *x, const T *y, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += to_float(x[i]) * to_float(y[i]);
    return sum;
}

// slots (n); qkv (n, 3C)
template <class T>
static __global__ void keep_kernel(T *cache, const T *qkv, const Slot *slots, int n, int C, int NH) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    int token = i / C, c = i % C, hs = C / NH;
    if (token >= n) return;
    Place<T> p = place_of(cache, slots[token], c / hs, C, hs);
    const T *key = qkv + (size_t)token * 3 * C + C + c;
    p.keys[(size_t)p.position * hs + c % hs] = key[0];
    p.values[(size_t)p.position * hs + c % hs] = key[C];
}

template <class T>
static __global__ __launch_bounds__(THREADS) void cached_kernel(T *out, T *cache, const T *qkv,
                                                                const Slot *slots, int n, int C, int NH,
                                                                float scale) {
    int at = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (at >= n * NH) return;
    int token = at / NH, head = at % NH, hs = C / NH;
    Place<T> p = place_of(cache, slots[token], head, C, hs);
    const T *q = qkv + (size_t)token * 3 * C + head * hs;
    float top = -INFINITY, sum = 0, total[MOST_HS / WARP] = {};
    for (int first = 0; first <= p.position; first += WARP) {
        int key = first + lane, seen = p.position + 1 - first < WARP ? p.position + 1 - first : WARP;
        float score = -INFINITY;
        if (lane < seen) score = scale * dot(q, p.keys + (size_t)key * hs, hs);
        float now = fmaxf(top, warp_max(score)), older = expf(top - now), weight = expf(score - now);
        sum = sum * older + warp_sum(weight);
        for (int i = 0; i < MOST_HS / WARP; i++) total[i] *= older;
        for (int k = 0; k < seen; k++) {
            float w = __shfl_sync(0xffffffffu, weight, k);
            const T *value = p.values + (size_t)(first + k) * hs;
            for (int i = 0, c = lane; i < MOST_HS / WARP; i++, c += WARP)
                if (c < hs) total[i] += w * to_float(value[c]);
        }
        top = now;
    }
    for (int i = 0, c = lane; i < MOST_HS / WARP; i++, c += WARP)
        if (c < hs) out[(size_t)token * C + head * hs + c] = from_float<T>(total[i] / sum);
}

// Returns the number of tokens in all spans, with *slots on the device, or -1.
static int send_slots(const Slot **slots, const layers_span *spans, int n_spans) {
    const size_t ints = sizeof(Slot) / sizeof(int);
    const int *sent;
    int n = 0;
    for (int i = 0; i < n_spans; i++) n += spans[i].n;
    Slot *to = (Slot *)staging_slot(n * ints);
    if (!to) return -1;
    for (const layers_span *s = spans; s < spans + n_spans; s++)
        for (int i = 0; i < s->n; i++) to[s->at + i] = Slot{ s->begin, s->room, s->first + i };
    if (staging_send(n * ints, &sent)) return -1;
    *slots = (const Slot *)sent;
    return n;
}

template <class T>
static int attend(void *out, void *cache, const void *qkv, const Slot *slots, int n, int C, int NH) {
    float scale = 1 / sqrtf((float)(C / NH));
    if (launch("keep_kernel", keep_kernel<T>, blocks_for((size_t)n * C, THREADS), THREADS, (T *)cache,
               (const T *)qkv, slots, n, C, NH))
        return -1;
    return launch("cached_kernel", cached_kernel<T>, blocks_for((size_t)n * NH, WARPS), THREADS, (T *)out,
                  (T *)cache, (const T *)qkv, slots, n, C, NH, scale);
}

int cuda_attention_cached(gpt2_dtype dt, void *out, void *cache, const void *qkv, const layers_span *spans,
                          int n_spans, int C, int NH) {
    if (C / NH > MOST_HS)
        return gpt2_fail("attention over a cache: heads of %d channels; must be at most %d", C / NH, MOST_HS);
    const Slot *slots;
    int n = send_slots(&slots, spans, n_spans);
    return n < 0 ? -1 : BY_DTYPE(dt, attend<T>(out, cache, qkv, slots, n, C, NH));
}
