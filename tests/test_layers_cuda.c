// Tests the layers on a CUDA device (layers.h): fp32, bf16 and fp16, odd shapes; the work that they queue,
// the calls that they refuse, and the choice of algorithms for matmuls. Runs on a GPU, or on the CPU with the
// stand-in for CUDA in tests/cuda/. Without either it skips and prints the reason.
#ifndef GPT2_CUDA
#include <stdio.h>
int main(void) {
    printf("skip test_layers_cuda: built without CUDA\n0 passed, 0 failed, 1 skipped\n");
    return 0;
}
#else
#include "layers.h"
#define XXH_INLINE_ALL
#include <xxhash.h>
#include "../gpt2/attention_cudnn.h"
#include "../gpt2/cuda.h"
#ifdef CUDA_STAND_IN
#include "cuda/stand_in.h"
#endif

static void cuda(cudaError_t rc) {
    if (rc != cudaSuccess) fail_msg("%s", cudaGetErrorString(rc));
}

static void *device_take(size_t bytes) {
    void *p;
    cuda(cudaMalloc(&p, bytes));
    return p;
}
static void device_free(void *p, size_t bytes) { cuda(cudaFree(p)); }
static void device_put(void *to, const void *from, size_t bytes) {
    cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}
static void device_fill(void *to, int byte, size_t bytes) { cuda(cudaMemset(to, byte, bytes)); }

static void device_reset(void) {
#ifdef CUDA_STAND_IN
    static const char *const changed[] = { "FASTEST", "CUBLASLT", "REFUSED", "FAIL", "ALIGNED", "SPLIT" };
    for (int i = 0; i < COUNT(changed); i++) {
        char name[40];
        snprintf(name, sizeof name, "CUDA_STAND_IN_%s", changed[i]);
        unsetenv(name);
    }
    cuda_stand_in_settings();
#endif
    must(layers_cuda_tune(NULL, NULL, 0));
    must(layers_cuda_options(0, 0, NULL));
}

static void plan_rows(int rows, int C, int Vp) {
    size_t for_rows, for_ends;
    layers->free();
    must(rows_cuda_plan(dtype, C, &for_rows));
    must(ends_cuda_plan(rows, Vp, &for_ends));
    use_scratch(for_rows > for_ends ? for_rows : for_ends);
}

// -------- the layers

TEST_ON_ALL(1, memory_cases)

static void bias_backward(int BT, int C) {
    Tensor *dbias = tensor(C, 1), *added = tensor(C, 1), *dout = tensor((size_t)BT * C, 1);
    plan_rows(BT, C, 8);
    add_columns(dbias->x, dout->x, BT, C, 0);
    add_columns(added->x, dout->x, BT, C, 1);
    EACH_RUN {
        must(cuda_bias_backward(dtype, AT(dbias), AT(dout), BT, C, 0));
        must(cuda_bias_backward(dtype, AT(added), AT(dout), BT, C, 1));
    }
    check("dbias", dbias, SLACK);
    check("dbias added", added, SLACK);
    release();
}

static void rows_cases(void) {
    static const int shapes[][2] = {
        { 1, 8 },    { 7, 24 },    { 33, 40 },   { 5, 64 },    { 130, 96 }, { 1, 768 },  { 97, 768 },
        { 300, 24 }, { 33, 1024 }, { 29, 1280 }, { 35, 1600 }, { 2, 2048 }, { 2, 2056 }, { 3, 4104 },
    };
    for (int i = 0; i < COUNT(shapes); i++) {
        int BT = shapes[i][0], C = shapes[i][1];
        layernorm_forward(BT, C);
        layernorm_backward(BT, C);
        bias_backward(BT, C);
        bias_backward(BT, 4 * C);
        gelu((size_t)BT * C);
    }
    gelu_extremes();
}

TEST_ON_ALL(1, rows_cases)

