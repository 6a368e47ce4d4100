// Each layer, forward and backward, against a naive version in double precision; gradients also against
// finite differences of it. fp32 and bf16, 1 and 2 threads, odd shapes. Every tensor and the scratch end in a
// guard that must survive.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <omp.h>
#include "../gpt2/gpt2_error.h"
#include "../gpt2/layers.h"

// --------
// tensors

enum { GUARD = 64, MAX_TENSORS = 1024 };

typedef struct {
    gpt2_dtype dt;
    size_t n;
    void *p;
} Tensor;

static struct {
    char *p;
    size_t bytes;
} blocks[MAX_TENSORS];
static int num_blocks;

static void *guarded(size_t bytes) {
    assert_true(num_blocks < MAX_TENSORS);
    size_t aligned = (bytes + 2 * GUARD - 1) / GUARD * GUARD;
    char *p = aligned_alloc(64, aligned);
    assert_non_null(p);
    memset(p, 0xA5, aligned);
    blocks[num_blocks].p = p;
    blocks[num_blocks++].bytes = bytes;
    return p;
}

static void free_tensors(void) {
    for (int i = 0; i < num_blocks; i++) {
        free(blocks[i].p);
    }
    num_blocks = 0;
    layers_cpu.free();
}

// checks the guards of all tensors and frees them
static void release(void) {
    for (int i = 0; i < num_blocks; i++) {
        size_t end = (blocks[i].bytes + 2 * GUARD - 1) / GUARD * GUARD;
        for (size_t j = blocks[i].bytes; j < end; j++) {
            assert_int_equal((unsigned char)blocks[i].p[j], 0xA5);
        }
    }
    free_tensors();
}

// tensors that a failed test left behind must not fail the next one
static int start(void **state) {
    (void)state;
    free_tensors();
    return 0;
}

static double get(Tensor t, size_t i) {
    return t.dt == GPT2_BF16 ? bf16_to_f32(((uint16_t *)t.p)[i]) : ((float *)t.p)[i];
}

static void put(Tensor t, size_t i, double x) {
    if (t.dt == GPT2_BF16) {
        ((uint16_t *)t.p)[i] = f32_to_bf16((float)x);
    } else {
        ((float *)t.p)[i] = (float)x;
    }
}

static uint32_t random_state = 1;
static double uniform(void) {  // in [-1, 1)
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(random_state >> 8) / (1 << 23) - 1.0;
}

static Tensor tensor(gpt2_dtype dt, size_t n, double scale) {
    Tensor t = { dt, n, guarded(n * gpt2_dtype_size(dt)) };
    for (size_t i = 0; i < n; i++) {
        put(t, i, scale * uniform());
    }
    return t;
}

static Tensor copy(Tensor t) {
    Tensor c = { t.dt, t.n, guarded(t.n * gpt2_dtype_size(t.dt)) };
    memcpy(c.p, t.p, t.n * gpt2_dtype_size(t.dt));
    return c;
}

static Tensor floats(size_t n) { return tensor(GPT2_F32, n, 1); }

static double *doubles(size_t n) {
    double *p = guarded(n * sizeof(double));
    memset(p, 0, n * sizeof(double));
    return p;
}

static double *values(Tensor t) {
    double *p = doubles(t.n);
    for (size_t i = 0; i < t.n; i++) {
        p[i] = get(t, i);
    }
    return p;
}

// Rounding once to bf16 costs at most 2^-8 of a value. `slack` is allowed on top, relative to the tensor's
// largest value.
static void check_slack(const char *what, Tensor t, const double *expected, double slack) {
    double top = 0;
    for (size_t i = 0; i < t.n; i++) {
        top = fmax(top, fabs(expected[i]));
    }
    for (size_t i = 0; i < t.n; i++) {
        double allowed = (t.dt == GPT2_BF16 ? fabs(expected[i]) / 250 : 0) + slack * top + 1e-12;
        if (!(fabs(get(t, i) - expected[i]) <= allowed)) {
            fail_msg("%s[%zu] of %zu (%s, %d threads): %.9g, expected %.9g", what, i, t.n,
                     t.dt ? "bf16" : "fp32", omp_get_max_threads(), get(t, i), expected[i]);
        }
    }
}

static void check(const char *what, Tensor t, const double *expected) {
    check_slack(what, t, expected, 4e-6);
}

static void check_same(const char *what, Tensor a, Tensor b) {
    if (memcmp(a.p, b.p, a.n * gpt2_dtype_size(a.dt)) != 0) {
        fail_msg("%s: two runs differ in their bits (%s, %d threads)", what, a.dt ? "bf16" : "fp32",
                 omp_get_max_threads());
    }
}

static void check_finite(Tensor t) {
    for (size_t i = 0; i < t.n; i++) {
        assert_true(isfinite(get(t, i)));
    }
}

#define LAYER(call)                                             \
    do {                                                        \
        if (layers_cpu.call) fail_msg("%s", gpt2_last_error()); \
    } while (0)

// --------
// settings: every test runs for both dtypes and 1 and 2 threads

static void plan(gpt2_dtype dt, int B, int T, int C, int NH, int Vp, int chunk) {
    size_t bytes;
    LAYER(plan(dt, B, T, C, NH, Vp, chunk, &bytes));
    LAYER(use_scratch(guarded(bytes)));
}

static void for_all_settings(void (*test)(gpt2_dtype dt)) {
    for (int threads = 1; threads <= 2; threads++) {
        omp_set_num_threads(threads);
        test(GPT2_F32);
        release();
        if (layers_cpu.has_dtype(GPT2_BF16)) {
            test(GPT2_BF16);
            release();
        } else {
            print_message("bf16 not tested: this processor does not multiply it\n");
        }
    }
}

// d loss / d x[i] of a scalar function, by central differences
typedef double (*Loss)(const double *x, const void *ctx);
static double slope(Loss loss, double *x, size_t i, const void *ctx) {
    double old = x[i], step = 1e-4;
    x[i] = old + step;
    double up = loss(x, ctx);
    x[i] = old - step;
    double down = loss(x, ctx);
    x[i] = old;
    return (up - down) / (2 * step);
}

