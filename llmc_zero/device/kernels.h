// The plugin's arithmetic. It gives the same bits on CPUs of any vector width and on CUDA: no contraction, no
// reassociation, explicit fmaf. Each kernel_x runs on the CPU; kernels_cuda.h declares the same for CUDA.
#ifndef LLMC_ZERO_DEVICE_KERNELS_H
#define LLMC_ZERO_DEVICE_KERNELS_H
#include "../zero.h"
#include "numbers.h"
#include <math.h>

// One binary runs everywhere: the loader picks the widest version that the CPU supports. Off with sanitizers,
// because their run time is not yet initialised when the loader picks.
#if !defined(__x86_64__) || !defined(__GLIBC__) || defined(__clang__) || defined(__SANITIZE_THREAD__) || \
    defined(__SANITIZE_ADDRESS__)
#define ZERO_CLONES
#elif __GNUC__ >= 12
#define ZERO_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else  // An old compiler without x86-64 levels; with avx2 alone, fmaf would be a library call.
#define ZERO_CLONES __attribute__((target_clones("avx512f", "fma", "default")))
#endif

static inline size_t dtype_bytes(zero_dtype t) { return t == ZERO_F32 ? 4 : 2; }
static inline const char *dtype_name(zero_dtype t) {
    return t == ZERO_F32 ? "fp32" : t == ZERO_BF16 ? "bf16" : "fp16";
}

// to[i] = from[i] in another dtype, rounded to nearest even. NaN stays NaN.
void kernel_convert(zero_dtype to_type, void *to, zero_dtype from_type, const void *from, int64_t n);

// Sums a gradient over the ranks in fp32 in tree order, times scale, plus `plus`, rounded once to `to`. Tree
// order: neighbours first, then pairs of pairs; an odd one out moves up unchanged. For 5 ranks this is
// ((p0 + p1) + (p2 + p3)) + p4. plus: (n), may be `to`; NULL: nothing.
void kernel_sum_ranks(zero_dtype to_type, void *to, zero_dtype type, const void *const *parts, int ranks,
                      float scale, int64_t n, const float *plus);

// The parts on a device: rank r's part is at others + r * stride bytes; this rank's is at own.
typedef struct {
    int ranks, rank;
    const char *own, *others;
    size_t stride;
} rank_parts;

// An exact sum of fp64 values, each 0 or from 2^-298 to 2^263 and a multiple of 2^-298. It is an integer in
// units of 2^EXACT_LOWEST, with 32 bits in each word, the lowest first; the last word counts values that are
// Inf or NaN. Words are integers, so neither the order of additions nor their grouping matters. A word has
// room for 2^32 additions.
enum { EXACT_DIGITS = 21, EXACT_WORDS = EXACT_DIGITS + 1, EXACT_LOWEST = -362 };
ZERO_INLINE void exact_add(uint64_t *words, double x) {
    uint64_t bits, digits;
    memcpy(&bits, &x, 8);
    const int exponent = bits >> 52 & 0x7ff, at = exponent - 1075 - EXACT_LOWEST, shift = at & 31;
    if (exponent == 0x7ff) words[EXACT_DIGITS]++;
    if (exponent == 0x7ff || exponent == 0) return;
    digits = (bits & 0xfffffffffffff) | (uint64_t)1 << 52;  // times 2^at
    words += at >> 5;
    words[0] += (uint32_t)(digits << shift);
    words[1] += digits << shift >> 32;
    words[2] += digits >> 32 >> (32 - shift);
}
// Moves what exceeds 32 bits in a word into the next one.
void exact_carry(uint64_t *words);
// Returns the sum, rounded once; NaN if a value was Inf or NaN. Carries first.
double exact_value(uint64_t *words);

// Adds the squares of x to an exact sum. Each piece of SUM_PIECE elements has a sum in fp64: each of its
// SUM_LANES lanes sums every SUM_LANES-th element; then the upper half of the lanes is added to the lower
// half until one is left. The result depends on where pieces begin, but not on how they are distributed.
enum { SUM_PIECE = 128, SUM_LANES = 16 };
void kernel_add_squares(uint64_t *words, zero_dtype type, const void *x, int64_t n);
enum { SUM_BLOCK = 65536 };  // elements per piece of a list of stretches to add
static inline int64_t sum_blocks(int64_t elems) { return (elems + SUM_BLOCK - 1) / SUM_BLOCK; }