static void ends_cases(void) {
    for (int kind = 0; kind < 3; kind++) {
        encoder(3, 7, 8, 5, kind);
        encoder(2, 33, 64, 257, kind);
        encoder(5, 20, 264, 40, kind);
    }
    encoder(1, 1, 8, 1, 1);
    encoder(1, 9, 768, 300, 2);
    crossentropy(3, 1, 8, 1, 0);
    crossentropy(5, 5, 8, -0.7, 0);
    crossentropy(4, 257, 264, 1.0 / 3, 0);
    crossentropy(2, 256, 256, 1, 0);
    crossentropy(2, 6200, 6400, 0, 0);
    crossentropy(4, 20001, 20008, 1, 1);
    if (dtype == GPT2_BF16) crossentropy(2, 50257, 50304, 1.0 / 64, 0);
}

TEST_ON_ALL(1, ends_cases)

// The caller may reuse host arrays immediately, so queued work needs private copies of them. This test makes
// more calls than there are slots for copies.
static void staging(void **state) {
    enum { CALLS = 40, T = 12, C = 8, V = 64 };
    dtype = GPT2_F32;
    plan_rows(T, C, V);
    Tensor *wte = floats(V * C), *wpe = floats(T * C), *out = floats(CALLS * T * C);
    Tensor *dwte = floats(V * C), *dwpe = floats(T * C), *dout = floats(T * C);
    EACH_RUN {
        for (int i = 0; i < CALLS; i++) {
            int tokens[T];
            const int at = i * T * C;
            for (int t = 0; t < T; t++) tokens[t] = (7 * i + 5 * t) % V;
            if (run == 0)
                naive_encoder(out->x + at, dwte->x, dwpe->x, wte->x, wpe->x, dout->x, tokens, T, T, C);
            LAYER(encoder_forward(GPT2_F32, (float *)AT(out) + at, tokens, AT(wte), AT(wpe), 1, T, C));
            LAYER(encoder_backward(GPT2_F32, AT(dwte), AT(dwpe), AT(dout), tokens, 1, T, C));
            memset(tokens, 0, sizeof tokens);
            cuda(cudaGetLastError());  // no call may leave a pending "not ready" error
        }
    }
    check("encoder's out", out, SLACK);
    check("dwte", dwte, SLACK);
    check("dwpe", dwpe, SLACK);
    release();
}

static void errors(void **state) {
    size_t bytes;
    int inp[8] = { 0, 1, 2, 3, 4, 5, 6, 8 };
    assert_error(layers->plan(GPT2_F32, 0, 1, 1, 1, 1, 1, &bytes), "B 0");
    assert_error(layers->plan(GPT2_F32, 1, 1, 3, 2, 1, 1, &bytes), "NH must divide C");
    assert_error(layers->plan(GPT2_F32, 65536, 65536, 8, 1, 1, 1, &bytes), "B*T must fit");
    assert_error(layers->plan(GPT2_F32, 1, 1, 12, 1, 8, 1, &bytes),
                 "C 12, Vp 8: on CUDA both must be multiples of 8");
    assert_error(layers->plan_cached(GPT2_BF16, 1, 1, 1, 8, 1, 257, &bytes), "C 8, Vp 257: on CUDA both");
    dtype = GPT2_F32;
    plan(2, 2, 8, 1, 8, 4);
    Tensor *x = floats(64), *w = floats(64);
    float *p = x->mem[0], *v = w->mem[0];
    assert_error(layers->encoder_backward(GPT2_F32, p, p, p, inp + 4, 2, 2, 8),
                 "token 8 at 3, the vocabulary has 8");
    assert_error(layers->encoder_forward(GPT2_F32, p, inp, p, p, 1, 1 << 12, 8), "planned for 16");
    assert_error(cuda_bias_backward(GPT2_F32, v, v, 1, 33, 0),
                 "33 columns, but the layers were planned for 32");
    layers->free();
    assert_error(layers->encoder_forward(GPT2_F32, p, inp, p, p, 2, 2, 8), "planned for 0");
    LAYER(plan(GPT2_F32, 2, 2, 8, 1, 8, 4, &bytes));
    assert_error(layers->encoder_forward(GPT2_F32, p, inp, p, p, 2, 2, 8), "use_scratch");
    assert_error(cuda_bias_backward(GPT2_F32, p, p, 2, 8, 0), "use_scratch");
    assert_error(layers_cuda_options(0, 3, NULL), "gelu 3");
    assert_error(layers->download(NULL, p, 4), "cudaMemcpy");
    release();
}