// --------
// bf16

static void test_bf16_rounding(void **state) {
    (void)state;
    for (int i = 0; i < 200000; i++) {
        uniform();
        union {
            uint32_t u;
            float f;
        } x = { i % 4 ? random_state : (random_state & 0xffff0000) | 0x8000 };  // every fourth is a tie
        uint16_t got = f32_to_bf16(x.f);
        if (isnan(x.f)) {
            assert_true(isnan(bf16_to_f32(got)));
            continue;
        }
        uint16_t down = (uint16_t)(x.u >> 16);  // towards zero
        uint32_t cut = x.u & 0xffff;
        uint16_t expected = cut > 0x8000 || (cut == 0x8000 && (down & 1)) ? down + 1 : down;
        assert_int_equal(got, expected);
    }
    assert_true(isnan(bf16_to_f32(f32_to_bf16(NAN))));
    union {
        uint32_t u;
        float f;
    } low = { 0x7f800001 };  // a NaN only by its low bits
    assert_true(isnan(bf16_to_f32(f32_to_bf16(low.f))));
    assert_true(isinf(bf16_to_f32(f32_to_bf16(INFINITY))));
    assert_int_equal(f32_to_bf16(-0.0f), 0x8000);
}

// --------
// fp16: each of its values

static void test_fp16_widening(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 1 << 16; bits++) {
        int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
        double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
        float got = f16_to_f32((uint16_t)bits);
        assert_int_equal(signbit(got) != 0, bits >> 15);
        if (exponent == 31) {
            assert_true(fraction ? isnan(got) : isinf(got));
        } else {
            assert_true(fabsf(got) == size);
        }
    }
    uint16_t row[] = { 0x3c00, 0xc100, 0x0001 };
    assert_true(gpt2_value(GPT2_F16, row, 0) == 1 && gpt2_value(GPT2_F16, row, 1) == -2.5f);
    assert_true(gpt2_value(GPT2_F16, row, 2) == 0x1p-24f);
    assert_true(gpt2_value(GPT2_BF16, row, 1) == -8.0f);
    float wide[] = { 1.5f, -3 };
    assert_true(gpt2_value(GPT2_F32, wide, 1) == -3);
}

// --------
// plan

static void test_plan_refuses(void **state) {
    (void)state;
    size_t bytes;
    assert_int_equal(layers_cpu.plan(GPT2_F32, 1, 4, 10, 3, 64, 4, &bytes),
                     -1);  // 3 heads do not divide 10 channels
    assert_non_null(strstr(gpt2_last_error(), "NH 3"));
    assert_int_equal(layers_cpu.plan(GPT2_F32, 0, 4, 9, 3, 64, 4, &bytes), -1);
    assert_int_equal(layers_cpu.plan(GPT2_F32, 1, 4, 9, 3, 64, 0, &bytes), -1);
    assert_int_equal(layers_cpu.plan(GPT2_F16, 1, 4, 9, 3, 64, 4, &bytes), -1);
    assert_string_equal(gpt2_last_error(), "fp16 needs --device cuda");
}

static void test_dtypes(void **state) {
    (void)state;
    assert_int_equal(layers_cpu.has_dtype(GPT2_F32), 1);
    assert_int_equal(layers_cpu.has_dtype(GPT2_F16), 0);
    assert_string_equal(layers_cpu.device, "cpu");
    assert_int_equal(gpt2_dtype_size(GPT2_F16), 2);
}

#ifndef GPT2_CUDA
static void test_without_cuda(void **state) {
    (void)state;
    assert_null(layers_cuda());
    assert_int_equal(layers_cuda_options(1, 1, NULL), -1);
    assert_string_equal(gpt2_last_error(), "built without CUDA");
    assert_string_equal(layers_cuda_attention(), "");
}
#endif

// --------
// memory

static void memory(gpt2_dtype dt) {
    size_t sizes[] = { 1, 67, 65536, 65537, 200003 };
    plan(dt, 1, 1, 8, 1, 8, 1);
    for (int i = 0; i < 5; i++) {
        unsigned char *x = guarded(sizes[i] + 1), *y = guarded(sizes[i]);  // 0xA5 everywhere
        LAYER(clear(x, sizes[i]));
        LAYER(download(y, x, sizes[i]));
        for (size_t j = 0; j < sizes[i]; j++) {
            assert_int_equal(x[j], 0);
            assert_int_equal(y[j], 0);
        }
        assert_int_equal(x[sizes[i]], 0xA5);
    }
    release();
}

static void test_memory(void **state) {
    (void)state;
    for_all_settings(memory);
}

// in the order of the elements, in double: what a plain loop gives, to the bit
static void sum(gpt2_dtype dt) {
    enum { N = 5003 };
    Tensor x = floats(N);
    double *total = doubles(1), expected = 0;
    plan(dt, 1, 1, 8, 1, 8, 1);
    for (int i = 0; i < N; i++) {
        put(x, i, get(x, i) * (i % 7 ? 1 : 1e10));
        expected += get(x, i);
    }
    *total = NAN;  // takes no part
    LAYER(sum(total, x.p, N, 0));
    assert_true(*total == expected);
    LAYER(sum(total, x.p, N, 1));
    assert_true(*total == expected + expected);
    LAYER(sum(total, x.p, 1, 0));
    assert_true(*total == get(x, 0));
    put(x, N / 2, NAN);
    LAYER(sum(total, x.p, N, 1));
    assert_true(isnan(*total));
    release();
}

static void test_sum(void **state) {
    (void)state;
    for_all_settings(sum);
}

// --------
// encoder

