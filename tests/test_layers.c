// The layers on the CPU (layers.h): fp32 and bf16, 1 and 2 threads, odd shapes. Every tensor and the scratch
// end in a guard that must survive.
#include "layers.h"

enum { GUARD = 64, THREADS = 2 };

static size_t guarded(size_t bytes) { return (bytes + 2 * GUARD - 1) / GUARD * GUARD; }

static void *device_take(size_t bytes) {
    void *p = aligned_alloc(GUARD, guarded(bytes));
    assert_non_null(p);
    return memset(p, 0xA5, guarded(bytes));
}
static void device_free(void *p, size_t bytes) {
    int whole = 1;
    for (size_t i = bytes; i < guarded(bytes); i++) whole &= ((unsigned char *)p)[i] == 0xA5;
    free(p);
    assert_true(whole);
}
static void device_put(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static void device_fill(void *to, int byte, size_t bytes) { memset(to, byte, bytes); }
static void plan_rows(int rows, int C, int Vp) { plan(1, rows, C, 1, Vp, rows); }

// --------
// dtypes

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
    expect_error(layers->plan(GPT2_F32, 1, 4, 10, 3, 64, 4, &bytes), "NH 3");  // do not divide 10 channels
    expect_error(layers->plan(GPT2_F32, 0, 4, 9, 3, 64, 4, &bytes), "");
    expect_error(layers->plan(GPT2_F32, 1, 4, 9, 3, 64, 0, &bytes), "");
    expect_error(layers->plan(GPT2_F16, 1, 4, 9, 3, 64, 4, &bytes), "fp16 needs --device cuda");
    assert_int_equal(layers->has_dtype(GPT2_F32), 1);
    assert_int_equal(layers->has_dtype(GPT2_F16), 0);
    assert_string_equal(layers->device, "cpu");
}

#ifndef GPT2_CUDA
static void test_without_cuda(void **state) {
    (void)state;
    assert_null(layers_cuda());
    expect_error(layers_cuda_options(1, 1, NULL), "built without CUDA");
    assert_string_equal(layers_cuda_attention(), "");
}
#endif

// --------
// the layers

static void rows_cases(void) {
    static const int shapes[][2] = { { 1, 24 }, { 5, 60 }, { 67, 131 }, { 3, 1100 } };
    for (int i = 0; i < COUNT(shapes); i++) {
        layernorm_forward(shapes[i][0], shapes[i][1]);
        layernorm_backward(shapes[i][0], shapes[i][1]);
    }
    gelu(1);
    gelu(67);
    gelu(5003);
    gelu_extremes();
}

static void ends_cases(void) {
    encoder(1, 1, 24, 5, 1);
    encoder(3, 5, 24, 7, 0);
    encoder(2, 67, 1100, 300, 2);
    crossentropy(1, 1, 8, 0.25, 0);
    crossentropy(5, 67, 128, 0.25, 0);
    crossentropy(3, 1030, 1152, 0.25, 0);
    crossentropy(2, 24, 24, 0, 0);
    crossentropy(4, 20, 24, 1, 1);
}

// The column sums of dinp are the bits of the bias gradient of the matmul below.
static void bias_below(int BT, int C, int OC) {
    Tensor *inp = tensor((size_t)BT * C, 1), *w = tensor((size_t)OC * C, 1),
           *dout = tensor((size_t)BT * OC, 1);
    Tensor *pre = copy(inp), *dinp = copy(inp), *dw = copy(w), *sums = tensor(C, 1), *below = copy(sums);
    Tensor *w2 = tensor((size_t)C * C, 1), *dw2 = copy(w2), *dinp2 = copy(inp);
    for (int add = 0; add < 2; add++) {
        LAYER(matmul_backward(dtype, dinp->mem[0], sums->mem[0], dw->mem[0], NULL, dout->mem[0], inp->mem[0],
                              w->mem[0], pre->mem[0], BT, C, OC, add));
        LAYER(matmul_backward(dtype, dinp2->mem[0], NULL, dw2->mem[0], below->mem[0], dinp->mem[0],
                              inp->mem[0], w2->mem[0], NULL, BT, C, C, add));
        same("column sums of dinp", sums, below);
    }
    release();
}