// Elements [offset, offset + elems) of an array. A device processes a list of stretches in one launch, in
// pieces of a fixed number of elements; `first` is the number of pieces before this stretch.
typedef struct {
    int64_t offset, elems, first;
} stretch;
// list (n) is in device memory; pieces: total number of pieces.
typedef struct {
    const stretch *list;
    int n;
    int64_t pieces;
} stretches;

enum { CLEAR_CHUNK = 256 };  // elements per piece when clearing stretches
static inline int64_t clear_chunks(int64_t elems) { return (elems + CLEAR_CHUNK - 1) / CLEAR_CHUNK; }

void kernel_fill_nan(void *x, size_t bytes);

// The constants of an update. noise is the seed for noise_key.
typedef struct {
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float step_size, inv_sqrt_correction2, eps, grad_scale;
    double lr_decay;  // lr * weight_decay
    uint32_t noise;
} adamw_constants;
adamw_constants adamw_prepare(const zero_hyper *h, double grad_scale, unsigned rounding_seed);

// Updates one element and returns the new parameter. keep: see adamw_keep. Every CPU and GPU evaluates the
// same expression, with explicit fmaf and correctly rounded square root and division.
ZERO_INLINE float adamw_element(const adamw_constants *c, float step_size, float keep, float p, float *m,
                                float *v, float g) {
    float grad = g * c->grad_scale;
    *m = fmaf(c->one_minus_beta1, grad, c->beta1 * *m);
    *v = fmaf(c->one_minus_beta2 * grad, grad, c->beta2 * *v);
    float denominator = fmaf(sqrtf(*v), c->inv_sqrt_correction2, c->eps);
    return fmaf(-step_size, *m / denominator, keep * p);
}

// The arrays of an update, all for the same elements of a unit. g is the mean gradient, to be multiplied by
// grad_scale. p has the masters, and low receives the updated parameters in low_type. If low is NULL, the
// parameters are fp32, at p, and are their own masters. If p is NULL, they are bf16, in low, and are rounded
// stochastically.
typedef struct {
    float *p, *m, *v;
    const void *g;
    void *low;
    zero_dtype g_type, low_type;
} adamw_arrays;

// Contiguous elements of one layer's tensor, from `offset` on in each array and from `inside` on in the
// tensor, which indexes the noise. `first` is the number of chunks before this segment.
enum { ADAMW_CHUNK = 256 };
typedef struct {
    int64_t offset, inside, elems, first;
    int tensor, layer;
    float lr_factor, decay;  // of the tensor
} adamw_segment;
static inline int64_t adamw_chunks(int64_t elems) { return (elems + ADAMW_CHUNK - 1) / ADAMW_CHUNK; }
// The factor that weight decay applies to a segment's old parameters.
ZERO_INLINE float adamw_keep(const adamw_constants *c, const adamw_segment *s) {
    return (float)(1 - c->lr_decay * ((double)s->lr_factor * s->decay));
}

// segments (n) is in the memory of the device that computes the update.
typedef struct {
    const adamw_segment *segments;
    int n;
    int64_t chunks;
} adamw_table;

// The trainer's own update. Of the constants it uses only grad_scale and noise.
typedef struct {
    zero_update_with update;  // NULL: AdamW
    void *ctx;
    zero_hyper hyper;
    float *room;  // (room_elems) on a CUDA device: scaled gradients
    int64_t room_elems;
} own_update;
// Returns elements [from, from + n) of a segment, without gradients.
zero_piece own_piece(const own_update *own, const adamw_arrays *a, const adamw_segment *s, int64_t from,
                     int64_t n);
// AdamW, or the own update, which is called with pieces of at most 1024 elements.
void kernel_update(const own_update *own, const adamw_constants *c, const adamw_arrays *a,
                   const adamw_table *t);

#endif