static void encoder(gpt2_dtype dt, int B, int T, int C, int V) {
    plan(dt, B, T, C, 1, V, B * T);
    size_t n = (size_t)B * T * C;
    Tensor wte = tensor(dt, (size_t)V * C, 1), wpe = tensor(dt, (size_t)T * C, 1), out = tensor(dt, n, 1),
           dout = tensor(dt, n, 1);
    Tensor dwte = tensor(dt, wte.n, 1), dwpe = tensor(dt, wpe.n, 1), dwte2 = copy(dwte), dwpe2 = copy(dwpe);
    double *y = doubles(n), *dte = values(dwte), *dpe = values(dwpe);
    int *inp = guarded(sizeof(int) * B * T);
    for (int bt = 0; bt < B * T; bt++) {
        inp[bt] = bt % 3 ? abs((int)(uniform() * V)) % V : V - 1;  // one token is frequent
        for (int c = 0; c < C; c++) {
            size_t i = (size_t)bt * C + c, te = (size_t)inp[bt] * C + c, pe = (size_t)(bt % T) * C + c;
            y[i] = get(wte, te) + get(wpe, pe);
            dte[te] += get(dout, i);
            dpe[pe] += get(dout, i);
        }
    }
    LAYER(encoder_forward(dt, out.p, inp, wte.p, wpe.p, B, T, C));
    check("encoder out", out, y);
    LAYER(encoder_backward(dt, dwte.p, dwpe.p, dout.p, inp, B, T, C));
    check("dwte", dwte, dte);
    check("dwpe", dwpe, dpe);
    LAYER(encoder_backward(dt, dwte2.p, dwpe2.p, dout.p, inp, B, T, C));
    check_same("dwte", dwte, dwte2);
    check_same("dwpe", dwpe, dwpe2);
    release();
}

static void encoder_shapes(gpt2_dtype dt) {
    encoder(dt, 1, 1, 24, 5);
    encoder(dt, 3, 5, 24, 7);
    encoder(dt, 2, 67, 1100, 300);
}

static void test_encoder(void **state) {
    (void)state;
    for_all_settings(encoder_shapes);
}

// --------
// layernorm

typedef struct {
    int C;
    const double *w, *b, *dout;
} LayernormRow;

static void naive_layernorm_row(double *y, double *mean, double *rstd, const double *x, const double *w,
                                const double *b, int C) {
    double m = 0, v = 0;
    for (int c = 0; c < C; c++) {
        m += x[c] / C;
    }
    for (int c = 0; c < C; c++) {
        v += (x[c] - m) * (x[c] - m) / C;
    }
    for (int c = 0; c < C; c++) {
        y[c] = (x[c] - m) / sqrt(v + 1e-5) * w[c] + b[c];
    }
    *mean = m;
    *rstd = 1 / sqrt(v + 1e-5);
}

static double layernorm_loss(const double *x, const void *ctx) {
    const LayernormRow *row = ctx;
    double y[2048], mean, rstd, loss = 0;
    naive_layernorm_row(y, &mean, &rstd, x, row->w, row->b, row->C);
    for (int c = 0; c < row->C; c++) {
        loss += y[c] * row->dout[c];
    }
    return loss;
}

// A bias gradient from the sums of dinp has the bits that matmul_backward computes from dinp itself.
static void check_dinp_sums(gpt2_dtype dt, Tensor sums, Tensor dinp, int BT, int C) {
    double *expected = doubles(C);
    for (size_t i = 0; i < dinp.n; i++) {
        expected[i % C] += get(dinp, i);
    }
    check("dinp_sums", sums, expected);
    Tensor dbias = tensor(dt, C, 1), dbias2 = copy(dbias), w = tensor(dt, (size_t)C * C, 1), dw = copy(w);
    Tensor inp = copy(dinp), out = copy(dinp);
    LAYER(bias_from_sums(dt, dbias.p, sums.p, C));
    LAYER(matmul_backward(dt, out.p, NULL, dw.p, dbias2.p, dinp.p, inp.p, w.p, NULL, BT, C, C, 1));
    check_same("bias from sums", dbias, dbias2);
}

static void layernorm(gpt2_dtype dt, int BT, int C) {
    plan(dt, 1, BT, C, 1, 16, BT);
    size_t n = (size_t)BT * C;
    Tensor x = tensor(dt, n, 2), w = tensor(dt, C, 1), b = tensor(dt, C, 1), y = tensor(dt, n, 1),
           mean = floats(BT), rstd = floats(BT);
    Tensor dy = tensor(dt, n, 1), dx = tensor(dt, n, 1), dw = tensor(dt, C, 1), db = tensor(dt, C, 1);
    Tensor dx2 = copy(dx), dw2 = copy(dw), db2 = copy(db), sums = floats(C);
    double *xs = values(x), *ws = values(w), *bs = values(b), *dys = values(dy), *dxs = values(dx),
           *dws = values(dw), *dbs = values(db);
    double *ys = doubles(n), *means = doubles(BT), *rstds = doubles(BT);
    for (int bt = 0; bt < BT; bt++) {
        double *row = xs + (size_t)bt * C, *dout = dys + (size_t)bt * C;
        naive_layernorm_row(ys + (size_t)bt * C, &means[bt], &rstds[bt], row, ws, bs, C);
        LayernormRow ctx = { C, ws, bs, dout };
        for (int c = 0; c < C; c++) {
            dxs[(size_t)bt * C + c] += slope(layernorm_loss, row, c, &ctx);
            dws[c] += dout[c] * (row[c] - means[bt]) * rstds[bt];
            dbs[c] += dout[c];
        }
    }
    LAYER(layernorm_forward(dt, y.p, mean.p, rstd.p, x.p, w.p, b.p, BT, C));
    check("layernorm out", y, ys);
    check("mean", mean, means);
    check("rstd", rstd, rstds);
    LAYER(layernorm_backward(dt, dx.p, dw.p, db.p, sums.p, dy.p, x.p, w.p, mean.p, rstd.p, BT, C));
    check("layernorm dinp", dx, dxs);
    check("layernorm dweight", dw, dws);
    check("layernorm dbias", db, dbs);
    LAYER(layernorm_backward(dt, dx2.p, dw2.p, db2.p, NULL, dy.p, x.p, w.p, mean.p, rstd.p, BT, C));
    check_same("layernorm dinp", dx, dx2);
    check_same("layernorm dweight", dw, dw2);
    check_same("layernorm dbias", db, db2);
    check_dinp_sums(dt, sums, dx, BT, C);
    put(x, C / 2, NAN);
    LAYER(layernorm_forward(dt, y.p, mean.p, rstd.p, x.p, w.p, b.p, BT, C));
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(isnan(get(y, i)) != 0, i < (size_t)C);  // the first row and no other
    }
    release();
}