// -------- matmuls

static void matmul_cases(void) {
    static const int shapes[][3] = {
        { 1, 8, 8 }, { 7, 24, 40 }, { 33, 40, 120 }, { 12, 64, 256 }, { 130, 96, 32 }
    };
    for (int i = 0; i < COUNT(shapes); i++)
        for (int gelu = 0; gelu < 3; gelu++) {
            must(layers_cuda_options(0, gelu, "cublaslt"));
            plan(shapes[i][0], 1, shapes[i][1], 1, 8, 1);
            matmul(shapes[i][0], shapes[i][1], shapes[i][2]);
        }
}

TEST_ON_ALL(1, matmul_cases)

// -------- tests that need the stand-in: it counts waits and launches, and can refuse or speed up algorithms

#ifdef CUDA_STAND_IN
// No layer may wait for the device or allocate memory.
static void asynchronous(void **state) {
    enum { B = 2, T = 8, C = 16, V = 30, Vp = 32 };
    const gpt2_dtype dt = dtype = GPT2_BF16;
    must(layers_cuda_options(0, 1, NULL));
    plan(B, T, C, 2, Vp, B * T);
    size_t n = B * T * 4 * C;  // large enough for any tensor here
    void *x = tensor(n, 1)->mem[0], *y = tensor(n, 1)->mem[0], *z = tensor(n, 1)->mem[0];
    void *w = tensor(n, 1)->mem[0], *dw = tensor(n, 1)->mem[0], *db = tensor(n, 1)->mem[0];
    float *mean = floats(n)->mem[0], *rstd = floats(n)->mem[0];
    int tokens[B * T] = { 0 };
    long launches[2], waits[2], allocations[2];
    cuda_stand_in_counts(&launches[0], &waits[0], &allocations[0]);
    LAYER(clear(x, n));
    LAYER(sum((double *)rstd, mean, B * T, 1));
    LAYER(encoder_forward(dt, x, tokens, w, w, B, T, C));
    LAYER(layernorm_forward(dt, y, mean, rstd, x, w, w, B * T, C));
    LAYER(residual_layernorm_forward(dt, x, y, mean, rstd, x, z, w, w, B * T, C));
    LAYER(matmul_forward(dt, y, x, w, w, B * T, C, 3 * C));
    LAYER(attention_forward(dt, x, mean, y, B, T, C, 2));
    LAYER(attention_backward(dt, z, x, y, x, mean, B, T, C, 2));
    const layers_span span = { .n = T, .room = layers_cache_positions(T) };
    LAYER(attention_cached(dt, x, z, y, &span, 1, C, 2));
    LAYER(matmul_gelu_forward(dt, y, z, x, w, w, B * T, C, 4 * C));
    LAYER(matmul_backward(dt, z, NULL, dw, db, x, y, w, NULL, B * T, 4 * C, C, 1));
    LAYER(softmax_crossentropy(dt, mean, z, 1, tokens, B * T, V, Vp));
    LAYER(layernorm_backward(dt, z, dw, db, mean, x, y, w, mean + n / 2, rstd, B * T, C));
    LAYER(bias_from_sums(dt, db, mean, C));
    LAYER(encoder_backward(dt, dw, db, x, tokens, B, T, C));
    cuda_stand_in_counts(&launches[1], &waits[1], &allocations[1]);
    assert_true(launches[1] > launches[0] + 14);
    assert_int_equal(waits[1], waits[0]);
    assert_int_equal(allocations[1], allocations[0]);
    release();
}

