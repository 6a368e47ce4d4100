// Compares every kernel with a plain reference, bit for bit if the kernel promises it, with 1 to 3 threads.
#include <math.h>
#ifdef _OPENMP
#include <omp.h>
#else
static void omp_set_num_threads(int n) { (void)n; }
#endif
#include "../llmc_zero/device/kernels.h"
#include "toy_kernels.h"
#include "unit.h"

static void *room(size_t bytes) {
    void *p = malloc(bytes);
    assert_non_null(p);
    return p;
}

// Fills p with random numbers within the range of every dtype.
static void fill(zero_dtype type, void *p, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        toy_store(type, p, i, ldexpf((float)uniform(), (int)(random_bits() >> 28) - 8));
}

static const int64_t lengths[] = { 0, 1, 7, 15, 16, 17, 1023, 1024, 1025, 8191, 8193, 30011 };
enum { LENGTHS = sizeof lengths / sizeof *lengths, LONGEST = 30011 };
enum { DTYPES = 3 };
static const zero_dtype dtypes[DTYPES] = { ZERO_F32, ZERO_BF16, ZERO_F16 };

// -------- bf16

// Returns the nearer of the two bf16 values around f, or the even one. 2^128 represents infinity.
static uint16_t nearest(float f) {
    uint16_t below = (uint16_t)(bits_of(f) >> 16);  // towards 0
    if (isinf(f)) return below;
    uint16_t above = below + 1;
    double low = fabs(bf16_widen(below)),
           high = (above & 0x7fff) == 0x7f80 ? ldexp(1, 128) : fabs(bf16_widen(above)), x = fabs(f);
    if (x - low != high - x) return x - low < high - x ? below : above;
    return below & 1 ? above : below;
}

// Rounds every upper half, combined with lower halves near the ties, with both the function and the kernel.
static void test_bf16_rounding(void **state) {
    static const uint32_t lower[] = { 0, 1, 0x1234, 0x7fff, 0x8000, 0x8001, 0xc000, 0xfffe, 0xffff };
    enum { LOWER = sizeof lower / sizeof *lower };
    for (uint32_t upper = 0; upper < 1 << 16; upper++) {
        float f[LOWER];
        uint16_t by_kernel[LOWER];
        for (int i = 0; i < LOWER; i++) f[i] = float_of(upper << 16 | lower[i]);
        kernel_convert(ZERO_BF16, by_kernel, ZERO_F32, f, LOWER);
        for (int i = 0; i < LOWER; i++) {
            const uint16_t rounded = bf16_round(f[i]);
            const uint16_t want = isnan(f[i]) ? (uint16_t)(upper | 0x40) : nearest(f[i]);
            if (rounded != want || by_kernel[i] != want)
                fail_msg("%a (%08x): %04x, in the kernel %04x, not %04x", f[i], bits_of(f[i]), rounded,
                         by_kernel[i], want);
        }
    }
}

// -------- fp16

// Decodes 1 sign bit, 5 exponent bits and 10 mantissa bits into a double. Not for infinity or NaN.
static double fp16_value(uint16_t x) {
    int exponent = x >> 10 & 31, mantissa = x & 1023;
    double size = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return x & 0x8000 ? -size : size;
}

static void test_fp16_widening(void **state) {
    for (int x = 0; x < 1 << 16; x++) {
        float f = fp16_widen((uint16_t)x);
        if ((x & 0x7c00) != 0x7c00)
            assert_true(f == fp16_value((uint16_t)x));
        else if (x & 0x3ff)
            assert_true(isnan(f));
        else
            assert_true(isinf(f));
        assert_int_equal(bits_of(f) >> 31, x >> 15);
    }
}