// bit for bit equal to the rounded sum, and the layernorm of that rounded sum
static void residual_layernorm(gpt2_dtype dt, int BT, int C) {
    plan(dt, 1, BT, C, 1, 16, BT);
    size_t n = (size_t)BT * C;
    Tensor x1 = tensor(dt, n, 1), x2 = tensor(dt, n, 1), w = tensor(dt, C, 1), b = tensor(dt, C, 1);
    Tensor sum = tensor(dt, n, 1), y = tensor(dt, n, 1), y2 = tensor(dt, n, 1);
    Tensor mean = floats(BT), rstd = floats(BT), mean2 = floats(BT), rstd2 = floats(BT);
    for (size_t i = 0; i < n; i++) {
        put(sum, i, get(x1, i) + get(x2, i));
    }
    LAYER(layernorm_forward(dt, y.p, mean.p, rstd.p, sum.p, w.p, b.p, BT, C));
    Tensor apart = tensor(dt, n, 1), residuals[] = { apart, x1 };  // elsewhere, then in place of inp1
    for (int i = 0; i < 2; i++) {
        LAYER(residual_layernorm_forward(dt, residuals[i].p, y2.p, mean2.p, rstd2.p, x1.p, x2.p, w.p, b.p, BT,
                                         C));
        check_same("residual in one pass", sum, residuals[i]);
        check_same("layernorm in one pass", y, y2);
        check_same("mean in one pass", mean, mean2);
        check_same("rstd in one pass", rstd, rstd2);
    }
    release();
}

static void layernorm_shapes(gpt2_dtype dt) {
    int shapes[][2] = { { 1, 24 }, { 5, 60 }, { 67, 131 }, { 3, 1100 } };
    for (int i = 0; i < 4; i++) {
        layernorm(dt, shapes[i][0], shapes[i][1]);
        residual_layernorm(dt, shapes[i][0], shapes[i][1]);
    }
}

static void test_layernorm(void **state) {
    (void)state;
    for_all_settings(layernorm_shapes);
}

// --------
// matmul

static void matmul(gpt2_dtype dt, int BT, int C, int OC, int with_bias) {
    Tensor x = tensor(dt, (size_t)BT * C, 1), w = tensor(dt, (size_t)OC * C, 1), b = tensor(dt, OC, 1),
           y = tensor(dt, (size_t)BT * OC, 1);
    Tensor dy = tensor(dt, y.n, 1), dx = tensor(dt, x.n, 1), dw = tensor(dt, w.n, 4), db = tensor(dt, OC, 4);
    Tensor dw2 = copy(dw), db2 = copy(db);
    double *ys = doubles(y.n), *dxs = doubles(x.n), *dws = values(dw), *dbs = values(db);
    double *xv = values(x), *wv = values(w), *dyv = values(dy);
    for (int bt = 0; bt < BT; bt++) {
        for (int o = 0; o < OC; o++) {
            double sum = with_bias ? get(b, o) : 0, d = dyv[(size_t)bt * OC + o];
            for (int c = 0; c < C; c++) {
                sum += xv[(size_t)bt * C + c] * wv[(size_t)o * C + c];
                dxs[(size_t)bt * C + c] += d * wv[(size_t)o * C + c];
                dws[(size_t)o * C + c] += d * xv[(size_t)bt * C + c];
            }
            ys[(size_t)bt * OC + o] = sum;
            dbs[o] += with_bias ? d : 0;
        }
    }
    LAYER(matmul_forward(dt, y.p, x.p, w.p, with_bias ? b.p : NULL, BT, C, OC));
    check("matmul out", y, ys);
    LAYER(matmul_backward(dt, dx.p, NULL, dw.p, with_bias ? db.p : NULL, dy.p, x.p, w.p, NULL, BT, C, OC, 1));
    check("matmul dinp", dx, dxs);
    check("matmul dweight", dw, dws);
    check("matmul dbias", db, dbs);
    LAYER(
        matmul_backward(dt, dx.p, NULL, dw2.p, with_bias ? db2.p : NULL, dy.p, x.p, w.p, NULL, BT, C, OC, 1));
    check_same("matmul dweight", dw, dw2);
    check_same("matmul dbias", db, db2);
    // without `add` the old contents do not matter, and the result is that of += on zeros
    Tensor over = copy(dw), added = copy(dw), over_bias = copy(db), added_bias = copy(db);
    memset(added.p, 0, w.n * gpt2_dtype_size(dt));
    memset(added_bias.p, 0, OC * gpt2_dtype_size(dt));
    LAYER(matmul_backward(dt, dx.p, NULL, over.p, over_bias.p, dy.p, x.p, w.p, NULL, BT, C, OC, 0));
    LAYER(matmul_backward(dt, dx.p, NULL, added.p, added_bias.p, dy.p, x.p, w.p, NULL, BT, C, OC, 1));
    check_same("matmul dweight, overwritten", over, added);
    check_same("matmul dbias, overwritten", over_bias, added_bias);
}