// Returns how many kernels and matmuls matmul_backward queues with pre and both bias gradients. fastest: with
// tuning, the stand-in's fastest algorithm; NULL: without tuning. fused: whether the matmuls compute the bias
// gradients.
static long launches_of_backward(gpt2_dtype dt, int gelu, const char *fastest, int fused) {
    enum { BT = 24, C = 64, OC = C / 4 };  // as in fcproj, so that it is planned and tuned
    long before, after;
    dtype = dt;
    cuda_stand_in_set("CUDA_STAND_IN_FASTEST", fastest ? fastest : "");
    must(layers_cuda_options(0, gelu, "cublaslt"));
    must(layers_cuda_tune("tuned.txt", fastest ? "" : NULL, 1));
    plan(BT, 1, OC, 1, 8, 1);
    void *inp = tensor(BT * C, 1)->mem[0], *dout = tensor(BT * OC, 1)->mem[0];
    void *w = tensor(OC * C, 1)->mem[0], *dw = tensor(OC * C, 1)->mem[0];
    void *dinp = tensor(BT * C, 1)->mem[0], *inp_db = tensor(C, 1)->mem[0], *db = tensor(OC, 1)->mem[0];
    assert_int_equal(layers->dinp_bias_fused(dt, BT, C, OC), fused);
    cuda_stand_in_counts(&before, NULL, NULL);
    LAYER(matmul_backward(dt, dinp, inp_db, dw, db, dout, inp, w, inp, BT, C, OC, 0));
    cuda_stand_in_counts(&after, NULL, NULL);
    release();
    return after - before;
}

// Matmuls compute GELU's slope except in fp32, and bias gradients only if tuning finds that faster.
static void epilogues(void **state) {
    enum { MATMULS = 2, GELU = 1, SUMS = 2 * 2 };  // two kernels for each bias
    assert_int_equal(launches_of_backward(GPT2_BF16, 2, NULL, 0), MATMULS + SUMS);
    assert_int_equal(launches_of_backward(GPT2_BF16, 2, "2", 1), MATMULS);
    assert_int_equal(launches_of_backward(GPT2_BF16, 2, "2:30", 0), MATMULS + GELU + SUMS);
    assert_int_equal(launches_of_backward(GPT2_BF16, 0, NULL, 0), MATMULS + GELU + SUMS);
    assert_int_equal(launches_of_backward(GPT2_F32, 2, NULL, 0), MATMULS + GELU + SUMS);
    assert_int_equal(launches_of_backward(GPT2_F32, 2, "2", 0), MATMULS + GELU + SUMS / 2);
    assert_int_equal(launches_of_backward(GPT2_F16, 1, NULL, 0), MATMULS + GELU + SUMS);
}

enum { TB = 2, TT = 8, TC = 16, TV = 32, BITS = TB * TT * 3 * TC };  // the shape that plan_small plans

static void plan_small(void) {
    dtype = GPT2_F32;
    plan(TB, TT, TC, 2, TV, TB * TT);
}

// Returns the result of a planned matmul. Its bits reveal the algorithm, since each adds in a different
// order.
static void matmul_bits(float bits[BITS]) {
    random_state = 7;
    void *out = floats(BITS)->mem[0], *inp = floats(TB * TT * TC)->mem[0], *w = floats(3 * TC * TC)->mem[0];
    LAYER(matmul_forward(GPT2_F32, out, inp, w, floats(3 * TC)->mem[0], TB * TT, TC, 3 * TC));
    LAYER(download(bits, out, BITS * sizeof *bits));
    release();
}

// If the library refuses an algorithm that its heuristic suggested, plan must try the next one.
static void refused_algorithms(void **state) {
    static float first[BITS], second[BITS];
    size_t bytes;
    must(layers_cuda_options(0, 2, "cublaslt"));
    plan_small();
    matmul_bits(first);
    cuda_stand_in_set("CUDA_STAND_IN_REFUSED", "1");
    plan_small();
    cuda_stand_in_set("CUDA_STAND_IN_REFUSED", "0");  // too late: plan has chosen already
    matmul_bits(second);
    assert_memory_not_equal(first, second, sizeof first);
    matmul(7, 8, 16);
    cuda_stand_in_set("CUDA_STAND_IN_FAIL", "cublasLtMatmul:1");
    plan_small();
    cuda_stand_in_set("CUDA_STAND_IN_FAIL", "");
    cuda_stand_in_set("CUDA_STAND_IN_REFUSED", "8");
    assert_error(layers->plan(GPT2_F32, TB, TT, TC, 2, TV, TB * TT, &bytes), "no algorithm");
    cuda_stand_in_set("CUDA_STAND_IN_REFUSED", "0");
    plan_small();
    // an algorithm that has run once must not be replaced, since the bits would change silently
    cuda_stand_in_set("CUDA_STAND_IN_FAIL", "cublasLtMatmul:1");
    void *x = floats(BITS)->mem[0];
    assert_error(layers->matmul_forward(GPT2_F32, x, x, x, x, TB * TT, TC, 3 * TC), "EXECUTION_FAILED");
}