// Returns the nearest fp16 number, found by bisection in double. 65536 represents infinity.
static uint16_t nearest_fp16(float f) {
    uint16_t low = 0, high = 0x7c00;  // the value of low is <= |f|, and that of high is > |f|
    double x = fabs(f);
    if (x >= 65536) return (uint16_t)(0x7c00 | (signbit(f) ? 0x8000 : 0));
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (fp16_value(middle) <= x)
            low = middle;
        else
            high = middle;
    }
    double below = x - fp16_value(low), above = (high == 0x7c00 ? 65536 : fp16_value(high)) - x;
    uint16_t chosen = below < above || (below == above && !(low & 1)) ? low : high;
    return (uint16_t)(chosen | (signbit(f) ? 0x8000 : 0));
}

static void check_fp16(float f) {
    uint16_t got = fp16_round(f), by_kernel;
    kernel_convert(ZERO_F16, &by_kernel, ZERO_F32, &f, 1);
    assert_int_equal(by_kernel, got);
    if (isnan(f)) {
        if ((got & 0x7c00) != 0x7c00 || !(got & 0x3ff) || got >> 15 != bits_of(f) >> 31)
            fail_msg("NaN %08x: %04x", bits_of(f), got);
        return;
    }
    if (got != nearest_fp16(f)) fail_msg("%a (%08x): %04x, not %04x", f, bits_of(f), got, nearest_fp16(f));
}

// Rounds all fp16 numbers, the ties between them, and the floats next to both; then floats of all sizes.
static void test_fp16_rounding(void **state) {
    for (int x = 0; x <= 0x7c00; x++) {
        double here = x == 0x7c00 ? 65536 : fp16_value((uint16_t)x),
               next = x >= 0x7bff ? 65536 : fp16_value((uint16_t)(x + 1));
        float points[] = { (float)here, (float)((here + next) / 2) };
        for (int k = 0; k < 2; k++)
            for (int sign = -1; sign <= 1; sign += 2) {
                check_fp16(sign * nextafterf(points[k], 0));
                check_fp16(sign * points[k]);
                check_fp16(sign * nextafterf(points[k], INFINITY));
            }
    }
    for (int i = 0; i < 1 << 20; i++) check_fp16(float_of((uint32_t)i << 12 | (random_bits() >> 20)));
}

// -------- stochastic rounding

// If the 16 discarded bits have the value k, exactly k of the 2^16 noise values must round up.
static void test_noisy_rounding_exact(void **state) {
    static const uint32_t numbers[] = {
        0x3f800000, 0x3f800001, 0x3f80abcd, 0x3fffffff, 0xbf808000,
        0x00000001, 0x80007fff, 0x00800123, 0x7f7f0001,
    };
    for (int k = 0; k < (int)(sizeof numbers / sizeof *numbers); k++) {
        float f = float_of(numbers[k]), down = float_of(numbers[k] & 0xffff0000);
        int up = 0;
        for (uint32_t noise = 0; noise < 1 << 16; noise++) {
            uint16_t rounded = bf16_round_with(f, noise | noise << 16);
            int is_up = rounded != numbers[k] >> 16;
            if (is_up)
                assert_int_equal(rounded, (numbers[k] >> 16) + 1);  // the next bf16 away from 0
            else
                assert_true(bf16_widen(rounded) == down);
            up += is_up;
        }
        assert_int_equal(up, numbers[k] & 0xffff);
    }
}

static void test_noisy_rounding_keeps(void **state) {
    // Numbers that bf16 can represent, including infinity, must not change.
    for (uint32_t upper = 0; upper < 1 << 16; upper++) {
        uint16_t rounded = bf16_round_with(float_of(upper << 16), random_bits());
        assert_int_equal(rounded, isnan(float_of(upper << 16)) ? upper | 0x40 : upper);
    }
    for (int i = 0; i < 1000; i++)
        assert_true(isnan(bf16_widen(bf16_round_with(float_of(0x7f800001 + i * 8000), random_bits()))));
}