// The fused product and GELU, and their fused backward, give the bits of the separate functions.
static void matmul_gelu(gpt2_dtype dt, int BT, int C, int OC) {
    Tensor x = tensor(dt, (size_t)BT * C, 2), w = tensor(dt, (size_t)OC * C, 1), b = tensor(dt, OC, 1);
    Tensor pre = tensor(dt, (size_t)BT * OC, 1), y = tensor(dt, pre.n, 1), pre2 = tensor(dt, pre.n, 1),
           y2 = tensor(dt, pre.n, 1);
    LAYER(matmul_forward(dt, pre.p, x.p, w.p, b.p, BT, C, OC));
    LAYER(gelu_forward(dt, y.p, pre.p, pre.n));
    LAYER(matmul_gelu_forward(dt, y2.p, pre2.p, x.p, w.p, b.p, BT, C, OC));
    check_same("product before gelu", pre, pre2);
    check_same("gelu of a product", y, y2);
    // the next product, (BT, OC) @ (OC, C), whose input is y
    Tensor w2 = tensor(dt, w.n, 1), dy = tensor(dt, x.n, 1), dx = tensor(dt, pre.n, 1),
           dw = tensor(dt, w.n, 1), db = tensor(dt, C, 1);
    Tensor dx2 = tensor(dt, pre.n, 1), dw2 = copy(dw), db2 = copy(db);
    LAYER(matmul_backward(dt, dx.p, NULL, dw.p, db.p, dy.p, y.p, w2.p, NULL, BT, OC, C, 1));
    LAYER(gelu_backward(dt, dx.p, pre.p, dx.p, pre.n));
    LAYER(matmul_backward(dt, dx2.p, NULL, dw2.p, db2.p, dy.p, y.p, w2.p, pre.p, BT, OC, C, 1));
    check_same("matmul dinp times gelu's slope", dx, dx2);
    check_same("matmul dweight beside it", dw, dw2);
    check_same("matmul dbias beside it", db, db2);
    // the column sums of dinp are the bias gradient of the layer below, (BT, C) @ (C, OC)
    for (int add = 0; add < 2; add++) {
        Tensor sums = tensor(dt, OC, 1), below = copy(sums);
        Tensor dx3 = tensor(dt, x.n, 1), dw3 = tensor(dt, w.n, 1);
        LAYER(matmul_backward(dt, dx2.p, sums.p, dw2.p, NULL, dy.p, y.p, w2.p, pre.p, BT, OC, C, add));
        LAYER(matmul_backward(dt, dx3.p, NULL, dw3.p, below.p, dx2.p, x.p, w.p, NULL, BT, C, OC, add));
        check_same("column sums of dinp", sums, below);
    }
}

static void matmul_shapes(gpt2_dtype dt) {
    int shapes[][4] = {
        { 1, 1, 24, 3 }, { 1, 5, 24, 3 }, { 1, 67, 60, 3 }, { 2, 32, 128, 2 }
    };  // B, T, C, NH
    for (int i = 0; i < 4; i++) {
        int B = shapes[i][0], T = shapes[i][1], C = shapes[i][2], Vp = 131, chunk = 6;
        plan(dt, B, T, C, shapes[i][3], Vp, chunk);
        matmul(dt, B * T, C, 3 * C, 1);
        matmul(dt, B * T, C, C, 1);
        matmul(dt, B * T, C, 4 * C, 1);
        matmul(dt, B * T, 4 * C, C, 1);
        matmul_gelu(dt, B * T, C, 4 * C);
        matmul(dt, B * T < chunk ? B * T : chunk, C, Vp, 0);
        matmul(dt, B * T % chunk + 1, C, Vp, 0);  // not planned, except by chance
        release();
    }
    plan(dt, 1, 1, 8, 1, 8, 1);
    matmul(dt, 3, 9, 1030, 1);     // many columns of dbias, and more workspace than was planned
    matmul(dt, 3, 1536, 4096, 1);  // dinp by pieces of the columns
    matmul(dt, 3500, 768, 4, 1);   // dweight by pieces of the columns
    release();
}

static void test_matmul(void **state) {
    (void)state;
    for_all_settings(matmul_shapes);
}

// more unplanned shapes than the table holds: planned and unplanned shapes still give the right result
static void matmul_many(gpt2_dtype dt) {
    plan(dt, 1, 8, 8, 1, 16, 8);
    for (int rows = 1; rows <= 40; rows++) {
        Tensor x = tensor(dt, (size_t)rows * 8, 1), w = tensor(dt, 3 * 8, 1),
               y = tensor(dt, (size_t)rows * 3, 1);
        double *ys = doubles(y.n);
        for (size_t i = 0; i < y.n; i++) {
            for (int c = 0; c < 8; c++) {
                ys[i] += get(x, i / 3 * 8 + c) * get(w, i % 3 * 8 + c);
            }
        }
        for (int shift = 0; shift < 2; shift++) {  // with and without bias are two products
            Tensor zeros = tensor(dt, 3, 0);
            LAYER(matmul_forward(dt, y.p, x.p, w.p, shift ? zeros.p : NULL, rows, 8, 3));
            check("matmul out", y, ys);
        }
    }
    matmul(dt, 8, 8, 24, 1);
}

static void test_matmul_many_shapes(void **state) {
    (void)state;
    for_all_settings(matmul_many);
}

// --------
// attention

typedef struct {
    int B, T, C, NH;
    const double *dout;
} AttentionShape;

static double score(const double *qkv, const AttentionShape *s, int b, int h, int t, int t2) {
    int hs = s->C / s->NH;
    const double *q = qkv + ((size_t)b * s->T + t) * 3 * s->C + h * hs,
                 *k = qkv + ((size_t)b * s->T + t2) * 3 * s->C + s->C + h * hs;
    double sum = 0;
    for (int i = 0; i < hs; i++) {
        sum += q[i] * k[i];
    }
    return sum / sqrt(hs);
}

static void naive_attention(double *out, double *lse, const double *qkv, const AttentionShape *s) {
    int hs = s->C / s->NH;
    memset(out, 0, sizeof(double) * s->B * s->T * s->C);
    for (int b = 0; b < s->B; b++) {
        for (int h = 0; h < s->NH; h++) {
            for (int t = 0; t < s->T; t++) {
                double sum = 0, *o = out + ((size_t)b * s->T + t) * s->C + h * hs;
                for (int t2 = 0; t2 <= t; t2++) {
                    sum += exp(score(qkv, s, b, h, t, t2));
                }
                for (int t2 = 0; t2 <= t; t2++) {
                    double p = exp(score(qkv, s, b, h, t, t2)) / sum;
                    const double *v = qkv + ((size_t)b * s->T + t2) * 3 * s->C + 2 * s->C + h * hs;
                    for (int i = 0; i < hs; i++) {
                        o[i] += p * v[i];
                    }
                }
                lse[((size_t)b * s->NH + h) * s->T + t] = log(sum);
            }
        }
    }
}