// A kernel that fails while it runs must be reported by a later call, and not as an algorithm that the
// library refuses.
static void failed_kernels(void **state) {
    static const char failed[] = "illegal memory access";
    size_t bytes;
    char host[4];
    plan_small();
    void *x = floats(BITS)->mem[0];
    cuda_stand_in_set("CUDA_STAND_IN_FAIL", "kernel:1");
    LAYER(gelu_forward(GPT2_F32, x, x, 4));
    LAYER(matmul_forward(GPT2_F32, x, x, x, x, 3, TC, 8));
    assert_error(layers->download(host, x, sizeof host), failed);
    cuda_stand_in_set("CUDA_STAND_IN", "eager");
    LAYER(gelu_forward(GPT2_F32, x, x, 4));
    assert_error(layers->matmul_forward(GPT2_F32, x, x, x, x, TB * TT, TC, 3 * TC), failed);
    assert_error(layers->matmul_forward(GPT2_F32, x, x, x, x, 5, TC, 8), failed);  // not planned
    cuda_stand_in_set("CUDA_STAND_IN", "lazy");
    assert_error(layers->plan(GPT2_F32, TB, TT, TC, 2, TV, TB * TT, &bytes),
                 "a matmul that was tried: illegal memory access");
}

// -------- the tuning file

static void plan_tuned(const char *text, int may_time) {
    must(layers_cuda_tune("tuned.txt", text, may_time));
    plan_small();
}

// Plans with the tuning file `text`, and returns the file's new text. fastest: the algorithm that the
// stand-in makes the fastest.
static char *tuned(const char *text, const char *fastest) {
    cuda_stand_in_set("CUDA_STAND_IN_FASTEST", fastest);
    plan_tuned(text, 1);
    char *after = layers_cuda_tuned();
    assert_non_null(after);
    return after;
}

static int count(const char *text, const char *word) {
    int n = 0;
    while ((text = strstr(text, word))) {
        n++;
        text += strlen(word);
    }
    return n;
}

// Returns a copy of `text` in which the algorithm in line 2, a matmul with a bias, starts with `to` instead
// of 03. mend: corrects the line's checksum. The caller frees the copy.
static char *changed(const char *text, const char *to, int mend) {
    char *copy = strdup(text), *line = strchr(copy, '\n') + 1;
    char *at = strstr(line, " epilogue 4 = 03"), *check = strstr(line, ", check "), digits[16];
    assert_true(at && check && at < check);
    memcpy(at + strlen(" epilogue 4 = "), to, 2);
    snprintf(digits, sizeof digits, "%08x", (unsigned)XXH32(line, (size_t)(check - line), 0));
    if (mend) memcpy(check + strlen(", check "), digits, 8);
    return copy;
}

// Returns a copy of `text` without the first line that contains `word`. The caller frees it.
static char *without_line(const char *text, const char *word) {
    char *copy = strdup(text), *line = strstr(copy, word);
    assert_non_null(line);
    while (line[-1] != '\n') line--;
    char *next = strchr(line, '\n') + 1;
    memmove(line, next, strlen(next) + 1);
    return copy;
}

static void expect_tune_error(const char *text, int may_time, const char *part) {
    size_t bytes;
    int rc = layers_cuda_tune("tuned.txt", text, may_time);
    if (rc == 0) rc = layers->plan(GPT2_F32, TB, TT, TC, 2, TV, TB * TT, &bytes);
    assert_error(rc, part);
    must(layers_cuda_tune(NULL, NULL, 0));
}