static void matmul_cases(void) {
    static const Heads shapes[] = { { 1, 1, 24, 3 }, { 1, 5, 24, 3 }, { 1, 67, 60, 3 }, { 2, 32, 128, 2 } };
    enum { Vp = 131, CHUNK = 6 };
    for (int i = 0; i < COUNT(shapes); i++) {
        int BT = shapes[i].B * shapes[i].T, C = shapes[i].C;
        plan(shapes[i].B, shapes[i].T, C, shapes[i].NH, Vp, CHUNK);
        matmul(BT, C, 3 * C);
        matmul(BT, C, C);
        matmul(BT, C, 4 * C);
        matmul(BT, 4 * C, C);
        matmul(BT < CHUNK ? BT : CHUNK, C, Vp);
        matmul(BT % CHUNK + 1, C, Vp);  // not planned, except by chance
        bias_below(BT, 4 * C, C);
    }
    plan(1, 1, 8, 1, 8, 1);
    matmul(3, 9, 1030);     // many columns of dbias, and more workspace than was planned
    matmul(3, 1536, 4096);  // dinp by pieces of the columns
    matmul(3500, 768, 4);   // dweight by pieces of the columns
}

// More unplanned shapes than the table has room for: all of them still give the right result.
static void many_matmuls(void) {
    plan(1, 8, 8, 1, 16, 8);
    for (int rows = 1; rows <= 40; rows++) matmul_forward(rows, 8, 3);
    matmul(8, 8, 24);
}

// A row of a product must not depend on how many rows there are, or answers would depend on who asks with
// them.
static void rows_of_products(void) {
    static const int counts[] = { 1, 2, 3, 7, 8, 17, 33, 64 };
    enum { MOST = 100, C = 96, OC = 384 };
    plan(1, MOST, C, 3, 16, MOST);
    void *inp = tensor(MOST * C, 1)->mem[0], *weight = tensor(OC * C, 1)->mem[0];
    void *bias = tensor(OC, 1)->mem[0], *want = tensor(MOST * OC, 1)->mem[0];
    void *got = tensor(MOST * OC, 1)->mem[0];
    LAYER(matmul_forward(dtype, want, inp, weight, bias, MOST, C, OC));
    for (int i = 0; i < COUNT(counts); i++) {
        LAYER(matmul_forward(dtype, got, inp, weight, bias, counts[i], C, OC));
        assert_memory_equal(got, want, (size_t)counts[i] * OC * gpt2_dtype_size(dtype));
    }
}

static void attention_cases(void) {
    static const Heads shapes[] = { { 2, 1, 24, 3 },    { 2, 5, 24, 3 },  { 1, 7, 3, 3 },   { 1, 67, 60, 3 },
                                    { 2, 130, 128, 2 }, { 1, 64, 20, 1 }, { 1, 300, 16, 1 } };
    for (int i = 0; i < COUNT(shapes); i++) attention(shapes[i], 1);
    attention((Heads){ 1, 67, 16, 1 }, 30);
}

static void cached_cases(void) {
    static const int shapes[][3] = { { 1, 24, 3 },  { 7, 3, 3 },    { 67, 60, 3 }, { 130, 128, 2 },
                                     { 64, 32, 1 }, { 300, 48, 3 }, { 290, 96, 1 } };
    for (int i = 0; i < COUNT(shapes); i++) cached_attention(shapes[i][0], shapes[i][1], shapes[i][2]);
}

#define TEST_OF(cases)                       \
    static void test_##cases(void **state) { \
        (void)state;                         \
        on_all(THREADS, cases);              \
    }
TEST_OF(memory_cases)
TEST_OF(rows_cases)
TEST_OF(ends_cases)
TEST_OF(matmul_cases)
TEST_OF(many_matmuls)
TEST_OF(rows_of_products)
TEST_OF(attention_cases)
TEST_OF(cached_cases)

// what a failed test left behind must not fail the next one
static int clean(void **state) {
    (void)state;
    release();
    layers->free();
    return 0;
}
#define TEST(f) cmocka_unit_test_teardown(f, clean)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_bf16_rounding),   TEST(test_fp16_widening), TEST(test_plan_refuses),
#ifndef GPT2_CUDA
        TEST(test_without_cuda),
#endif
        TEST(test_memory_cases),    TEST(test_rows_cases),    TEST(test_ends_cases),
        TEST(test_matmul_cases),    TEST(test_many_matmuls),  TEST(test_rows_of_products),
        TEST(test_attention_cases), TEST(test_cached_cases),
    };
    layers = &layers_cpu;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