static void naive_attention_backward(double *dqkv, const double *qkv, const AttentionShape *s) {
    int hs = s->C / s->NH;
    memset(dqkv, 0, sizeof(double) * s->B * s->T * 3 * s->C);
    double *p = doubles(s->T), *dp = doubles(s->T);
    for (int b = 0; b < s->B; b++) {
        for (int h = 0; h < s->NH; h++) {
            for (int t = 0; t < s->T; t++) {
                double sum = 0, mean = 0;
                size_t row = (size_t)b * s->T + t;
                const double *dout = s->dout + row * s->C + h * hs;
                for (int t2 = 0; t2 <= t; t2++) {
                    sum += p[t2] = exp(score(qkv, s, b, h, t, t2));
                }
                for (int t2 = 0; t2 <= t; t2++) {
                    size_t v = ((size_t)b * s->T + t2) * 3 * s->C + 2 * s->C + h * hs;
                    p[t2] /= sum;
                    dp[t2] = 0;
                    for (int i = 0; i < hs; i++) {
                        dp[t2] += dout[i] * qkv[v + i];
                        dqkv[v + i] += p[t2] * dout[i];
                    }
                    mean += p[t2] * dp[t2];
                }
                for (int t2 = 0; t2 <= t; t2++) {
                    double ds = p[t2] * (dp[t2] - mean) / sqrt(hs);
                    size_t q = row * 3 * s->C + h * hs,
                           k = ((size_t)b * s->T + t2) * 3 * s->C + s->C + h * hs;
                    for (int i = 0; i < hs; i++) {
                        dqkv[q + i] += ds * qkv[k + i];
                        dqkv[k + i] += ds * qkv[q + i];
                    }
                }
            }
        }
    }
}

static double attention_loss(const double *qkv, const void *ctx) {
    const AttentionShape *s = ctx;
    static double out[2048], lse[512];
    double loss = 0;
    naive_attention(out, lse, qkv, s);
    for (int i = 0; i < s->B * s->T * s->C; i++) {
        loss += out[i] * s->dout[i];
    }
    return loss;
}

static void attention(gpt2_dtype dt, int B, int T, int C, int NH) {
    plan(dt, B, T, C, NH, 16, B * T);
    size_t n = (size_t)B * T * C;
    Tensor qkv = tensor(dt, 3 * n, 2), out = tensor(dt, n, 1), lse = floats((size_t)B * NH * T),
           dout = tensor(dt, n, 1);
    Tensor dqkv = tensor(dt, 3 * n, 1), dqkv2 = tensor(dt, 3 * n, 1), out2 = tensor(dt, n, 1);
    double *x = values(qkv), *y = doubles(n), *l = doubles(lse.n), *dx = doubles(3 * n);
    AttentionShape s = { B, T, C, NH, values(dout) };
    naive_attention(y, l, x, &s);
    naive_attention_backward(dx, x, &s);
    LAYER(attention_forward(dt, out.p, lse.p, qkv.p, B, T, C, NH));
    check("attention out", out, y);
    check("lse", lse, l);
    LAYER(attention_forward(dt, out2.p, lse.p, qkv.p, B, T, C, NH));
    check_same("attention out", out, out2);
    LAYER(attention_backward(dt, dqkv.p, dout.p, qkv.p, out.p, lse.p, B, T, C, NH));
    double slack = dt == GPT2_BF16 ? 4e-3 : 1e-5;  // backward reads the rounded out
    check_slack("dqkv", dqkv, dx, slack);
    LAYER(attention_backward(dt, dqkv2.p, dout.p, qkv.p, out.p, lse.p, B, T, C, NH));
    check_same("dqkv", dqkv, dqkv2);
    if (n <= 600) {
        for (size_t i = 0; i < 3 * n; i++) {
            dx[i] = slope(attention_loss, x, i, &s);
        }
        check_slack("dqkv by differences", dqkv, dx, slack);
    }
    release();
}

static void attention_shapes(gpt2_dtype dt) {
    attention(dt, 2, 1, 24, 3);
    attention(dt, 2, 5, 24, 3);
    attention(dt, 1, 7, 3, 3);  // head size 1
    attention(dt, 1, 67, 60, 3);
    attention(dt, 2, 130, 128, 2);
    attention(dt, 1, 64, 20, 1);
    attention(dt, 1, 300, 16, 1);
}

static void test_attention(void **state) {
    (void)state;
    for_all_settings(attention_shapes);
}

// Rows of several lengths grow in a cache, by many tokens or by one. Each token must get the bits that
// attention over its whole row, alone, gives it. What the cache holds beyond a row's tokens, here NaN, must
// not count.
enum { CACHE_ROWS = 3 };

typedef struct {
    Tensor qkv, out;  // (length, 3C), (length, C)
    int length, done, begin;
} CachedRow;

static void cached_row(CachedRow *r, gpt2_dtype dt, int length, int C, int NH) {
    *r = (CachedRow){ tensor(dt, (size_t)length * 3 * C, 2), tensor(dt, (size_t)length * C, 1), length, 0,
                      0 };
    LAYER(attention_forward(dt, r->out.p, floats((size_t)NH * length).p, r->qkv.p, 1, length, C, NH));
}

// The next tokens of each row that has some left: `n` of them, fewer at its end.
static int cached_spans(layers_span spans[CACHE_ROWS], CachedRow *rows, int n, Tensor qkv, int C) {
    int count = 0, at = 0;
    size_t size = gpt2_dtype_size(qkv.dt), width = 3 * (size_t)C * size;
    for (int r = CACHE_ROWS - 1; r >= 0; r--) {
        CachedRow *row = &rows[r];
        int left = row->length - row->done, tokens = n < left ? n : left;
        if (!tokens) continue;
        memcpy((char *)qkv.p + at * width, (char *)row->qkv.p + row->done * width, tokens * width);
        const int room = layers_cache_positions(row->length);
        spans[count++] = (layers_span){ r, row->done, tokens, at, row->begin, room };
        row->done += tokens;
        at += tokens;
    }
    return count;
}