// With a complete tuning file, plan must time nothing, call no heuristic, and keep the choices, even if
// another algorithm is faster now.
static void check_kept(const char *text, const float *bits) {
    static float again[BITS];
    long asked = cuda_stand_in_heuristics();
    for (int may_time = 0; may_time < 2; may_time++) {
        plan_tuned(text, may_time);
        char *after = layers_cuda_tuned();
        assert_string_equal(after, text);
        free(after);
        matmul_bits(again);
        assert_memory_equal(bits, again, sizeof again);
    }
    assert_int_equal(cuda_stand_in_heuristics(), asked);
}

static void check_damaged(const char *text, int lines) {
    char *other = changed(text, "04", 0), *mended = changed(text, "63", 1), *digit = changed(text, "0g", 1);
    char *cut = strdup(text), last[64];
    cut[strlen(text) - 3] = 0;
    snprintf(last, sizeof last, "tuned.txt, line %d: damaged", lines + 1);
    expect_tune_error(other, 1, "tuned.txt, line 2: damaged: delete the line");
    expect_tune_error(mended, 1, "line 2: cuBLASLt rejects this algorithm (CUBLAS_STATUS_INVALID_VALUE)");
    expect_tune_error(digit, 1, "tuned.txt, line 2: damaged");
    expect_tune_error(cut, 1, last);
    expect_tune_error("model: gpt2\n", 1, "tuned.txt, line 1: damaged");
    char *texts[] = { other, mended, digit, cut };
    for (int i = 0; i < COUNT(texts); i++) free(texts[i]);
}

static void tuning(void **state) {
    static float untuned[BITS], bits[BITS];
    must(layers_cuda_options(0, 2, "cublaslt"));
    plan_small();
    matmul_bits(untuned);
    char *text = tuned("", "3");  // each matmul chooses algorithm 3, with its epilogue
    int lines = count(text, "\"CUDA stand-in (9.0, ");
    // Only a matmul can add a bias, so an epilogue with a bias is never replaced by separate kernels.
    int biases = count(text, " epilogue 4 = "), split = lines - count(text, " epilogue 0 = ") - biases;
    assert_true(lines > 20 && biases == 4 && split == 4);
    assert_int_equal(count(text, " = 03000000"), lines);
    double ms = atof(strstr(text, " = 03") + strlen(" = ") + 128);
    assert_true(ms >= 10 && ms < 20);
    matmul_bits(bits);
    assert_memory_not_equal(bits, untuned, sizeof bits);
    cuda_stand_in_set("CUDA_STAND_IN_FASTEST", "4");
    check_kept(text, bits);

    // epilogues slower than separate kernels ("apart")
    char *apart = tuned("", "2:30");
    assert_int_equal(count(apart, " = apart "), split);
    assert_int_equal(count(apart, " = 02000000"), lines - split);
    plan_tuned(apart, 0);
    must(layers_cuda_tune("tuned.txt", apart, 1));
    plan(TB * TT, 1, TC, 1, 8, 1);  // times the matmul for logits of another shape
    matmul(TB * TT, TC, 4 * TC);

    // if a line is missing, here one for a matmul with the BGRADB epilogue, plan times only that matmul
    char *less = without_line(apart, " epilogue 512 = "), *whole = tuned(less, "2:30");
    assert_int_equal(count(less, " epilogue 512 = "), split - 1);
    assert_int_equal(count(whole, " epilogue 512 = "), split);

    // an algorithm in the file that passes the library's check but does not run
    cuda_stand_in_set("CUDA_STAND_IN_REFUSED", "4");
    expect_tune_error(text, 0,
                      "line 2: cuBLASLt rejects this algorithm (cuBLASLt: CUBLAS_STATUS_NOT_SUPPORTED");
    // a candidate that the library refuses must not win
    cuda_stand_in_set("CUDA_STAND_IN_REFUSED", "1");
    char *others = tuned("", "0");
    cuda_stand_in_set("CUDA_STAND_IN_REFUSED", "0");
    assert_int_equal(count(others, " = 01000000"), lines);

    // another version of the library needs its own lines, which are added or reported missing
    cuda_stand_in_set("CUDA_STAND_IN_CUBLASLT", "130200");
    expect_tune_error(text, 0, "rank 0 has not timed");
    char *both = tuned(text, "5");
    assert_true(strncmp(both, text, strlen(text)) == 0 && count(both, " cuBLASLt 130200 ") == lines);
    unsetenv("CUDA_STAND_IN_CUBLASLT");
    check_damaged(text, lines);
    char *texts[] = { text, apart, less, whole, others, both };
    for (int i = 0; i < COUNT(texts); i++) free(texts[i]);
}
#endif

