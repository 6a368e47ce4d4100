#include "kernels.h"

// -------- loops over an array in blocks that stay in the first-level cache

enum { BLOCK = 1024 };
typedef void block_work(const void *ctx, int64_t b, int64_t len);  // elements [b, b + len)

// Uses all threads, unless starting a parallel region would cost more than the work. An OpenMP `if` clause
// would not avoid that cost.
static void for_each_block(int64_t n, block_work *work, const void *ctx) {
    if (n <= 8 * BLOCK) {
        for (int64_t b = 0; b < n; b += BLOCK) work(ctx, b, n - b < BLOCK ? n - b : BLOCK);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < n; b += BLOCK) work(ctx, b, n - b < BLOCK ? n - b : BLOCK);
}

enum { LANES = SUM_LANES, PIECES = BLOCK / SUM_PIECE };

// -------- one pass over a block

// Passes over a block for each 16-bit dtype. add and pair read gradients and sum them; scale_to writes the
// sum.
#define PASSES(name)                                                                                   \
    ZERO_CLONES static void widen_##name(float *to, const uint16_t *from, int64_t n) {                 \
        for (int64_t i = 0; i < n; i++) to[i] = name##_widen(from[i]);                                 \
    }                                                                                                  \
    ZERO_CLONES static void narrow_##name(uint16_t *to, const float *from, int64_t n) {                \
        for (int64_t i = 0; i < n; i++) to[i] = name##_round(from[i]);                                 \
    }                                                                                                  \
    ZERO_CLONES static void add_##name(float *sum, const uint16_t *x, int64_t n) {                     \
        for (int64_t i = 0; i < n; i++) sum[i] += name##_widen(x[i]);                                  \
    }                                                                                                  \
    ZERO_CLONES static void pair_##name(float *sum, const uint16_t *x, const uint16_t *y, int64_t n) { \
        for (int64_t i = 0; i < n; i++) sum[i] = name##_widen(x[i]) + name##_widen(y[i]);              \
    }                                                                                                  \
    ZERO_CLONES static void scale_to_##name(uint16_t *to, const float *sum, float scale, int64_t n) {  \
        for (int64_t i = 0; i < n; i++) to[i] = name##_round(sum[i] * scale);                          \
    }
PASSES(bf16)
PASSES(fp16)

// The same for fp32.
ZERO_CLONES static void add_f32(float *sum, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}
ZERO_CLONES static void pair_f32(float *sum, const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] = x[i] + y[i];
}
ZERO_CLONES static void scale_to_f32(float *to, const float *sum, float scale, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = sum[i] * scale;
}

void kernel_convert(zero_dtype to_type, void *to, zero_dtype from_type, const void *from, int64_t n) {
    if (to_type == from_type)
        memmove(to, from, n * dtype_bytes(to_type));
    else if (from_type == ZERO_BF16)
        widen_bf16(to, from, n);
    else if (from_type == ZERO_F16)
        widen_fp16(to, from, n);
    else if (to_type == ZERO_BF16)
        narrow_bf16(to, from, n);
    else
        narrow_fp16(to, from, n);
}

static void add(float *sum, zero_dtype type, const void *x, int64_t n) {
    if (type == ZERO_F32)
        add_f32(sum, x, n);
    else if (type == ZERO_BF16)
        add_bf16(sum, x, n);
    else
        add_fp16(sum, x, n);
}

static char *at(zero_dtype t, const void *p, int64_t i) { return p ? (char *)p + i * dtype_bytes(t) : NULL; }

static void pair(float *sum, zero_dtype type, const void *x, const void *y, int64_t n) {
    if (type == ZERO_F32)
        pair_f32(sum, x, y, n);
    else if (type == ZERO_BF16)
        pair_bf16(sum, x, y, n);
    else
        pair_fp16(sum, x, y, n);
}

// Sums a block of the parts in tree order: the largest power of two below `ranks` is the left branch. The
// blocks, one for each level of the tree, stay in the first-level cache.
static void sum_block(float *sum, zero_dtype type, const void *const *parts, int ranks, int64_t b,
                      int64_t n) {
    int left = 1;
    if (ranks == 1) return kernel_convert(ZERO_F32, sum, type, at(type, parts[0], b), n);
    if (ranks == 2) return pair(sum, type, at(type, parts[0], b), at(type, parts[1], b), n);
    while (2 * left < ranks) left *= 2;
    sum_block(sum, type, parts, left, b, n);
    if (ranks - left == 1) return add(sum, type, at(type, parts[left], b), n);
    float right[BLOCK];
    sum_block(right, type, parts + left, ranks - left, b, n);
    add_f32(sum, right, n);
}