// The mean of roundings with the update's noise must be within 5 standard deviations of the number.
static void test_noise_is_unbiased(void **state) {
    enum { MANY = 1 << 18 };
    static const float rests[] = { 0.01f, 0.25f, 0.5f, 0.9f };
    for (int by_key = 0; by_key < 2; by_key++)
        for (int k = 0; k < 4; k++) {
            float x = 1 + rests[k] * 0x1p-7f;
            double sum = 0, rest = (x - 1) * 128, deviation = sqrt(rest * (1 - rest) / MANY);
            for (uint32_t i = 0; i < MANY; i++) {
                uint16_t rounded = bf16_round_with(x, by_key ? noise_at(i, 77) : noise_at(77, i));
                sum += (bf16_widen(rounded) - 1) * 128;
            }
            assert_true(fabs(sum / MANY - rest) < 5 * deviation);
        }
}

// Each bit must be 1 half of the time, independently of the next bit, element and key.
static void test_noise_is_mixed(void **state) {
    enum { MANY = 1 << 16, BITS = 16 };
    for (uint32_t key = 0; key < 4; key++) {
        int ones[BITS] = { 0 }, like_next[BITS] = { 0 }, like_key[BITS] = { 0 }, like_bit[BITS] = { 0 };
        for (uint32_t i = 0; i < MANY; i++) {
            uint32_t here = noise_at(key, i), next = noise_at(key, i + 1), other = noise_at(key + 1, i);
            for (int b = 0; b < BITS; b++) {
                ones[b] += here >> b & 1;
                like_next[b] += ~(here ^ next) >> b & 1;
                like_key[b] += ~(here ^ other) >> b & 1;
                like_bit[b] += ~(here ^ here >> 1) >> b & 1;
            }
        }
        int allowed = 5 * 128;  // 5 standard deviations of 2^16 coin flips
        for (int b = 0; b < BITS; b++) {
            assert_in_range(ones[b], MANY / 2 - allowed, MANY / 2 + allowed);
            assert_in_range(like_next[b], MANY / 2 - allowed, MANY / 2 + allowed);
            assert_in_range(like_key[b], MANY / 2 - allowed, MANY / 2 + allowed);
            assert_in_range(like_bit[b], MANY / 2 - allowed, MANY / 2 + allowed);
        }
    }
}

// -------- copying

static void test_convert(void **state) {
    enum { ALL = 1 << 16 };
    uint16_t *low = room(ALL * 2), *back = room(ALL * 2), *guarded = room((LONGEST + 1) * 2);
    float *wide = room(ALL * 4);
    for (int i = 0; i < ALL; i++) low[i] = (uint16_t)i;
    for (int t = 1; t < DTYPES; t++) {
        kernel_convert(ZERO_F32, wide, dtypes[t], low, ALL);
        kernel_convert(dtypes[t], back, ZERO_F32, wide, ALL);
        for (int i = 0; i < ALL; i++) {  // exact both ways, except for a NaN's payload
            assert_int_equal(bits_of(wide[i]), bits_of(toy_load(dtypes[t], low, i)));
            assert_int_equal(back[i], !isnan(wide[i]) ? i : t == 1 ? i | 0x40 : 0x7e00 | (i & 0x8000));
        }
        for (int k = 0; k < LENGTHS; k++) {
            guarded[lengths[k]] = 0xabcd;
            kernel_convert(dtypes[t], guarded, ZERO_F32, wide, lengths[k]);
            assert_int_equal(guarded[lengths[k]], 0xabcd);
            assert_memory_equal(guarded, back, lengths[k] * 2);
        }
    }
    free(low);
    free(back);
    free(wide);
    free(guarded);
}

static void test_fill_nan(void **state) {
    union {
        float f[4];
        uint16_t low[8];
        unsigned char bytes[16];
    } x = { .f = { 1, 2, 3, 4 } };
    kernel_fill_nan(&x, 12);
    for (int i = 0; i < 3; i++) assert_true(isnan(x.f[i]));
    for (int i = 0; i < 6; i++) assert_true(isnan(bf16_widen(x.low[i])) && isnan(fp16_widen(x.low[i])));
    assert_true(x.f[3] == 4);
}

// -------- sums