// -------- attention

static void attention_cases(void) {
    static const Heads shapes[] = {
        { 2, 1, 64, 4 }, { 3, 7, 24, 4 }, { 1, 64, 96, 3 }, { 1, 130, 64, 4 }, { 2, 33, 64, 1 }
    };
    static const int cached[][3] = {
        { 1, 64, 4 }, { 7, 24, 4 }, { 64, 96, 3 }, { 130, 64, 1 }, { 33, 256, 1 }
    };
    for (int i = 0; i < COUNT(shapes); i++) {
        attention(shapes[i], 1);
        cached_attention(cached[i][0], cached[i][1], cached[i][2]);
    }
    attention((Heads){ 1, 67, 16, 1 }, 30);
}

#ifdef CUDA_STAND_IN
// Matmuls whose sums have another order than ours.
static void split_sums(void **state) {
    static float whole[BITS], split[BITS];
    plan_small();
    matmul_bits(whole);
    cuda_stand_in_set("CUDA_STAND_IN_SPLIT", "1");
    matmul_bits(split);
    assert_memory_not_equal(whole, split, sizeof whole);
    on_all(1, matmul_cases);
    on_all(1, attention_cases);
}

// The heuristic's first algorithms refuse attention's matrices if a head's size is not a multiple of 16
// bytes.
static void misaligned_heads(void **state) {
    cuda_stand_in_set("CUDA_STAND_IN_ALIGNED", "3");
    on_all(1, attention_cases);
}
#endif

static void attentions(void **state) {
    on_all(1, attention_cases);
    const layers_span one = { .n = 1, .room = 32 };
    assert_error(layers->attention_cached(GPT2_F32, NULL, NULL, NULL, &one, 1, 514, 2),
                 "257 channels; must be at most 256");
}

// A limit on scratch splits the batch into groups of rows, which must give the same bits as the whole batch.
static void attention_limit(void **state) {
    enum { B = 6, T = 24, C = 64, NH = 8, N = B * T * C };
    const size_t row = 2 * (size_t)NH * T * T * (sizeof(float) + 2);
    const struct {
        size_t limit;
        int rows;
    } cases[] = { { 0, B }, { row - 1, 1 }, { row, 1 }, { 2 * row, 2 }, { 4 * row, 4 }, { 100 * row, B } };
    static uint16_t first[3 * N], now[3 * N];
    must(layers_cuda_options(0, 0, "cublaslt"));
    for (int i = 0; i < COUNT(cases); i++) {
        layers_cuda_attention_limit(cases[i].limit);
        dtype = GPT2_BF16;
        plan(B, T, C, NH, 8, 1);
        layers_attention_backward b = layers_cuda_attention_backward();
        assert_int_equal(b.rows, cases[i].rows);
        assert_int_equal(b.bytes, cases[i].rows * row);
        assert_int_equal(b.limit, cases[i].limit ? cases[i].limit : (size_t)64 << 20);
        random_state = 1;
        void *qkv = tensor(3 * N, 1)->mem[0], *out = tensor(N, 1)->mem[0];
        void *dout = tensor(N, 1)->mem[0], *dqkv = tensor(3 * N, 1)->mem[0];
        float *lse = floats(B * NH * T)->mem[0];
        LAYER(attention_forward(GPT2_BF16, out, lse, qkv, B, T, C, NH));
        LAYER(attention_backward(GPT2_BF16, dqkv, dout, qkv, out, lse, B, T, C, NH));
        LAYER(download(now, dqkv, sizeof now));
        if (i == 0) memcpy(first, now, sizeof now);
        assert_memory_equal(first, now, sizeof now);
        release();
    }
    layers_cuda_attention_limit(0);
}