typedef struct {
    zero_dtype to_type, type;
    void *to;
    const void *const *parts;
    int ranks;
    float scale;
    const float *plus;
} rank_sums;

static void sum_ranks_block(const void *ctx, int64_t b, int64_t n) {
    const rank_sums *s = ctx;
    float sum[BLOCK];
    sum_block(sum, s->type, s->parts, s->ranks, b, n);
    float scale = s->scale;
    if (s->plus) {
        scale_to_f32(sum, sum, scale, n);
        add_f32(sum, s->plus + b, n);
        scale = 1;
    }
    if (s->to_type == ZERO_F32)
        scale_to_f32((float *)s->to + b, sum, scale, n);
    else if (s->to_type == ZERO_BF16)
        scale_to_bf16((uint16_t *)s->to + b, sum, scale, n);
    else
        scale_to_fp16((uint16_t *)s->to + b, sum, scale, n);
}

void kernel_sum_ranks(zero_dtype to_type, void *to, zero_dtype type, const void *const *parts, int ranks,
                      float scale, int64_t n, const float *plus) {
    for_each_block(n, sum_ranks_block, &(rank_sums){ to_type, type, to, parts, ranks, scale, plus });
}

void exact_carry(uint64_t *words) {
    for (int k = 0; k + 1 < EXACT_DIGITS; k++) {
        words[k + 1] += words[k] >> 32;
        words[k] = (uint32_t)words[k];
    }
}

// Converts the highest 64 bits, with the last one set if a lower bit is. Values are multiples of 2^-298, so a
// sum that is not 0 has a digit above the lowest two.
double exact_value(uint64_t *words) {
    int k = EXACT_DIGITS - 1, shift;
    uint64_t low = 0;
    exact_carry(words);
    if (words[EXACT_DIGITS]) return NAN;
    while (k > 2 && !words[k]) k--;
    if (!words[k]) return 0;
    shift = __builtin_clz((uint32_t)words[k]);
    uint64_t high = words[k] << 32 | words[k - 1], next = words[k - 2] << shift;
    for (int i = 0; i < k - 2; i++) low |= words[i];
    high = high << shift | next >> 32 | (low || (uint32_t)next);
    return ldexp((double)high, 32 * (k - 1) - shift + EXACT_LOWEST);
}

// Sets sums to those of the block's pieces.
ZERO_CLONES static void sum_squares_block(double sums[PIECES], const float *x, int64_t n) {
    for (int64_t at = 0; at < n; at += SUM_PIECE, x += SUM_PIECE) {
        double lane[LANES] = { 0 };
        int64_t i = 0, len = n - at < SUM_PIECE ? n - at : SUM_PIECE;
        for (; i + LANES <= len; i += LANES)
            for (int j = 0; j < LANES; j++) lane[j] += (double)x[i + j] * x[i + j];
        for (int j = 0; i < len; i++, j++) lane[j] += (double)x[i] * x[i];
        for (int half = LANES / 2; half; half /= 2)
            for (int j = 0; j < half; j++) lane[j] += lane[j + half];
        *sums++ = lane[0];
    }
}

static void add_squares(uint64_t *words, zero_dtype type, const void *x, int64_t from, int64_t to) {
    float f[BLOCK];
    double sums[PIECES];
    for (int64_t b = from; b < to; b += BLOCK) {
        const int64_t n = to - b < BLOCK ? to - b : BLOCK;
        kernel_convert(ZERO_F32, f, type, at(type, x, b), n);
        sum_squares_block(sums, f, n);
        for (int64_t i = 0; i * SUM_PIECE < n; i++) exact_add(words, sums[i]);
    }
}

void kernel_add_squares(uint64_t *words, zero_dtype type, const void *x, int64_t n) {
    if (n <= SUM_BLOCK) return add_squares(words, type, x, 0, n);
#pragma omp parallel for schedule(static) reduction(+ : words[:EXACT_WORDS])
    for (int64_t b = 0; b < n; b += SUM_BLOCK)
        add_squares(words, type, x, b, n - b < SUM_BLOCK ? n : b + SUM_BLOCK);
}

