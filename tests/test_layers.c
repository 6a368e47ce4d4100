// Tests the layers on the CPU with odd shapes. Guards after every tensor and the scratch must not change.
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
static void device_reset(void) { layers->free(); }
static void plan_rows(int rows, int C, int Vp) { plan(1, rows, C, 1, Vp, rows); }

// -------- dtypes, compared with the plugin's conversions, which test_kernels tests

static void test_conversions(void **state) {
    // at and near ties; with the upper half of an infinity, the nonzero ones make NaNs
    static const uint32_t lower[] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff };
    for (uint32_t upper = 0; upper < 1 << 16; upper++) {
        for (int i = 0; i < COUNT(lower); i++) {
            const float x = float_of(upper << 16 | lower[i]);
            assert_int_equal(f32_to_bf16(x), bf16_round(x));
        }
        const uint16_t half = (uint16_t)upper;
        assert_int_equal(bits_of(bf16_to_f32(half)), upper << 16);
        assert_int_equal(bits_of(f16_to_f32(half)), bits_of(fp16_widen(half)));
        assert_int_equal(bits_of(gpt2_value(GPT2_F16, &half, 0)), bits_of(fp16_widen(half)));
        assert_int_equal(bits_of(gpt2_value(GPT2_BF16, &half, 0)), upper << 16);
    }
    float wide[] = { 1.5f, -3 };
    assert_true(gpt2_value(GPT2_F32, wide, 1) == -3);
}

// -------- plan

static void test_plan_refuses(void **state) {
    size_t bytes;
    assert_error(layers->plan(GPT2_F32, 1, 4, 10, 3, 64, 4, &bytes), "NH 3");  // 10 is not a multiple of 3
    assert_error(layers->plan(GPT2_F32, 0, 4, 9, 3, 64, 4, &bytes), "");
    assert_error(layers->plan(GPT2_F32, 1, 4, 9, 3, 64, 0, &bytes), "");
    assert_error(layers->plan(GPT2_F16, 1, 4, 9, 3, 64, 4, &bytes), "fp16 needs --device cuda");
    assert_int_equal(layers->has_dtype(GPT2_F32), 1);
    assert_int_equal(layers->has_dtype(GPT2_F16), 0);
    assert_string_equal(layers->device, "cpu");
}

#ifndef GPT2_CUDA
static void test_without_cuda(void **state) {
    assert_null(layers_cuda());
    assert_error(layers_cuda_options(1, 1, NULL), "built without CUDA");
    assert_string_equal(layers_cuda_attention(), "");
}
#endif

// -------- the layers

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

// The column sums of a matmul's dinp must have the bits of the bias gradient of the layer below.
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
    matmul(3, 9, 1030);     // dbias has many columns, and the workspace is larger than planned
    matmul(3, 1536, 4096);  // computes dinp in pieces of columns
    matmul(3500, 768, 4);   // computes dweight in pieces of columns
}

// Uses more unplanned shapes than the table can hold. All of them must still give the right result.
static void many_matmuls(void) {
    plan(1, 8, 8, 1, 16, 8);
    for (int rows = 1; rows <= 40; rows++) matmul_forward(rows, 8, 3);
    matmul(8, 8, 24);
}

// A row's result must not depend on the number of rows, that is, on the other prompts in its batch.
static void rows_of_matmuls(void) {
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

TEST_ON_ALL(THREADS, memory_cases)
TEST_ON_ALL(THREADS, rows_cases)
TEST_ON_ALL(THREADS, ends_cases)
TEST_ON_ALL(THREADS, matmul_cases)
TEST_ON_ALL(THREADS, many_matmuls)
TEST_ON_ALL(THREADS, rows_of_matmuls)
TEST_ON_ALL(THREADS, attention_cases)
TEST_ON_ALL(THREADS, cached_cases)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_conversions),     TEST(test_plan_refuses),
#ifndef GPT2_CUDA
        TEST(test_without_cuda),
#endif
        TEST(test_memory_cases),    TEST(test_rows_cases),   TEST(test_ends_cases),
        TEST(test_matmul_cases),    TEST(test_many_matmuls), TEST(test_rows_of_matmuls),
        TEST(test_attention_cases), TEST(test_cached_cases),
    };
    layers = &layers_cpu;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