// Tests how cuDNN's backward chooses its group size. This does not need the library.
static void fewer_rows(void **state) {
    const size_t mib = 1 << 20;
    assert_int_equal(attention_cudnn_fewer_rows(64, 64, 1539 * mib, 512 * mib), 16);  // 21 fit, 16 divide 64
    assert_int_equal(attention_cudnn_fewer_rows(64, 16, 520 * mib, 512 * mib), 8);    // 15 fit
    assert_int_equal(attention_cudnn_fewer_rows(6, 6, 13, 12), 3);
    assert_int_equal(attention_cudnn_fewer_rows(7, 7, 700, 699), 1);
    assert_int_equal(attention_cudnn_fewer_rows(8, 8, 8 * mib, 1), 1);
    assert_int_equal(attention_cudnn_fewer_rows(4, 1, mib, 1), 1);
    for (int B = 1; B <= 64; B++) {
        for (int rows = B; rows > 1;) {
            int next = attention_cudnn_fewer_rows(B, rows, rows * mib + 1, rows * mib);
            assert_true(next >= 1 && next < rows && B % next == 0);
            rows = next;
        }
    }
}

// With an odd number of sequences, heads or tokens, the frontend's sums before cuDNN's part of the scratch do
// not fill whole units of 256 bytes.
static void cudnn_scratch(void **state) {
    for (size_t front = 0; front < 4096; front += 16) {
        size_t skipped = attention_cudnn_skipped(front);
        assert_true((skipped + front) % 256 == 0 && skipped < 256 && skipped % 16 == 0);
    }
}

static void attention_options(void **state) {
    size_t bytes;
    assert_error(layers_cuda_options(0, 0, "fast"), "cudnn, cudnn-fast or cublaslt");
    must(layers_cuda_options(0, 0, NULL));
    LAYER(plan(GPT2_F32, 1, 8, 16, 2, 8, 8, &bytes));  // auto: cuDNN does not support fp32
    assert_string_equal(layers_cuda_attention(), "cuBLASLt");
    static const char *const words[] = { "cudnn", "cudnn-fast" };
    for (int i = 0; i < 2; i++) {
        must(layers_cuda_options(0, 0, words[i]));
        assert_error(layers->plan(GPT2_F32, 1, 8, 16, 2, 8, 8, &bytes),
                     "cublaslt");  // the error suggests this
    }
    must(layers_cuda_options(0, 0, NULL));
}

// --------

// An argument is the name of the only test to run.
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    // Makes the stand-in run work as late as possible, so that a buffer reused too early gives wrong results.
    setenv("CUDA_STAND_IN", "lazy", 0);
    int devices = 0;
    cudaError_t rc = cudaGetDeviceCount(&devices);
    if (rc != cudaSuccess || devices == 0) {
        printf("skip test_layers_cuda: no usable CUDA device: %s\n0 passed, 0 failed, 1 skipped\n",
               rc != cudaSuccess ? cudaGetErrorString(rc) : "none found");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        TEST(test_memory_cases), TEST(test_rows_cases), TEST(test_ends_cases),
        TEST(staging),           TEST(errors),          TEST(test_matmul_cases),
        TEST(attentions),        TEST(attention_limit), TEST(attention_options),
        TEST(fewer_rows),        TEST(cudnn_scratch),
#ifdef CUDA_STAND_IN
        TEST(asynchronous),      TEST(epilogues),       TEST(refused_algorithms),
        TEST(failed_kernels),    TEST(tuning),          TEST(split_sums),
        TEST(misaligned_heads),
#endif
    };
    layers = layers_cuda();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cudaFree(scratch);
    layers->free();
    return failed;
}
#endif