void kernel_fill_nan(void *x, size_t bytes) { memset(x, 0xff, bytes); }  // all ones is a NaN in every dtype

// -------- AdamW, and the trainer's update

adamw_constants adamw_prepare(const zero_hyper *h, double grad_scale, unsigned rounding_seed) {
    double correction1 = 1 - pow(h->beta1, h->t), correction2 = 1 - pow(h->beta2, h->t);
    return (adamw_constants){ .beta1 = h->beta1,
                              .one_minus_beta1 = 1 - h->beta1,
                              .beta2 = h->beta2,
                              .one_minus_beta2 = 1 - h->beta2,
                              .step_size = (float)(h->lr / correction1),
                              .inv_sqrt_correction2 = (float)(1 / sqrt(correction2)),
                              .eps = h->eps,
                              .grad_scale = (float)grad_scale,
                              .lr_decay = (double)h->lr * h->weight_decay,
                              .noise = noise_of_update(rounding_seed, h->t) };
}

ZERO_CLONES static void adamw_block(const adamw_constants *constants, float step_size, float keep,
                                    float *restrict p, float *restrict m, float *restrict v,
                                    const float *restrict g, int64_t n) {
    const adamw_constants c = *constants;
    for (int64_t i = 0; i < n; i++) p[i] = adamw_element(&c, step_size, keep, p[i], &m[i], &v[i], g[i]);
}

// The noise differs between elements and steps, so that small updates are not always rounded away.
ZERO_CLONES static void round_with_noise(uint16_t *low, const float *p, uint32_t key, uint32_t first,
                                         int64_t n) {
    for (int64_t i = 0; i < n; i++) low[i] = bf16_round_with(p[i], noise_at(key, first + (uint32_t)i));
}

typedef struct {
    const own_update *own;
    const adamw_constants *constants;
    const adamw_arrays *arrays;
    const adamw_segment *segment;
} update_work;

zero_piece own_piece(const own_update *own, const adamw_arrays *a, const adamw_segment *s, int64_t from,
                     int64_t n) {
    const int64_t at = s->offset + from;
    return (zero_piece){ .tensor = s->tensor,
                         .layer = s->layer,
                         .offset = s->inside + from,
                         .n = n,
                         .weights = a->p ? a->p + at : NULL,
                         .states = { a->m ? a->m + at : NULL, a->v ? a->v + at : NULL },
                         .lr = own->hyper.lr * s->lr_factor,
                         .weight_decay = own->hyper.weight_decay * s->decay,
                         .hyper = &own->hyper };
}

static void update_block(const void *ctx, int64_t b, int64_t len) {
    const update_work *w = ctx;
    const adamw_constants *c = w->constants;
    const adamw_arrays *a = w->arrays;
    const adamw_segment *s = w->segment;
    int64_t from = s->offset + b;
    float wide[BLOCK], own[BLOCK];
    const void *g = at(a->g_type, a->g, from);
    const float *grad = g;
    float *p = a->p ? a->p + from : own;
    void *low = at(a->low_type, a->low, from);
    if (a->g_type != ZERO_F32) {
        kernel_convert(ZERO_F32, wide, a->g_type, g, len);
        grad = wide;
    }
    if (!a->p) kernel_convert(ZERO_F32, own, ZERO_BF16, low, len);
    if (w->own->update) {
        zero_piece piece = own_piece(w->own, a, s, b, len);
        scale_to_f32(wide, grad, c->grad_scale, len);
        piece.weights = p;
        piece.gradient = wide;
        w->own->update(w->own->ctx, &piece);
    } else {
        adamw_block(c, c->step_size * s->lr_factor, adamw_keep(c, s), p, a->m + from, a->v + from, grad, len);
    }
    if (!a->p)
        round_with_noise(low, own, noise_key(c->noise, s->tensor, s->layer), (uint32_t)(s->inside + b), len);
    else if (low)
        kernel_convert(a->low_type, low, ZERO_F32, p, len);
}

void kernel_update(const own_update *own, const adamw_constants *c, const adamw_arrays *a,
                   const adamw_table *t) {
    for (int i = 0; i < t->n; i++)
        for_each_block(t->segments[i].elems, update_block, &(update_work){ own, c, a, &t->segments[i] });
}