enum { MOST_RANKS = 9 };
static void sum_ranks_case(zero_dtype type, zero_dtype to_type, int ranks, int64_t n, int add) {
    void *parts[MOST_RANKS];
    const void *inputs[MOST_RANKS];
    size_t to_size = dtype_bytes(to_type);
    char *to = room((n + 1) * to_size), *want = room((n + 1) * to_size);
    float *other = room((n + 1) * sizeof *other);  // a sum in a wider dtype than `to`
    const float *plus = !add ? NULL : to_type == ZERO_F32 ? (const float *)to : other;
    fill(to_type, to, n + 1);
    fill(ZERO_F32, other, n + 1);
    memcpy(want, to, (n + 1) * to_size);
    for (int r = 0; r < ranks; r++) {
        inputs[r] = parts[r] = room(n * dtype_bytes(type) + 1);
        fill(type, parts[r], n);
    }
    float scale = 1.0f / ranks;
    for (int64_t i = 0; i < n; i++) {  // adds in fp32, multiplies by 1/N, and rounds once
        float x[MOST_RANKS];
        for (int r = 0; r < ranks; r++) x[r] = toy_load(type, parts[r], i);
        float sum = toy_tree(x, ranks) * scale;
        toy_store(to_type, want, i, plus ? plus[i] + sum : sum);
    }
    kernel_sum_ranks(to_type, to, type, inputs, ranks, scale, n, plus);
    assert_memory_equal(to, want, (n + 1) * to_size);  // also checks the element past the end
    for (int r = 0; r < ranks; r++) free(parts[r]);
    free(to);
    free(want);
    free(other);
}

static void test_sum_ranks(void **state) {
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
            for (int k = 0; k < LENGTHS; k++)
                for (int t = 0; t < DTYPES; t++) {
                    sum_ranks_case(dtypes[t], dtypes[t], ranks, lengths[k], 0);
                    sum_ranks_case(dtypes[t], ZERO_F32, ranks, lengths[k], 0);
                    sum_ranks_case(dtypes[t], ZERO_F32, ranks, lengths[k], 1);
                    sum_ranks_case(ZERO_F32, dtypes[t], ranks, lengths[k], 1);
                    sum_ranks_case(ZERO_F32, dtypes[t], ranks, lengths[k], 0);
                }
    }
}

// -------- sums of squares

// A plain exact sum: bit i stands for 2^(i - 400).
enum { BITS = 720 };
typedef struct {
    char bit[BITS];
} plain;

static void plain_add(plain *sum, double x) {
    int exponent;
    uint64_t digits = (uint64_t)ldexp(frexp(x, &exponent), 53);
    for (int at = exponent - 53 + 400; digits; at++, digits >>= 1)
        for (int i = at; digits & 1 && !(sum->bit[i] ^= 1); i++) continue;  // carries until a 0 becomes 1
}
static double plain_value(const plain *sum) {
    char text[BITS / 4 + 16] = "0x";
    for (int i = 0; i < BITS / 4; i++) {
        const char *bit = sum->bit + BITS - 4 * (i + 1);
        text[i + 2] = "0123456789abcdef"[bit[0] + 2 * bit[1] + 4 * bit[2] + 8 * bit[3]];
    }
    strcpy(text + BITS / 4 + 2, "p-400");
    return strtod(text, NULL);  // rounds once
}

// Sums the squares of a piece in fp64 as kernels.h describes.
static double sum_of_piece(zero_dtype type, const void *x, int64_t from, int64_t to) {
    double lane[16] = { 0 };
    for (int64_t i = from; i < to; i++) {
        double d = toy_load(type, x, i);
        lane[(i - from) % 16] += d * d;
    }
    for (int half = 8; half; half /= 2)
        for (int j = 0; j < half; j++) lane[j] = lane[j] + lane[j + half];
    return lane[0];
}