static void cached_attention(gpt2_dtype dt, int T, int C, int NH) {
    static const int steps[] = { 5, 1, 1, 17, 2, 40, 1, 1, 1, 300 };
    const int lengths[CACHE_ROWS] = { T / 2 + 1, T, 1 };
    int positions = 0;
    size_t bytes, width = C * gpt2_dtype_size(dt);
    CachedRow rows[CACHE_ROWS];
    layers_span spans[CACHE_ROWS];
    LAYER(plan_cached(dt, CACHE_ROWS * T, CACHE_ROWS, T, C, NH, 16, &bytes));
    LAYER(use_scratch(guarded(bytes)));
    for (int r = 0; r < CACHE_ROWS; r++) {
        cached_row(&rows[r], dt, lengths[r], C, NH);
        rows[r].begin = positions;
        positions += layers_cache_positions(lengths[r]);
    }
    Tensor qkv = tensor(dt, (size_t)CACHE_ROWS * T * 3 * C, 1), out = tensor(dt, qkv.n / 3, 1);
    bytes = layers_cache_bytes(dt, positions, C);
    char *cache = memset(guarded(bytes), 0xff, bytes);
    for (int step = 0;; step = (step + 1) % (sizeof steps / sizeof *steps)) {
        int n = cached_spans(spans, rows, steps[step], qkv, C);
        if (!n) break;
        LAYER(attention_cached(dt, out.p, cache, qkv.p, spans, n, C, NH));
        for (const layers_span *s = spans; s < spans + n; s++) {
            const char *want = (char *)rows[s->row].out.p + s->first * width;
            if (memcmp((char *)out.p + s->at * width, want, s->n * width))
                fail_msg("positions %d.. of a row of %d (%s, T %d, C %d, NH %d): other bits", s->first,
                         lengths[s->row], dt ? "bf16" : "fp32", T, C, NH);
        }
    }
    release();
}

static void cached_shapes(gpt2_dtype dt) {
    cached_attention(dt, 1, 24, 3);
    cached_attention(dt, 7, 3, 3);
    cached_attention(dt, 67, 60, 3);
    cached_attention(dt, 130, 128, 2);
    cached_attention(dt, 64, 32, 1);
    cached_attention(dt, 300, 48, 3);
    cached_attention(dt, 290, 96, 1);
}

static void test_cached_attention(void **state) {
    (void)state;
    for_all_settings(cached_shapes);
}

// A row of a product must not depend on how many rows there are, or answers would depend on who asks with
// them.
static void rows_of_products(gpt2_dtype dt) {
    static const int counts[] = { 1, 2, 3, 7, 8, 17, 33, 64 };
    enum { MOST = 100, C = 96, OC = 384 };
    plan(dt, 1, MOST, C, 3, 16, MOST);
    Tensor inp = tensor(dt, MOST * C, 1), weight = tensor(dt, OC * C, 1), bias = tensor(dt, OC, 1);
    Tensor want = tensor(dt, MOST * OC, 1), got = tensor(dt, MOST * OC, 1);
    LAYER(matmul_forward(dt, want.p, inp.p, weight.p, bias.p, MOST, C, OC));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        LAYER(matmul_forward(dt, got.p, inp.p, weight.p, bias.p, counts[i], C, OC));
        if (memcmp(got.p, want.p, (size_t)counts[i] * OC * gpt2_dtype_size(dt)))
            fail_msg("%d rows have other bits than the same rows of %d (%s)", counts[i], MOST,
                     dt ? "bf16" : "fp32");
    }
}

static void test_rows_of_products(void **state) {
    (void)state;
    for_all_settings(rows_of_products);
}

// scores of +-1000: the softmax must neither overflow nor give a row of zeros
static void attention_extremes(gpt2_dtype dt) {
    int T = 67, C = 16;
    plan(dt, 1, T, C, 1, 16, T);
    Tensor qkv = tensor(dt, (size_t)T * 3 * C, 30), out = tensor(dt, (size_t)T * C, 1), lse = floats(T);
    Tensor dout = tensor(dt, out.n, 1), dqkv = tensor(dt, qkv.n, 1);
    LAYER(attention_forward(dt, out.p, lse.p, qkv.p, 1, T, C, 1));
    LAYER(attention_backward(dt, dqkv.p, dout.p, qkv.p, out.p, lse.p, 1, T, C, 1));
    check_finite(out);
    check_finite(lse);
    check_finite(dqkv);
    put(qkv, (size_t)(T - 1) * 3 * C, NAN);  // the last query: its row and no other
    LAYER(attention_forward(dt, out.p, lse.p, qkv.p, 1, T, C, 1));
    for (int i = 0; i < T * C; i++) {
        assert_int_equal(isnan(get(out, i)) != 0, i >= (T - 1) * C);
    }
}

static void test_attention_extremes(void **state) {
    (void)state;
    for_all_settings(attention_extremes);
}

// --------
// gelu

static double naive_gelu(const double *x, const void *ctx) {
    (void)ctx;
    return 0.5 * *x * (1 + tanh(sqrt(2 / M_PI) * (*x + 0.044715 * *x * *x * *x)));
}

static void gelu(gpt2_dtype dt, size_t n) {
    plan(dt, 1, 1, 8, 1, 8, 1);
    Tensor x = tensor(dt, n, 5), y = tensor(dt, n, 1), dy = tensor(dt, n, 1), dx = tensor(dt, n, 1);
    double *xs = values(x), *ys = doubles(n), *dxs = doubles(n);
    for (size_t i = 0; i < n; i++) {
        ys[i] = naive_gelu(&xs[i], NULL);
        dxs[i] = get(dy, i) * slope(naive_gelu, xs + i, 0, NULL);
    }
    LAYER(gelu_forward(dt, y.p, x.p, n));
    check_slack("gelu out", y, ys, 4e-7);
    LAYER(gelu_backward(dt, dx.p, x.p, dy.p, n));
    check_slack("gelu dinp", dx, dxs, 2e-6);
    LAYER(gelu_backward(dt, dy.p, x.p, dy.p, n));
    check_same("gelu dinp in place", dx, dy);
    release();
}

static void gelu_shapes(gpt2_dtype dt) {
    gelu(dt, 1);
    gelu(dt, 67);
    gelu(dt, 5003);
}

static void test_gelu(void **state) {
    (void)state;
    for_all_settings(gelu_shapes);
}