// The kernel must give the same words with any number of threads, and the value of the plain sum.
static void squares_case(zero_dtype type, const void *x, int64_t n) {
    uint64_t words[4][EXACT_WORDS] = { 0 };
    plain want = { { 0 } };
    for (int64_t i = 0; i < n; i += 128)
        plain_add(&want, sum_of_piece(type, x, i, i + 128 < n ? i + 128 : n));
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        kernel_add_squares(words[threads], type, x, n);
        const double value = exact_value(words[threads]);
        if (value != plain_value(&want))
            fail_msg("%lld elements: %a, not %a", (long long)n, value, plain_value(&want));
        assert_memory_equal(words[threads], words[1], sizeof *words);
    }
}
static void test_add_squares(void **state) {
    static const int64_t more[] = { 65535, 65537, 200003 };
    void *x = room(200003 * 4);
    for (int t = 0; t < DTYPES; t++) {
        fill(dtypes[t], x, 200003);
        for (int k = 0; k < LENGTHS; k++) squares_case(dtypes[t], x, lengths[k]);
        for (int k = 0; k < 3; k++) squares_case(dtypes[t], x, more[k]);
    }
    free(x);
}

// Values of all magnitudes: 0, subnormals, the largest float.
static float any_float(void) {
    static const float special[] = { 0, -0.0f, 0x1p-149f, -0x1.8p-140f, 0x1p-126f, 0x1.fffffep127f, 1 };
    if (random_bits() >> 30 == 0) return special[(random_bits() >> 16) % 7];
    return ldexpf((float)uniform(), (int)(random_bits() >> 24) - 127 - 20);
}

// The norm is the same however the pieces are split over ranks, and in which order they are added.
static void test_squares_know_no_order(void **state) {
    enum { PIECES = 240, N = PIECES * SUM_PIECE };
    float *x = room(N * sizeof *x);
    for (int sizes = 0; sizes < 20; sizes++) {
        uint64_t backward[EXACT_WORDS] = { 0 };
        plain want = { { 0 } };
        for (int i = 0; i < N; i++) x[i] = sizes % 4 ? any_float() * (sizes & 1 ? 1 : 0x1p-120f) : 0x1p-149f;
        for (int p = PIECES - 1; p >= 0; p--) {
            plain_add(&want, sum_of_piece(ZERO_F32, x, p * SUM_PIECE, (p + 1) * SUM_PIECE));
            kernel_add_squares(backward, ZERO_F32, x + p * SUM_PIECE, SUM_PIECE);
        }
        const double value = plain_value(&want), reversed = exact_value(backward);
        assert_memory_equal(&reversed, &value, sizeof value);
        for (int parts = 1; parts <= 8; parts++) {
            uint64_t all[EXACT_WORDS] = { 0 };
            for (int r = 0; r < parts; r++) {
                uint64_t words[EXACT_WORDS] = { 0 };
                const int from = PIECES * r / parts * SUM_PIECE, to = PIECES * (r + 1) / parts * SUM_PIECE;
                kernel_add_squares(words, ZERO_F32, x + from, to - from);
                exact_carry(words);
                for (int i = 0; i < EXACT_WORDS; i++) all[i] += words[i];
            }
            const double got = exact_value(all);
            if (memcmp(&got, &value, sizeof got)) fail_msg("%d parts: %a, not %a", parts, got, value);
        }
    }
    free(x);
}

// A sum is rounded to nearest, ties to even, and far lower digits decide a tie.
static void test_exact_rounding(void **state) {
    static const double low[] = { 0, 0x1p-53, 0x1p-53 + 0x1p-80, 0x1p-298, 0x1p-52, 0x1p-52 + 0x1p-53 };
    for (int k = 0; k < 6; k++)
        for (int scale = 0; scale < 64; scale++) {
            uint64_t words[EXACT_WORDS] = { 0 };
            plain want = { { 0 } };
            const double add[] = { ldexp(1, scale), ldexp(low[k], k == 3 ? 0 : scale), k & 1 ? 0x1p-298 : 0 };
            for (int i = 0; i < 3; i++) exact_add(words, add[i]), plain_add(&want, add[i]);
            assert_true(exact_value(words) == plain_value(&want));
        }
}

static void test_squares_finite(void **state) {
    enum { N = 70001 };
    float *x = room(N * 4);
    for (int i = 0; i < N; i++) x[i] = 0x1.fffffep127f;
    squares_case(ZERO_F32, x, N);  // finite values must not overflow
    static const float odd[] = { INFINITY, -INFINITY, NAN };
    static const int where[] = { 0, 1023, 65536, N - 1 };
    for (int k = 0; k < 12; k++) {
        uint64_t words[EXACT_WORDS] = { 0 };
        x[where[k / 3]] = odd[k % 3];
        kernel_add_squares(words, ZERO_F32, x, N);
        assert_true(isnan(exact_value(words)));
        x[where[k / 3]] = 1;
    }
    free(x);
}

// -------- AdamW

enum { PLACES = LONGEST + 512 };
typedef struct {
    float p[PLACES], m[PLACES], v[PLACES];
    uint16_t low[PLACES];
} state_arrays;

// The formula in zero.h, computed in double.
static void reference_adamw(const zero_hyper *h, double scale, const adamw_segment *s, double *p, double *m,
                            double *v, double g) {
    g *= scale;
    *m = h->beta1 * *m + (1 - (double)h->beta1) * g;
    *v = h->beta2 * *v + (1 - (double)h->beta2) * g * g;
    double lr = h->lr * s->lr_factor,
           step = lr * (*m / (1 - pow(h->beta1, h->t))) / (sqrt(*v / (1 - pow(h->beta2, h->t))) + h->eps);
    *p -= step + lr * h->weight_decay * s->decay * *p;
}

static void update(const adamw_constants *c, const adamw_arrays *a, const adamw_segment *segments, int n) {
    kernel_update(&(own_update){ .update = NULL }, c, a, &(adamw_table){ segments, n, 0 });
}

static void one_element(const adamw_constants *c, const adamw_segment *s, float *p, float *m, float *v,
                        float g) {
    g = g * c->grad_scale;
    *m = fmaf(c->one_minus_beta1, g, c->beta1 * *m);
    *v = fmaf(c->one_minus_beta2 * g, g, c->beta2 * *v);
    *p = fmaf(-(c->step_size * s->lr_factor), *m / fmaf(sqrtf(*v), c->inv_sqrt_correction2, c->eps),
              (float)(1 - (double)s->lr_factor * s->decay * c->lr_decay) * *p);
}

typedef enum { MASTER_ONLY, LOW_BF16, LOW_F16, NO_MASTER, LOWS } low_kind;

// Compares each element with one_element, bit for bit, and within a tolerance with the formula in zero.h.
static void adamw_case(zero_dtype g_type, low_kind low, int t, double scale, const adamw_segment *segments,
                       int n) {
    const zero_hyper h = {
        .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .t = t
    };
    const zero_dtype low_type = low == LOW_F16 ? ZERO_F16 : ZERO_BF16;
    const adamw_constants c = adamw_prepare(&h, scale, 4711);
    static state_arrays a, want;
    static float g[PLACES];  // of g_type
    fill(ZERO_F32, a.p, PLACES);
    fill(ZERO_F32, a.m, PLACES);
    fill(ZERO_F32, a.v, PLACES);
    fill(low_type, a.low, PLACES);
    fill(g_type, g, PLACES);
    for (int64_t i = 0; i < PLACES; i++) {
        a.v[i] = fabsf(a.v[i]);
        if (low == NO_MASTER) a.p[i] = bf16_widen(a.low[i]);
    }
    want = a;
    for (const adamw_segment *s = segments; s < segments + n; s++)
        for (int64_t i = s->offset; i < s->offset + s->elems; i++) {
            const double grad = toy_load(g_type, g, i);
            double p = a.p[i], m = a.m[i], v = a.v[i];
            // The terms of m may cancel, so the error is relative to their magnitude.
            const double m_size = fabs(m) + fabs(grad * scale);
            one_element(&c, s, &want.p[i], &want.m[i], &want.v[i], (float)grad);
            reference_adamw(&h, scale, s, &p, &m, &v, grad);
            const double step = h.lr * s->lr_factor * m_size / (1 - pow(h.beta1, t)) /
                                sqrt(v / (1 - pow(h.beta2, t)));
            assert_true(fabs(want.m[i] - m) <= 1e-6 * m_size && fabs(want.v[i] - v) <= 1e-6 * v);
            assert_true(fabs(want.p[i] - p) <= 1e-6 * fabs(p) + 3e-6 * step);
            const uint32_t inside = (uint32_t)(s->inside + i - s->offset);
            const uint32_t noise = noise_at(noise_key(c.noise, s->tensor, s->layer), inside);
            if (low == NO_MASTER)
                want.low[i] = bf16_round_with(want.p[i], noise);
            else if (low != MASTER_ONLY)
                toy_store(low_type, want.low, i, want.p[i]);
        }
    adamw_arrays in = { a.p, a.m, a.v, g, a.low, g_type, low_type };
    if (low == NO_MASTER) in.p = NULL;
    if (low == MASTER_ONLY) in.low = NULL;
    update(&c, &in, segments, n);
    if (low != NO_MASTER) assert_memory_equal(a.p, want.p, PLACES * 4);
    assert_memory_equal(a.m, want.m, PLACES * 4);
    assert_memory_equal(a.v, want.v, PLACES * 4);
    assert_memory_equal(a.low, want.low, PLACES * 2);
}