static void gelu_extremes(gpt2_dtype dt) {
    plan(dt, 1, 1, 8, 1, 8, 1);
    double xs[] = { 0, 20, -20, 1e4, -1e4, 1e20, -1e20, 1e-30, NAN },
           slopes[] = { 0.5, 1, 0, 1, 0, 1, 0, 0.5, NAN };
    Tensor x = tensor(dt, 9, 1), y = tensor(dt, 9, 1), dy = tensor(dt, 9, 1), dx = tensor(dt, 9, 1);
    for (int i = 0; i < 9; i++) {
        put(x, i, xs[i]);
        put(dy, i, 1);
    }
    LAYER(gelu_forward(dt, y.p, x.p, 9));
    LAYER(gelu_backward(dt, dx.p, x.p, dy.p, 9));
    for (int i = 0; i < 8; i++) {
        double expected = get(x, i) * slopes[i];
        assert_true(fabs(get(y, i) - expected) <= 1e-6 * fabs(expected));
        assert_true(fabs(get(dx, i) - slopes[i]) <= 1e-6);
    }
    assert_true(isnan(get(y, 8)));
    assert_true(isnan(get(dx, 8)));
}

static void test_gelu_extremes(void **state) {
    (void)state;
    for_all_settings(gelu_extremes);
}

// --------
// softmax and cross-entropy

typedef struct {
    int V, target;
} LossRow;

static double naive_loss(const double *x, const void *ctx) {
    const LossRow *row = ctx;
    double sum = 0;
    for (int i = 0; i < row->V; i++) {
        sum += exp(x[i]);
    }
    return log(sum) - x[row->target];
}

static void crossentropy(gpt2_dtype dt, int rows, int V, int Vp) {
    plan(dt, 1, rows, 8, 1, Vp, rows);
    Tensor logits = tensor(dt, (size_t)rows * Vp, 6), losses = floats(rows);
    int *targets = guarded(sizeof(int) * rows);
    double dloss = 0.25, *x = values(logits), *expected = doubles(rows), *dx = doubles(logits.n);
    for (int r = 0; r < rows; r++) {
        targets[r] = r % 2 ? V - 1 - r % V : 0;
        LossRow row = { V, targets[r] };
        expected[r] = naive_loss(x + (size_t)r * Vp, &row);
        for (int i = 0; i < V; i++) {
            dx[(size_t)r * Vp + i] = dloss * slope(naive_loss, x + (size_t)r * Vp, i, &row);
        }
        for (int i = V; i < Vp; i++) {
            put(logits, (size_t)r * Vp + i, NAN);  // padding takes no part
        }
    }
    Tensor before = copy(logits);
    LAYER(softmax_crossentropy(dt, losses.p, logits.p, 0, targets, rows, V, Vp));
    check("losses", losses, expected);
    check_same("logits without a gradient", logits, before);
    LAYER(softmax_crossentropy(dt, losses.p, logits.p, (float)dloss, targets, rows, V, Vp));
    check("losses", losses, expected);
    check("dlogits", logits, dx);
    LAYER(softmax_crossentropy(dt, losses.p, before.p, (float)dloss, targets, rows, V, Vp));
    check_same("dlogits", logits, before);
    release();
}

static void crossentropy_shapes(gpt2_dtype dt) {
    crossentropy(dt, 1, 1, 8);
    crossentropy(dt, 5, 67, 128);
    crossentropy(dt, 3, 1030, 1152);
    crossentropy(dt, 2, 24, 24);
}

static void test_crossentropy(void **state) {
    (void)state;
    for_all_settings(crossentropy_shapes);
}

static void crossentropy_extremes(gpt2_dtype dt) {
    enum { V = 20 };
    plan(dt, 1, 4, 8, 1, V, 4);
    Tensor logits = tensor(dt, 4 * V, 1), losses = floats(4);
    int targets[4] = { 3, 3, 3, 3 };
    put(logits, 3, 5000);               // row 0: sure and right
    put(logits, V + 4, 5000);           // row 1: sure and wrong
    put(logits, 2 * V + 7, -INFINITY);  // row 2: an impossible token
    put(logits, 3 * V + 9, NAN);        // row 3
    LAYER(softmax_crossentropy(dt, losses.p, logits.p, 1, targets, 4, V, V));
    assert_true(get(losses, 0) == 0);
    assert_true(fabs(get(losses, 1) - 5000) < 20);
    assert_true(isfinite(get(losses, 2)) && get(logits, 2 * V + 7) == 0);
    assert_true(isnan(get(losses, 3)));
    for (int i = 0; i < 3 * V; i++) {
        assert_true(isfinite(get(logits, i)));
    }
    for (int i = 3 * V; i < 4 * V; i++) {
        assert_true(isnan(get(logits, i)));
    }
}

static void test_crossentropy_extremes(void **state) {
    (void)state;
    for_all_settings(crossentropy_extremes);
}

// --------

#define TEST(f) cmocka_unit_test_setup(f, start)

int main(void) {
    const struct CMUnitTest rows[] = {
        TEST(test_bf16_rounding), TEST(test_fp16_widening), TEST(test_plan_refuses), TEST(test_dtypes),
        TEST(test_memory),        TEST(test_sum),           TEST(test_encoder),      TEST(test_layernorm),
        TEST(test_gelu),          TEST(test_gelu_extremes),
#ifndef GPT2_CUDA
        TEST(test_without_cuda),
#endif
    };
    const struct CMUnitTest matmul[] = { TEST(test_matmul), TEST(test_matmul_many_shapes) };
    const struct CMUnitTest attention[] = { TEST(test_attention), TEST(test_attention_extremes),
                                            TEST(test_cached_attention), TEST(test_rows_of_products) };
    const struct CMUnitTest crossentropy[] = { TEST(test_crossentropy), TEST(test_crossentropy_extremes) };
    int failed = cmocka_run_group_tests(rows, NULL, NULL) + cmocka_run_group_tests(matmul, NULL, NULL) +
                 cmocka_run_group_tests(attention, NULL, NULL) +
                 cmocka_run_group_tests(crossentropy, NULL, NULL);
    return failed != 0;
}