static void test_adamw(void **state) {
    static const adamw_segment several[] = {
        { .offset = 128, .inside = 77, .elems = 1, .tensor = 1, .layer = 0, .lr_factor = 1 },
        { .offset = 256, .elems = 3000, .tensor = 2, .layer = 1, .lr_factor = 0.3f, .decay = 0.7f },
        { .offset = 4096, .elems = 513, .tensor = 2, .layer = 2, .lr_factor = 3, .decay = 1 },
    };
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        for (int i = 0; i < 4 * LOWS; i++) {
            const zero_dtype g_type = dtypes[i % DTYPES];
            const double scale = i & 1 ? 1.0 : 0.37;
            for (int k = 0; k < LENGTHS; k++) {
                const adamw_segment whole = { .inside = 1u << 31,
                                              .elems = lengths[k],
                                              .tensor = 3,
                                              .layer = 11,
                                              .lr_factor = 1,
                                              .decay = i >> 1 & 1 };
                adamw_case(g_type, i / 4, 1 + 7 * (i & 3), scale, &whole, 1);
            }
            adamw_case(g_type, i / 4, 3, scale, several, 3);
        }
    }
}

static void test_adamw_keeps_nan(void **state) {
    enum { N = 37, WHERE = 21 };
    const zero_hyper h = {
        .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .t = 3
    };
    adamw_constants c = adamw_prepare(&h, 1, 0);
    float p[N], m[N], v[N], g[N];
    uint16_t low[N];
    for (int i = 0; i < N; i++) {
        p[i] = g[i] = 0.5f;
        m[i] = v[i] = 0.25f;
    }
    g[WHERE] = NAN;
    const adamw_arrays a = { p, m, v, g, low, ZERO_F32, ZERO_BF16 };
    update(&c, &a, &(adamw_segment){ .elems = N, .lr_factor = 1, .decay = 1 }, 1);
    for (int i = 0; i < N; i++) {
        int nan = i == WHERE;
        assert_true(isnan(p[i]) == nan && isnan(m[i]) == nan && isnan(v[i]) == nan &&
                    isnan(bf16_widen(low[i])) == nan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_rounding), cmocka_unit_test(test_noisy_rounding_exact),
        cmocka_unit_test(test_convert),       cmocka_unit_test(test_noisy_rounding_keeps),
        cmocka_unit_test(test_fill_nan),      cmocka_unit_test(test_noise_is_unbiased),
        cmocka_unit_test(test_fp16_widening), cmocka_unit_test(test_noise_is_mixed),
        cmocka_unit_test(test_fp16_rounding), cmocka_unit_test(test_squares_know_no_order),
        cmocka_unit_test(test_sum_ranks),     cmocka_unit_test(test_exact_rounding),
        cmocka_unit_test(test_add_squares),   cmocka_unit_test(test_squares_finite),
        cmocka_unit_test(test_adamw),         cmocka_unit_test(test_adamw_keeps_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
