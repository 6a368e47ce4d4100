// Each function of layers_cuda against the same one of layers_cpu (which test_layers.c checks) on the same
// inputs: fp32, bf16, fp16, odd shapes, gradients that are not zero before, results in place of inputs. The
// CPU has no fp16: it then gets the same numbers in fp32. Each function runs twice on the device, once with
// scratch full of NaN: the bits must be the same. Runs on a CUDA device, or on the CPU with tests/cuda/ in
// the place of CUDA; skips, with the reason, where there is neither.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>
#include <cmocka.h>
#include <omp.h>
#include "../gpt2/layers.h"

#ifndef GPT2_CUDA
static void without_cuda(void **state) {
    (void)state;
    assert_null(layers_cuda());
    print_message("skipped: built without CUDA\n");
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(without_cuda) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "../gpt2/attention_cudnn.h"
#include "../gpt2/cuda.h"
#include "../llmc_zero/device/numbers.h"
#ifdef CUDA_STAND_IN
#include "cuda/stand_in.h"
#endif

enum { CPU, CUDA, AGAIN, RUNS };  // each function runs on the CPU, on the device, and there once more
enum { MAX_TENSORS = 24 };

typedef struct {
    gpt2_dtype dt;
    size_t n;
    void *mem[RUNS];
} Tensor;

static Tensor tensors[MAX_TENSORS];
static int num_tensors;
static void *scratch[2];
static size_t scratch_bytes;
static const char *const names[] = { "fp32", "bf16", "fp16" };
static const gpt2_dtype dtypes[] = { GPT2_F32, GPT2_BF16, GPT2_F16 };

static void ok(int rc) {
    if (rc) fail_msg("%s", gpt2_last_error());
}

static void cuda(cudaError_t rc) {
    if (rc != cudaSuccess) fail_msg("%s", cudaGetErrorString(rc));
}

// --------
// tensors: one copy for each run

static const Layers *on(int run) { return run == CPU ? &layers_cpu : layers_cuda(); }

static gpt2_dtype type(gpt2_dtype dt, int run) { return run == CPU && dt == GPT2_F16 ? GPT2_F32 : dt; }

static double get(gpt2_dtype dt, const void *p, size_t i) {
    if (dt == GPT2_F32) return ((const float *)p)[i];
    uint16_t bits = ((const uint16_t *)p)[i];
    return dt == GPT2_BF16 ? bf16_widen(bits) : fp16_widen(bits);
}

static void put(gpt2_dtype dt, void *p, size_t i, double x) {
    if (dt == GPT2_F32)
        ((float *)p)[i] = (float)x;
    else
        ((uint16_t *)p)[i] = dt == GPT2_BF16 ? bf16_round((float)x) : fp16_round((float)x);
}

static uint32_t random_state = 1;
static double uniform(void) {  // in [-1, 1)
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(random_state >> 8) / (1 << 23) - 1.0;
}

// x (n) of type dt becomes a tensor, in each run the same values
static Tensor *tensor_of(gpt2_dtype dt, size_t n, const void *x) {
    assert_true(num_tensors < MAX_TENSORS);
    Tensor *t = &tensors[num_tensors++];
    t->dt = dt;
    t->n = n;
    t->mem[CPU] = malloc(n * 4);
    assert_non_null(t->mem[CPU]);
    for (size_t i = 0; i < n; i++) put(type(dt, CPU), t->mem[CPU], i, get(dt, x, i));
    for (int run = CUDA; run < RUNS; run++) {
        cuda(cudaMalloc((void **)&t->mem[run], n * gpt2_dtype_size(dt)));
        cuda(cudaMemcpy(t->mem[run], x, n * gpt2_dtype_size(dt), cudaMemcpyHostToDevice));
    }
    return t;
}

static Tensor *tensor(gpt2_dtype dt, size_t n, double scale) {
    void *x = malloc(n * 4);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) put(dt, x, i, scale * uniform());
    Tensor *t = tensor_of(dt, n, x);
    free(x);
    return t;
}

static void *downloaded(const Tensor *t, int run) {
    size_t bytes = t->n * gpt2_dtype_size(type(t->dt, run));
    void *x = malloc(bytes);
    assert_non_null(x);
    ok(on(run)->download(x, t->mem[run], bytes));
    return x;
}

// Roundings to t's type may fall to either side: one unit in the last place. On top, slack, relative to the
// largest value.
static void check(const char *what, const Tensor *t, double slack) {
    static const double unit[] = { 0, 1.0 / 128, 1.0 / 1024 };
    void *x[RUNS];
    for (int run = 0; run < RUNS; run++) x[run] = downloaded(t, run);
    double top = 0;
    for (size_t i = 0; i < t->n; i++) top = fmax(top, fabs(get(type(t->dt, CPU), x[CPU], i)));
    for (size_t i = 0; i < t->n; i++) {
        double expected = get(type(t->dt, CPU), x[CPU], i), got = get(t->dt, x[CUDA], i);
        double allowed = unit[t->dt] * fabs(expected) + slack * top + (t->dt == GPT2_F16 ? 6e-8 : 1e-30);
        if (!(fabs(got - expected) <= allowed) && !(isnan(got) && isnan(expected)))
            fail_msg("%s[%zu] of %zu (%s): %.9g, on the CPU %.9g", what, i, t->n, names[t->dt], got,
                     expected);
    }
    if (memcmp(x[CUDA], x[AGAIN], t->n * gpt2_dtype_size(t->dt)))
        fail_msg("%s of %zu (%s): two runs differ in their bits", what, t->n, names[t->dt]);
    for (int run = 0; run < RUNS; run++) free(x[run]);
}

static void release(void) {
    for (int i = 0; i < num_tensors; i++) {
        free(tensors[i].mem[CPU]);
        for (int run = CUDA; run < RUNS; run++) cuda(cudaFree(tensors[i].mem[run]));
    }
    num_tensors = 0;
}

static void free_scratch(void) {
    free(scratch[0]);
    if (scratch[1]) cuda(cudaFree(scratch[1]));
    scratch[0] = scratch[1] = NULL;
}

static void plan(gpt2_dtype dt, int B, int T, int C, int NH, int Vp, int chunk) {
    free_scratch();
    size_t bytes;
    ok(layers_cpu.plan(type(dt, CPU), B, T, C, NH, Vp, chunk, &bytes));
    scratch[0] = aligned_alloc(256, (bytes + 255) / 256 * 256);
    ok(layers_cpu.use_scratch(scratch[0]));
    ok(layers_cuda()->plan(dt, B, T, C, NH, Vp, chunk, &scratch_bytes));
    cuda(cudaMalloc((void **)&scratch[1], scratch_bytes));
    ok(layers_cuda()->use_scratch(scratch[1]));
}

// For tests without products, so that plan tries none: rows and ends only.
static void plan_ends(gpt2_dtype dt, int B, int T, int C, int Vp) {
    free_scratch();
    size_t bytes, rows, ends;
    ok(layers_cpu.plan(type(dt, CPU), B, T, C, 1, Vp, 1, &bytes));
    scratch[0] = aligned_alloc(256, (bytes + 255) / 256 * 256);
    ok(layers_cpu.use_scratch(scratch[0]));
    layers_cuda()->free();
    ok(rows_cuda_plan(dt, C, &rows));
    ok(ends_cuda_plan(B * T, Vp, &ends));
    scratch_bytes = rows > ends ? rows : ends;
    cuda(cudaMalloc((void **)&scratch[1], scratch_bytes));
    ok(layers_cuda()->use_scratch(scratch[1]));
}

// the function table of a run; the device's scratch is full of NaN in the first run, of zeros in the second
static const Layers *start(int run) {
    if (run != CPU) cuda(cudaMemset(scratch[1], run == CUDA ? 0xff : 0, scratch_bytes));
    return on(run);
}

// --------
// tests. `SLACK`: sums of fp32 in another order, e^x by another formula

#define SLACK 1e-5
// fp16: what the CPU computes in fp32 is not rounded on the way
#define SLACK_IF_F16 (dt == GPT2_F16 ? 2e-3 : SLACK)
#define EACH_RUN for (int run = 0; run < RUNS; run++)
#define AT(t) ((t)->mem[run])

static void same_on_device(const char *what, const Tensor *a, const Tensor *b) {
    void *x = downloaded(a, CUDA), *y = downloaded(b, CUDA);
    if (memcmp(x, y, a->n * gpt2_dtype_size(a->dt)))
        fail_msg("%s of %zu (%s): other bits", what, a->n, names[a->dt]);
    free(x);
    free(y);
}

static void check_layernorm(gpt2_dtype dt, int BT, int C) {
    size_t n = (size_t)BT * C;
    Tensor *out = tensor(dt, n, 1), *out2 = tensor(dt, n, 1), *out3 = tensor(dt, n, 1),
           *sum = tensor(dt, n, 1);
    Tensor *in_place = tensor(dt, n, 3), *inp = tensor(dt, n, 3), *inp2 = tensor(dt, n, 1),
           *w = tensor(dt, C, 1), *b = tensor(dt, C, 1);
    Tensor *mean = tensor(GPT2_F32, BT, 1), *rstd = tensor(GPT2_F32, BT, 1);
    Tensor *mean2 = tensor(GPT2_F32, BT, 1), *rstd2 = tensor(GPT2_F32, BT, 1), *of_sum = tensor(dt, n, 1);
    EACH_RUN {
        const Layers *l = start(run);
        gpt2_dtype t = type(dt, run);
        ok(l->layernorm_forward(t, AT(out), AT(mean), AT(rstd), AT(inp), AT(w), AT(b), BT, C));
        ok(l->residual_layernorm_forward(t, AT(sum), AT(out2), AT(mean2), AT(rstd2), AT(inp), AT(inp2), AT(w),
                                         AT(b), BT, C));
        ok(l->layernorm_forward(t, AT(of_sum), AT(mean2), AT(rstd2), AT(sum), AT(w), AT(b), BT, C));
        ok(l->residual_layernorm_forward(t, AT(in_place), AT(out3), AT(mean2), AT(rstd2), AT(in_place),
                                         AT(inp2), AT(w), AT(b), BT, C));
    }
    // x - mean is a small difference of large numbers where a row is one number, or two that are close
    double slack = C < 4 ? 1e-3 : SLACK, slack2 = dt == GPT2_F16 ? (C < 4 ? 0.5 : 4e-3) : slack;
    check("layernorm's out", out, slack);
    // the mean of a single row may lie next to 0
    double room = BT == 1 ? 100 : 1;
    check("layernorm's mean", mean, room * SLACK);
    check("layernorm's rstd", rstd, slack);
    check("residual", sum, SLACK);
    check("residual_layernorm's out", out2, slack2);
    same_on_device("layernorm and sum in one pass", out2, of_sum);
    check("residual in place", in_place, SLACK);
    check("residual_layernorm's out, in place", out3, slack2);
    check("residual_layernorm's mean", mean2, room * SLACK_IF_F16);
    check("residual_layernorm's rstd", rstd2, slack2);
    release();
}

// a tensor with the values of t in each run
static Tensor *copy_of(const Tensor *t) {
    Tensor *c = tensor(t->dt, t->n, 1);
    for (int run = 0; run < RUNS; run++) {
        size_t bytes = t->n * gpt2_dtype_size(type(t->dt, run));
        if (run == CPU)
            memcpy(c->mem[run], t->mem[run], bytes);
        else
            cuda(cudaMemcpy(c->mem[run], t->mem[run], bytes, cudaMemcpyDeviceToDevice));
    }
    return c;
}

// sums (C) are those of the columns that a run has in x (BT, C), up to the roundings of fp32
static void check_column_sums(const Tensor *sums, const Tensor *x, int BT, int C) {
    float *got[RUNS];
    for (int run = 0; run < RUNS; run++) {
        void *rows = downloaded(x, run);
        got[run] = downloaded(sums, run);
        for (int c = 0; c < C; c++) {
            double sum = 0, size = 0;
            for (int r = 0; r < BT; r++) {
                double value = get(type(x->dt, run), rows, (size_t)r * C + c);
                sum += value;
                size += fabs(value);
            }
            if (!(fabs(got[run][c] - sum) <= 1e-6 * size))
                fail_msg("dinp_sums[%d] of %d (%s, run %d): %.9g, not %.9g", c, C, names[x->dt], run,
                         got[run][c], sum);
        }
        free(rows);
    }
    assert_memory_equal(got[CUDA], got[AGAIN], C * sizeof(float));
    for (int run = 0; run < RUNS; run++) free(got[run]);
}

static void check_layernorm_backward(gpt2_dtype dt, int BT, int C) {
    size_t n = (size_t)BT * C;
    Tensor *dinp = tensor(dt, n, 1), *dw = tensor(dt, C, 1), *db = tensor(dt, C, 1), *dout = tensor(dt, n, 1),
           *inp = tensor(dt, n, 2);
    Tensor *w = tensor(dt, C, 1), *mean = tensor(GPT2_F32, BT, 0.1), *rstd = tensor(GPT2_F32, BT, 1);
    Tensor *dinp2 = copy_of(dinp), *dw2 = copy_of(dw), *db2 = copy_of(db), *sums = tensor(GPT2_F32, C, 1);
    Tensor *bias = tensor(dt, C, 1), *bias_sums = tensor(GPT2_F32, C, 3);
    EACH_RUN {
        const Layers *l = start(run);
        gpt2_dtype t = type(dt, run);
        ok(l->layernorm_backward(t, AT(dinp), AT(dw), AT(db), AT(sums), AT(dout), AT(inp), AT(w), AT(mean),
                                 AT(rstd), BT, C));
        ok(l->layernorm_backward(t, AT(dinp2), AT(dw2), AT(db2), NULL, AT(dout), AT(inp), AT(w), AT(mean),
                                 AT(rstd), BT, C));
        ok(l->bias_from_sums(t, AT(bias), AT(bias_sums), C));
    }
    check("layernorm's dinp", dinp, SLACK);
    check("layernorm's dweight", dw, SLACK);
    check("layernorm's dbias", db, SLACK);
    check_column_sums(sums, dinp, BT, C);
    same_on_device("dinp without its sums", dinp, dinp2);
    same_on_device("dweight without dinp's sums", dw, dw2);
    same_on_device("dbias without dinp's sums", db, db2);
    check("bias from sums", bias, SLACK);
    release();
}

static void check_elementwise(gpt2_dtype dt, size_t n) {
    Tensor *a = tensor(dt, n, 4), *b = tensor(dt, n, 2), *gelu = tensor(dt, n, 1), *dinp = tensor(dt, n, 1);
    Tensor *in_place = tensor(dt, n, 2), *wild = tensor(dt, n, dt == GPT2_F16 ? 6e4 : 1e30),
           *wild_gelu = tensor(dt, n, 1);
    Tensor *wild_dinp = tensor(dt, n, 1);
    EACH_RUN {
        const Layers *l = start(run);
        gpt2_dtype t = type(dt, run);
        ok(l->gelu_forward(t, AT(gelu), AT(a), n));
        ok(l->gelu_backward(t, AT(dinp), AT(a), AT(b), n));
        ok(l->gelu_backward(t, AT(in_place), AT(a), AT(in_place), n));
        ok(l->gelu_forward(t, AT(wild_gelu), AT(wild), n));
        ok(l->gelu_backward(t, AT(wild_dinp), AT(wild), AT(b), n));
    }
    check("gelu", gelu, SLACK);
    check("gelu's dinp", dinp, SLACK);
    check("gelu's dinp in place", in_place, SLACK);
    check("gelu of large values", wild_gelu, SLACK);
    check("gelu's dinp at large values", wild_dinp, SLACK);
    release();
}

// the part of the CPU's matmul_backward for dbias alone
static void check_bias(gpt2_dtype dt, int BT, int OC) {
    Tensor *dbias = tensor(dt, OC, 1), *dout = tensor(dt, (size_t)BT * OC, 1);
    for (int c = 0; c < OC; c++) {
        gpt2_dtype t = type(dt, CPU);
        double sum = get(t, dbias->mem[CPU], c);
        for (int r = 0; r < BT; r++) sum += get(t, dout->mem[CPU], (size_t)r * OC + c);
        put(t, dbias->mem[CPU], c, sum);
    }
    for (int run = CUDA; run < RUNS; run++) {
        start(run);
        ok(cuda_bias_backward(dt, AT(dbias), AT(dout), BT, OC));
    }
    check("dbias", dbias, SLACK);
    release();
}

static const struct {
    int BT, C;
} row_shapes[] = {
    { 1, 8 },    { 7, 24 },    { 33, 40 },   { 5, 64 },    { 130, 96 }, { 1, 768 },  { 97, 768 },
    { 300, 24 }, { 33, 1024 }, { 29, 1280 }, { 35, 1600 }, { 2, 2048 }, { 2, 2056 }, { 3, 4104 },
};

static void rows(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof row_shapes / sizeof *row_shapes; s++) {
        int BT = row_shapes[s].BT, C = row_shapes[s].C;
        for (int d = 0; d < 3; d++) {
            plan_ends(dtypes[d], BT, 1, C, 1);
            check_layernorm(dtypes[d], BT, C);
            check_layernorm_backward(dtypes[d], BT, C);
            check_elementwise(dtypes[d], (size_t)BT * C);
            check_bias(dtypes[d], BT, C);
            check_bias(dtypes[d], BT, 4 * C);
        }
    }
}

// tokens: 0 all different as far as they go, 1 all the same, 2 few that are frequent, many that are rare
static int token(int kind, int i, int V) {
    double u = (uniform() + 1) / 2;
    return kind == 0 ? i % V : kind == 1 ? V - 1 : (int)(V * u * u * u * u);
}

static void check_encoder(gpt2_dtype dt, int B, int T, int C, int V, int kind) {
    size_t n = (size_t)B * T * C;
    plan_ends(dt, B, T, C, V);
    Tensor *out = tensor(dt, n, 1), *dout = tensor(dt, n, 1), *wte = tensor(dt, (size_t)V * C, 1),
           *wpe = tensor(dt, (size_t)T * C, 1);
    Tensor *dwte = tensor(dt, (size_t)V * C, 1), *dwpe = tensor(dt, (size_t)T * C, 1);
    int *inp = malloc((size_t)B * T * sizeof(int));
    for (int i = 0; i < B * T; i++) inp[i] = token(kind, i, V);
    EACH_RUN {
        ok(start(run)->encoder_forward(type(dt, run), AT(out), inp, AT(wte), AT(wpe), B, T, C));
        ok(start(run)->encoder_backward(type(dt, run), AT(dwte), AT(dwpe), AT(dout), inp, B, T, C));
    }
    free(inp);
    check("encoder's out", out, SLACK);
    check("dwte", dwte, SLACK);
    check("dwpe", dwpe, SLACK);
    release();
}

static void encoder(void **state) {
    (void)state;
    for (int d = 0; d < 3; d++) {
        for (int kind = 0; kind < 3; kind++) {
            check_encoder(dtypes[d], 3, 7, 8, 5, kind);
            check_encoder(dtypes[d], 2, 33, 64, 257, kind);
            check_encoder(dtypes[d], 5, 20, 264, 40, kind);
        }
        check_encoder(dtypes[d], 1, 1, 8, 1, 1);
        check_encoder(dtypes[d], 1, 9, 768, 300, 2);
    }
}

// NaN and infinity in `special` rows: 0 none, 1 a NaN in the first row, -inf in most columns of the second
static void check_crossentropy(gpt2_dtype dt, int rows, int V, int Vp, float dloss, int special) {
    size_t n = (size_t)rows * Vp;
    plan(dt, 1, 1, 8, 1, Vp, rows);
    void *x = malloc(n * 4);
    for (size_t i = 0; i < n; i++) put(dt, x, i, 8 * uniform());
    if (special) {
        for (int c = 1; c < V; c++) put(dt, x, (size_t)Vp + c, c % 300 ? -INFINITY : 1.0);
        put(dt, x, V / 2, NAN);
    }
    Tensor *logits = tensor_of(dt, n, x), *losses = tensor(GPT2_F32, rows, 1);
    free(x);
    int *targets = malloc(rows * sizeof(int));
    for (int r = 0; r < rows; r++)
        targets[r] = special ? 0 : r == 0 ? V - 1 : r == 1 ? 0 : token(0, 7919 * r, V);
    EACH_RUN {
        ok(start(run)->softmax_crossentropy(type(dt, run), AT(losses), AT(logits), dloss, targets, rows, V,
                                            Vp));
    }
    free(targets);
    check("losses", losses, special ? 1e-4 : SLACK);  // in the special row a small difference of logits
    check(dloss ? "gradients of logits" : "untouched logits", logits, dloss ? SLACK : 0);
    void *gradients = downloaded(logits, CUDA);
    if (dloss) {
        for (int r = 0; r < rows; r++)
            for (int c = V; c < Vp; c++) assert_true(get(dt, gradients, (size_t)r * Vp + c) == 0);
    }
    free(gradients);
    release();
}

static void crossentropy(void **state) {
    (void)state;
    for (int d = 0; d < 3; d++) {
        check_crossentropy(dtypes[d], 3, 1, 8, 1, 0);
        check_crossentropy(dtypes[d], 5, 5, 8, -0.7f, 0);
        check_crossentropy(dtypes[d], 4, 257, 264, 1.0f / 3, 0);
        check_crossentropy(dtypes[d], 2, 256, 256, 1, 0);
        check_crossentropy(dtypes[d], 2, 6200, 6400, 0, 0);
        check_crossentropy(dtypes[d], 2, 20001, 20008, 1, 1);
    }
    check_crossentropy(GPT2_BF16, 2, 50257, 50304, 1.0f / 64, 0);
}

static void sums(void **state) {
    (void)state;
    plan(GPT2_F32, 1, 1, 8, 1, 8, 1);
    const int sizes[] = { 1, 31, 1000, 100003 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        Tensor *x = tensor(GPT2_F32, sizes[s], 1),
               *total = tensor(GPT2_F32, 2, 1);  // two floats: room for a double
        double first[RUNS], second[RUNS];
        EACH_RUN {
            ok(on(run)->sum(AT(total), AT(x), sizes[s], 0));
            ok(on(run)->download(&first[run], AT(total), sizeof(double)));
            ok(on(run)->sum(AT(total), AT(x), sizes[s], 1));
            ok(on(run)->download(&second[run], AT(total), sizeof(double)));
        }
        assert_true(fabs(first[CUDA] - first[CPU]) <= 1e-12 * sizes[s] &&
                    fabs(second[CUDA] - second[CPU]) <= 1e-12 * sizes[s]);
        assert_true(first[CUDA] == first[AGAIN] && second[CUDA] == second[AGAIN]);
        assert_true(fabs(second[CUDA] - 2 * first[CUDA]) <= 1e-12 * sizes[s]);
        ok(on(CUDA)->clear(x->mem[CUDA], sizes[s] * sizeof(float)));
        ok(on(CUDA)->sum(total->mem[CUDA], x->mem[CUDA], sizes[s], 1));
        ok(on(CUDA)->download(&first[CUDA], total->mem[CUDA], sizeof(double)));
        assert_true(first[CUDA] == second[CUDA]);
        release();
    }
}

// Arrays on the host may be reused at once, so queued work must have its own copy, for more calls than there
// are slots.
static void staging(void **state) {
    (void)state;
    enum { CALLS = 40, T = 12, C = 8, V = 64 };
    plan(GPT2_F32, 1, T, C, 1, V, T);
    const Layers *l = layers_cuda();
    Tensor *wte = tensor(GPT2_F32, V * C, 1), *wpe = tensor(GPT2_F32, T * C, 1),
           *out = tensor(GPT2_F32, CALLS * T * C, 1);
    Tensor *dwte = tensor(GPT2_F32, V * C, 1), *dwpe = tensor(GPT2_F32, T * C, 1),
           *dout = tensor(GPT2_F32, T * C, 1);
    int inp[T];
    for (int i = 0; i < CALLS; i++) {
        float *rows = (float *)out->mem[CUDA] + i * T * C;
        for (int t = 0; t < T; t++) inp[t] = token(2, t, V);
        ok(layers_cpu.encoder_forward(GPT2_F32, (float *)out->mem[CPU] + i * T * C, inp, wte->mem[CPU],
                                      wpe->mem[CPU], 1, T, C));
        ok(layers_cpu.encoder_backward(GPT2_F32, dwte->mem[CPU], dwpe->mem[CPU], dout->mem[CPU], inp, 1, T,
                                       C));
        ok(l->encoder_forward(GPT2_F32, rows, inp, wte->mem[CUDA], wpe->mem[CUDA], 1, T, C));
        ok(l->encoder_backward(GPT2_F32, dwte->mem[CUDA], dwpe->mem[CUDA], dout->mem[CUDA], inp, 1, T, C));
        memset(inp, 0, sizeof inp);
        cuda(cudaGetLastError());  // whoever looks next must not take "not ready" for an error
    }
    Tensor *const results[] = { out, dwte, dwpe };
    for (int r = 0; r < 3; r++) {
        float *x = downloaded(results[r], CUDA), *y = results[r]->mem[CPU];
        for (size_t i = 0; i < results[r]->n; i++)
            assert_true(fabsf(x[i] - y[i]) <= 1e-5f * (1 + fabsf(y[i])));
        free(x);
    }
    release();
}

// No layer waits for the device or allocates. tests/cuda/ counts both.
static void asynchronous(void **state) {
    (void)state;
#ifdef CUDA_STAND_IN
    enum { B = 2, T = 8, C = 16, V = 30, Vp = 32 };
    gpt2_dtype dt = GPT2_BF16;
    ok(layers_cuda_options(0, 1, NULL));
    plan(dt, B, T, C, 2, Vp, B * T);
    size_t n = B * T * 4 * C;  // as large as any tensor here
    void *x = tensor(dt, n, 1)->mem[CUDA], *y = tensor(dt, n, 1)->mem[CUDA], *z = tensor(dt, n, 1)->mem[CUDA];
    void *w = tensor(dt, n, 1)->mem[CUDA], *dw = tensor(dt, n, 1)->mem[CUDA],
         *db = tensor(dt, n, 1)->mem[CUDA];
    float *mean = tensor(GPT2_F32, n, 1)->mem[CUDA], *rstd = tensor(GPT2_F32, n, 1)->mem[CUDA];
    int tokens[B * T] = { 0 };
    const Layers *l = layers_cuda();
    long launches[2], waits[2], allocations[2];
    cuda_stand_in_counts(&launches[0], &waits[0], &allocations[0]);
    ok(l->clear(x, n));
    ok(l->sum((double *)rstd, mean, B * T, 1));
    ok(l->encoder_forward(dt, x, tokens, w, w, B, T, C));
    ok(l->layernorm_forward(dt, y, mean, rstd, x, w, w, B * T, C));
    ok(l->residual_layernorm_forward(dt, x, y, mean, rstd, x, z, w, w, B * T, C));
    ok(l->matmul_forward(dt, y, x, w, w, B * T, C, 3 * C));
    ok(l->attention_forward(dt, x, mean, y, B, T, C, 2));
    ok(l->attention_backward(dt, z, x, y, x, mean, B, T, C, 2));
    ok(l->attention_cached(dt, x, z, y, &(layers_span){ .n = T, .room = layers_cache_positions(T) }, 1, C,
                           2));
    ok(l->matmul_gelu_forward(dt, y, z, x, w, w, B * T, C, 4 * C));
    ok(l->matmul_backward(dt, z, NULL, dw, db, x, y, w, NULL, B * T, 4 * C, C, 1));
    ok(l->softmax_crossentropy(dt, mean, z, 1, tokens, B * T, V, Vp));
    ok(l->layernorm_backward(dt, z, dw, db, mean, x, y, w, mean + n / 2, rstd, B * T, C));
    ok(l->bias_from_sums(dt, db, mean, C));
    ok(l->encoder_backward(dt, dw, db, x, tokens, B, T, C));
    cuda_stand_in_counts(&launches[1], &waits[1], &allocations[1]);
    assert_true(launches[1] > launches[0] + 14);
    assert_int_equal(waits[1], waits[0]);
    assert_int_equal(allocations[1], allocations[0]);
    release();
#else
    print_message("skipped: only tests/cuda/ counts waits\n");
    skip();
#endif
}

static void expect_error(int rc, const char *part) {
    assert_int_equal(rc, -1);
    if (!strstr(gpt2_last_error(), part)) fail_msg("\"%s\" does not say \"%s\"", gpt2_last_error(), part);
}

static void errors(void **state) {
    (void)state;
    const Layers *l = layers_cuda();
    size_t bytes;
    int inp[8] = { 0, 1, 2, 3, 4, 5, 6, 8 };
    expect_error(l->plan(GPT2_F32, 0, 1, 1, 1, 1, 1, &bytes), "B 0");
    expect_error(l->plan(GPT2_F32, 1, 1, 3, 2, 1, 1, &bytes), "NH divide C");
    expect_error(l->plan(GPT2_F32, 65536, 65536, 8, 1, 1, 1, &bytes), "B*T fit");
    expect_error(l->plan(GPT2_F32, 1, 1, 12, 1, 8, 1, &bytes),
                 "C 12, Vp 8: on CUDA both must be multiples of 8");
    expect_error(l->plan_cached(GPT2_BF16, 1, 1, 1, 8, 1, 257, &bytes), "C 8, Vp 257: on CUDA both");
    plan(GPT2_F32, 2, 2, 8, 1, 8, 4);
    Tensor *x = tensor(GPT2_F32, 64, 1), *w = tensor(GPT2_F32, 64, 1);
    float *p = x->mem[CUDA], *v = w->mem[CUDA];
    expect_error(l->encoder_backward(GPT2_F32, p, p, p, inp + 4, 2, 2, 8),
                 "token 8 at 3, the vocabulary has 8");
    expect_error(l->encoder_forward(GPT2_F32, p, inp, p, p, 1, 1 << 12, 8), "planned for 16");
    expect_error(cuda_bias_backward(GPT2_F32, v, v, 1, 33), "33 columns, but the layers were planned for 32");
    l->free();
    expect_error(l->encoder_forward(GPT2_F32, p, inp, p, p, 2, 2, 8), "planned for 0");
    ok(l->plan(GPT2_F32, 2, 2, 8, 1, 8, 4, &bytes));
    expect_error(l->encoder_forward(GPT2_F32, p, inp, p, p, 2, 2, 8), "use_scratch");
    expect_error(cuda_bias_backward(GPT2_F32, p, p, 2, 8), "use_scratch");
    expect_error(layers_cuda_options(0, 3, NULL), "gelu 3");
    expect_error(l->download(NULL, p, 4), "cudaMemcpy");
    release();
}

// --------
// products and attention

static void check_matmul(gpt2_dtype dt, int gelu, int BT, int C, int OC) {
    ok(layers_cuda_options(0, gelu, "cublaslt"));
    plan(dt, BT, 1, C, 1, 8, 1);
    size_t in = (size_t)BT * C, on_out = (size_t)BT * OC, weights = (size_t)OC * C;
    Tensor *out = tensor(dt, on_out, 1), *plain = tensor(dt, on_out, 1), *pre = tensor(dt, on_out, 1),
           *act = tensor(dt, on_out, 1);
    Tensor *inp = tensor(dt, in, 1), *w = tensor(dt, weights, 1), *b = tensor(dt, OC, 1),
           *dout = tensor(dt, on_out, 1);
    Tensor *dinp = tensor(dt, in, 1), *dinp2 = tensor(dt, in, 1), *dw = tensor(dt, weights, 1),
           *dw2 = tensor(dt, weights, 1);
    Tensor *db = tensor(dt, OC, 1), *db2 = tensor(dt, OC, 1);
    Tensor *inp_db = tensor(dt, C, 1), *inp_db2 = tensor(dt, C, 1);
    Tensor *inp_pre = tensor(dt, in, 2);
    EACH_RUN {
        const Layers *l = start(run);
        gpt2_dtype t = type(dt, run);
        ok(l->matmul_forward(t, AT(out), AT(inp), AT(w), AT(b), BT, C, OC));
        ok(l->matmul_forward(t, AT(plain), AT(inp), AT(w), NULL, BT, C, OC));
        ok(l->matmul_gelu_forward(t, AT(act), AT(pre), AT(inp), AT(w), AT(b), BT, C, OC));
        ok(l->matmul_backward(t, AT(dinp), NULL, AT(dw), AT(db), AT(dout), AT(inp), AT(w), NULL, BT, C, OC,
                              0));
        ok(l->matmul_backward(t, AT(dinp2), AT(inp_db), AT(dw), NULL, AT(dout), AT(inp), AT(w), AT(inp_pre),
                              BT, C, OC, 0));
        ok(l->matmul_backward(t, AT(dinp2), AT(inp_db2), AT(dw2), AT(db2), AT(dout), AT(inp), AT(w),
                              AT(inp_pre), BT, C, OC, 1));
    }
    // For values that are rounded twice in a row.
    double twice = dt == GPT2_F32 ? SLACK : dt == GPT2_BF16 ? 8e-3 : 1e-3;
    check("out", out, SLACK);
    check("out without bias", plain, SLACK);
    check("pre", pre, SLACK);
    check("gelu of the product", act, twice);
    check("dinp", dinp, SLACK);
    check("dinp times gelu's slope", dinp2, twice);
    check("dweight", dw, SLACK);
    check("dweight added", dw2, twice);
    check("dbias", db, SLACK);
    check("dbias added", db2, twice);
    check("dinp's column sums", inp_db, 2 * twice);  // a library may sum values before it rounds them
    check("dinp's column sums added", inp_db2, 2 * twice);
    release();
}

static void matmul(void **state) {
    (void)state;
    const struct {
        int BT, C, OC;
    } shapes[] = { { 1, 8, 8 }, { 7, 24, 40 }, { 33, 40, 120 }, { 12, 64, 256 }, { 130, 96, 32 } };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int d = 0; d < 3; d++) {
            for (int gelu = 0; gelu < 3; gelu++)
                check_matmul(dtypes[d], gelu, shapes[s].BT, shapes[s].C, shapes[s].OC);
        }
    }
    ok(layers_cuda_options(0, 0, NULL));
}

#ifdef CUDA_STAND_IN
static void set(const char *name, const char *value) {
    setenv(name, value, 1);
    cuda_stand_in_settings();
}

// Kernels and products queued by a backward product with pre and both bias gradients.
static long launches_of_backward(gpt2_dtype dt, int gelu, int C, int OC, int fused) {
    enum { BT = 24 };
    ok(layers_cuda_options(0, gelu, "cublaslt"));
    plan(dt, BT, 1, C, 1, 8, 1);
    size_t in = (size_t)BT * C, out = (size_t)BT * OC, weights = (size_t)OC * C;
    void *inp = tensor(dt, in, 1)->mem[CUDA], *dout = tensor(dt, out, 1)->mem[CUDA];
    void *w = tensor(dt, weights, 1)->mem[CUDA], *dw = tensor(dt, weights, 1)->mem[CUDA];
    void *dinp = tensor(dt, in, 1)->mem[CUDA], *inp_db = tensor(dt, C, 1)->mem[CUDA];
    void *db = tensor(dt, OC, 1)->mem[CUDA];
    long before, after;
    assert_int_equal(layers_cuda()->dinp_bias_fused(dt, BT, C, OC), fused);
    cuda_stand_in_counts(&before, NULL, NULL);
    ok(layers_cuda()->matmul_backward(dt, dinp, inp_db, dw, db, dout, inp, w, inp, BT, C, OC, 0));
    cuda_stand_in_counts(&after, NULL, NULL);
    release();
    return after - before;
}

// returns forward's result, which the caller frees
static void *product_bits(gpt2_dtype dt, int BT, int C, int OC) {
    random_state = 7;
    Tensor *out = tensor(dt, (size_t)BT * OC, 1), *inp = tensor(dt, (size_t)BT * C, 1);
    Tensor *w = tensor(dt, (size_t)OC * C, 1), *b = tensor(dt, OC, 1);
    ok(layers_cuda()->matmul_forward(dt, out->mem[CUDA], inp->mem[CUDA], w->mem[CUDA], b->mem[CUDA], BT, C,
                                     OC));
    void *bits = downloaded(out, CUDA);
    release();
    return bits;
}
#endif

// Bias gradients come with the products where cuBLASLt has the epilogues; a sum of columns is two kernels.
static void epilogues(void **state) {
    (void)state;
#ifdef CUDA_STAND_IN
    enum { PRODUCTS = 2, GELU = 1, SUMS = 2 };
    assert_int_equal(launches_of_backward(GPT2_BF16, 2, 64, 32, 1), PRODUCTS);
    assert_int_equal(launches_of_backward(GPT2_BF16, 0, 64, 32, 0), PRODUCTS + GELU + SUMS);
    assert_int_equal(launches_of_backward(GPT2_F32, 2, 64, 32, 1), PRODUCTS);
    assert_int_equal(launches_of_backward(GPT2_F16, 1, 64, 32, 0), PRODUCTS + GELU + SUMS);
    ok(layers_cuda_options(0, 0, NULL));
#else
    print_message("skipped: only tests/cuda/ counts launches\n");
    skip();
#endif
}

// If the library refuses an algorithm that its heuristic names, plan tries the next one.
static void refused_algorithms(void **state) {
    (void)state;
#ifdef CUDA_STAND_IN
    enum { BT = 40, C = 80, OC = 80 };
    size_t bytes, n = BT * OC * sizeof(float);
    ok(layers_cuda_options(0, 2, "cublaslt"));
    plan(GPT2_F32, BT, 1, C, 1, 8, 1);
    void *first = product_bits(GPT2_F32, BT, C, OC);
    set("CUDA_STAND_IN_REFUSED", "1");
    plan(GPT2_F32, BT, 1, C, 1, 8, 1);
    set("CUDA_STAND_IN_REFUSED", "0");  // this comes too late: plan has chosen
    void *second = product_bits(GPT2_F32, BT, C, OC);
    assert_memory_not_equal(first, second, n);  // the second algorithm adds up in another order
    check_matmul(GPT2_F32, 2, 7, 8, 16);
    set("CUDA_STAND_IN_FAIL", "cublasLtMatmul:1");
    plan(GPT2_F32, BT, 1, C, 1, 8, 1);
    set("CUDA_STAND_IN_FAIL", "");
    set("CUDA_STAND_IN_REFUSED", "8");
    assert_int_equal(layers_cuda()->plan(GPT2_F32, BT, 1, C, 1, 8, 1, &bytes), -1);
    if (!strstr(gpt2_last_error(), "no algorithm, for a product of m ")) fail_msg("%s", gpt2_last_error());
    set("CUDA_STAND_IN_REFUSED", "0");
    plan(GPT2_F32, BT, 1, C, 1, 8, 1);
    // an algorithm that has run is not replaced, because the bits would change silently
    set("CUDA_STAND_IN_FAIL", "cublasLtMatmul:1");
    Tensor *x = tensor(GPT2_F32, BT * OC, 1);
    assert_int_equal(layers_cuda()->matmul_forward(GPT2_F32, x->mem[CUDA], x->mem[CUDA], x->mem[CUDA],
                                                   x->mem[CUDA], BT, C, OC),
                     -1);
    if (!strstr(gpt2_last_error(), "EXECUTION_FAILED")) fail_msg("%s", gpt2_last_error());
    set("CUDA_STAND_IN_FAIL", "");
    ok(layers_cuda_options(0, 0, NULL));
    free(first);
    free(second);
    release();
#else
    print_message("skipped: only tests/cuda/ refuses algorithms\n");
    skip();
#endif
}

// --------
// the tuning file

#ifdef CUDA_STAND_IN
enum { TB = 2, TT = 8, TC = 16, TV = 32 };

static void plan_tuned(const char *text, int may_time) {
    ok(layers_cuda_tune("tuned.txt", text, may_time));
    plan(GPT2_F32, TB, TT, TC, 2, TV, TB * TT);
}

static char *tuned(const char *fastest) {
    set("CUDA_STAND_IN_FASTEST", fastest);
    plan_tuned("", 1);
    char *text = layers_cuda_tuned();
    assert_non_null(text);
    return text;
}

static int count(const char *text, const char *word) {
    int n = 0;
    while ((text = strstr(text, word))) {
        n++;
        text += strlen(word);
    }
    return n;
}

// `text` with the 3 that an algorithm begins with replaced by `to`, in line 2, a product with a bias; with
// `mend` the check sum fits
static char *changed(const char *text, const char *to, int mend) {
    char *copy = strdup(text), *line = strchr(copy, '\n') + 1;
    char *at = strstr(line, " epilogue 4 = 03");
    char *check = strstr(line, ", check ");
    assert_true(at && check && at < check);
    memcpy(at + strlen(" epilogue 4 = "), to, 2);
    char digits[16];
    snprintf(digits, sizeof digits, "%08x", (unsigned)XXH32(line, (size_t)(check - line), 0));
    if (mend) memcpy(check + strlen(", check "), digits, 8);
    return copy;
}

// `text` without the first line that has `word`; the caller frees it
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
    if (rc == 0) rc = layers_cuda()->plan(GPT2_F32, TB, TT, TC, 2, TV, TB * TT, &bytes);
    expect_error(rc, part);
    ok(layers_cuda_tune(NULL, NULL, 0));
}
#endif

static void tuning(void **state) {
    (void)state;
#ifdef CUDA_STAND_IN
    size_t n = TB * TT * 3 * TC * sizeof(float);
    ok(layers_cuda_options(0, 2, "cublaslt"));
    ok(layers_cuda_tune(NULL, NULL, 0));
    plan(GPT2_F32, TB, TT, TC, 2, TV, TB * TT);
    void *untuned = product_bits(GPT2_F32, TB * TT, TC, 3 * TC);

    char *text = tuned("3");  // each product's algorithm 3, with its epilogue
    int lines = count(text, "\"CUDA stand-in (9.0, ");
    // A bias comes only with the product, so GELU's with a bias is no faster apart.
    int biases = count(text, " epilogue 4 = ") + count(text, " epilogue 164 = ");
    int split = lines - count(text, " epilogue 0 = ") - biases;
    assert_true(lines > 20 && biases > 3 && split > 4);
    assert_int_equal(count(text, " = 03000000"), lines);
    double ms = atof(strstr(text, " = 03") + strlen(" = ") + 128);
    assert_true(ms >= 10 && ms < 20);
    void *bits = product_bits(GPT2_F32, TB * TT, TC, 3 * TC);
    assert_memory_not_equal(bits, untuned, n);

    // with the file nothing is timed and no heuristic is called, and the choice stays, whichever algorithm is
    // the fastest now
    set("CUDA_STAND_IN_FASTEST", "4");
    long asked = cuda_stand_in_heuristics();
    for (int may_time = 0; may_time < 2; may_time++) {
        plan_tuned(text, may_time);
        char *again = layers_cuda_tuned();
        assert_string_equal(again, text);
        free(again);
        void *same = product_bits(GPT2_F32, TB * TT, TC, 3 * TC);
        assert_memory_equal(bits, same, n);
        free(same);
    }
    assert_int_equal(cuda_stand_in_heuristics(), asked);

    // epilogues that are slower than separate kernels, and faster ones
    char *apart = tuned("2:30");
    assert_int_equal(count(apart, " = apart "), split);
    assert_int_equal(count(apart, " = 02000000"), lines - split);
    plan_tuned(apart, 0);
    assert_int_equal(layers_cuda()->dinp_bias_fused(GPT2_F32, TB * TT, 4 * TC, TC), 0);
    ok(layers_cuda_tune("tuned.txt", apart, 1));  // this times other logits
    check_matmul(GPT2_F32, 2, TB * TT, TC, 4 * TC);

    // a product without its epilogue, here DGELU, is timed if its line is missing
    char *less = without_line(apart, " epilogue 192 = ");
    assert_int_equal(count(less, " epilogue 192 = "), 0);
    plan_tuned(less, 1);
    free(less);
    less = layers_cuda_tuned();
    assert_int_equal(count(less, " epilogue 192 = "), 1);
    free(less);

    // an algorithm in the file that passes the library's check and then does not run
    set("CUDA_STAND_IN_REFUSED", "4");
    expect_tune_error(text, 0,
                      "tuned.txt, line 2: cuBLASLt refuses this algorithm (cuBLASLt: "
                      "CUBLAS_STATUS_NOT_SUPPORTED");
    set("CUDA_STAND_IN_REFUSED", "0");

    // a candidate that is refused is not the fastest
    set("CUDA_STAND_IN_REFUSED", "1");
    char *others = tuned("0");
    set("CUDA_STAND_IN_REFUSED", "0");
    assert_int_equal(count(others, " = 01000000"), lines);

    // another version of the library has lines of its own; they are added, or missing
    set("CUDA_STAND_IN_CUBLASLT", "130200");
    expect_tune_error(text, 0, "rank 0 has not timed");
    set("CUDA_STAND_IN_FASTEST", "5");
    plan_tuned(text, 1);
    char *both = layers_cuda_tuned();
    assert_true(strncmp(both, text, strlen(text)) == 0 && count(both, " cuBLASLt 130200 ") == lines);
    unsetenv("CUDA_STAND_IN_CUBLASLT");

    // damaged files
    char *spoilt[] = { changed(text, "04", 0), changed(text, "63", 1), changed(text, "0g", 1), strdup(text),
                       strdup("model: gpt2\n") };
    spoilt[3][strlen(text) - 3] = 0;
    char cut[64];
    snprintf(cut, sizeof cut, "tuned.txt, line %d: damaged: delete the line", lines + 1);
    expect_tune_error(spoilt[0], 1, "tuned.txt, line 2: damaged: delete the line");
    FILE *usual = stderr;
    stderr = fopen("/dev/null", "w");  // the stand-in says why it refuses
    expect_tune_error(
        spoilt[1], 1,
        "tuned.txt, line 2: cuBLASLt refuses this algorithm (CUBLAS_STATUS_INVALID_VALUE): delete the line");
    fclose(stderr);
    stderr = usual;
    expect_tune_error(spoilt[2], 1, "tuned.txt, line 2: damaged");
    expect_tune_error(spoilt[3], 1, cut);
    expect_tune_error(spoilt[4], 1, "tuned.txt, line 1: damaged");
    for (int i = 0; i < 5; i++) free(spoilt[i]);
    unsetenv("CUDA_STAND_IN_FASTEST");
    char *texts[] = { untuned, bits, text, apart, others, both };
    for (int i = 0; i < 6; i++) free(texts[i]);
    ok(layers_cuda_options(0, 0, NULL));
#else
    print_message("skipped: only tests/cuda/ knows which algorithm is the fastest\n");
    skip();
#endif
}

static void check_attention(gpt2_dtype dt, int B, int T, int C, int NH) {
    plan(dt, B, T, C, NH, 8, 1);
    size_t n = (size_t)B * T * C;
    Tensor *qkv = tensor(dt, 3 * n, 1), *out = tensor(dt, n, 1),
           *lse = tensor(GPT2_F32, (size_t)B * NH * T, 1);
    Tensor *dout = tensor(dt, n, 1), *dqkv = tensor(dt, 3 * n, 1);
    EACH_RUN {
        ok(start(run)->attention_forward(type(dt, run), AT(out), AT(lse), AT(qkv), B, T, C, NH));
        ok(start(run)->attention_backward(type(dt, run), AT(dqkv), AT(dout), AT(qkv), AT(out), AT(lse), B, T,
                                          C, NH));
    }
    // Softmax and its gradient are rounded as well.
    double slack = dt == GPT2_F32 ? SLACK : dt == GPT2_BF16 ? 1e-2 : 2e-3;
    check("attention's out", out, slack);
    check("attention's lse", lse, slack);
    check("dqkv", dqkv, slack);
    release();
}

static void attention(void **state) {
    (void)state;
    const struct {
        int B, T, C, NH;
    } shapes[] = { { 2, 1, 64, 4 }, { 3, 7, 24, 4 }, { 1, 64, 96, 3 }, { 1, 130, 64, 4 }, { 2, 33, 64, 1 } };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int d = 0; d < 3; d++)
            check_attention(dtypes[d], shapes[s].B, shapes[s].T, shapes[s].C, shapes[s].NH);
    }
}

// Rows of a cache: some tokens of each, then one more. The cache is a tensor whose order is the device's own.
static void check_cached_attention(gpt2_dtype dt, int T, int C, int NH) {
    const int half = T / 2 + 1, a = layers_cache_positions(half + 1), b = LAYERS_CACHE_STEP;
    const int c = layers_cache_positions(T), positions = a + b + c;
    const layers_span begun[] = { { 1, 0, 1, 0, a, b },
                                  { 0, 0, half, 1, 0, a },
                                  { 2, 0, T, 1 + half, a + b, c } };
    const layers_span one_more[] = { { 0, half, T > half, 0, 0, a }, { 1, 1, T > 1, T > half, a, b } };
    const int n_more = (T > half) + (T > 1), n = 1 + half + T;
    free_scratch();
    size_t bytes;
    ok(layers_cpu.plan_cached(type(dt, CPU), n, 3, T, C, NH, 8, &bytes));
    scratch[0] = aligned_alloc(256, (bytes + 255) / 256 * 256);
    ok(layers_cpu.use_scratch(scratch[0]));
    ok(layers_cuda()->plan_cached(dt, n, 3, T, C, NH, 8, &scratch_bytes));
    cuda(cudaMalloc((void **)&scratch[1], scratch_bytes));
    ok(layers_cuda()->use_scratch(scratch[1]));
    Tensor *cache = tensor(dt, (size_t)2 * positions * C, NAN);  // what no token has been put into
    Tensor *qkv = tensor(dt, (size_t)n * 3 * C, 1), *out = tensor(dt, (size_t)n * C, 1);
    Tensor *more = tensor(dt, (size_t)2 * 3 * C, 1), *out_more = tensor(dt, (size_t)2 * C, 1);
    EACH_RUN {
        ok(start(run)->attention_cached(type(dt, run), AT(out), AT(cache), AT(qkv), begun, 3, C, NH));
        if (!n_more) continue;
        ok(start(run)->attention_cached(type(dt, run), AT(out_more), AT(cache), AT(more),
                                        one_more + (T == half), n_more, C, NH));
    }
    double slack = dt == GPT2_F32 ? SLACK : dt == GPT2_BF16 ? 1e-2 : 2e-3;
    check("out of the cache", out, slack);
    check("out of one token more", out_more, slack);  // of what was not written, the same values
    release();
}

static void cached_attention(void **state) {
    (void)state;
    const struct {
        int T, C, NH;
    } shapes[] = { { 1, 64, 4 }, { 7, 24, 4 }, { 64, 96, 3 }, { 130, 64, 1 }, { 33, 256, 1 } };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int d = 0; d < 3; d++) check_cached_attention(dtypes[d], shapes[s].T, shapes[s].C, shapes[s].NH);
    }
    layers_span one = { .n = 1, .room = 32 };
    assert_int_equal(layers_cuda()->attention_cached(GPT2_F32, NULL, NULL, NULL, &one, 1, 514, 2), -1);
    assert_string_equal(gpt2_last_error(), "attention over a cache: heads of 257 channels, at most 256");
}

// The batch in groups of as many rows as the limit allows gives the bits of the whole batch at once.
static void attention_limit(void **state) {
    (void)state;
    enum { B = 6, T = 24, C = 64, NH = 8, N = B * T * C };
    const size_t row = 2 * (size_t)NH * T * T * (sizeof(float) + 2);
    const struct {
        size_t limit;
        int rows;
    } cases[] = { { 0, B }, { row - 1, 1 }, { row, 1 }, { 2 * row, 2 }, { 4 * row, 4 }, { 100 * row, B } };
    static uint16_t first[3 * N], now[3 * N];
    ok(layers_cuda_options(0, 0, "cublaslt"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        layers_cuda_attention_limit(cases[i].limit);
        plan(GPT2_BF16, B, T, C, NH, 8, 1);
        layers_attention_backward b = layers_cuda_attention_backward();
        assert_int_equal(b.rows, cases[i].rows);
        assert_int_equal(b.bytes, cases[i].rows * row);
        assert_int_equal(b.limit, cases[i].limit ? cases[i].limit : (size_t)64 << 20);
        random_state = 1;
        void *qkv = tensor(GPT2_BF16, 3 * N, 1)->mem[CUDA], *out = tensor(GPT2_BF16, N, 1)->mem[CUDA];
        void *dout = tensor(GPT2_BF16, N, 1)->mem[CUDA], *dqkv = tensor(GPT2_BF16, 3 * N, 1)->mem[CUDA];
        float *lse = tensor(GPT2_F32, B * NH * T, 1)->mem[CUDA];
        const Layers *l = layers_cuda();
        ok(l->attention_forward(GPT2_BF16, out, lse, qkv, B, T, C, NH));
        ok(l->attention_backward(GPT2_BF16, dqkv, dout, qkv, out, lse, B, T, C, NH));
        ok(l->download(now, dqkv, sizeof now));
        if (i == 0) memcpy(first, now, sizeof now);
        assert_memory_equal(first, now, sizeof now);
        release();
    }
    layers_cuda_attention_limit(0);
    ok(layers_cuda_options(0, 0, NULL));
}

// How cuDNN's backward chooses its groups. This needs no library.
static void fewer_rows(void **state) {
    (void)state;
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

static void attention_options(void **state) {
    (void)state;
    size_t bytes;
    expect_error(layers_cuda_options(0, 0, "fast"), "cudnn, cudnn-fast or cublaslt");
    ok(layers_cuda_options(0, 0, NULL));
    ok(layers_cuda()->plan(GPT2_F32, 1, 8, 16, 2, 8, 8, &bytes));  // auto: cuDNN has no fp32
    assert_string_equal(layers_cuda_attention(), "cuBLASLt");
    static const char *const words[] = { "cudnn", "cudnn-fast" };
    for (int i = 0; i < 2; i++) {
        ok(layers_cuda_options(0, 0, words[i]));
        expect_error(layers_cuda()->plan(GPT2_F32, 1, 8, 16, 2, 8, 8, &bytes),
                     "cublaslt");  // and nothing else
    }
    ok(layers_cuda_options(0, 0, NULL));
}

// --------

// a failed test leaves nothing behind for the next one
static int clean(void **state) {
    (void)state;
    release();
#ifdef CUDA_STAND_IN
    unsetenv("CUDA_STAND_IN_FASTEST");
    unsetenv("CUDA_STAND_IN_CUBLASLT");
    unsetenv("CUDA_STAND_IN_REFUSED");
    set("CUDA_STAND_IN_FAIL", "");
#endif
    return layers_cuda_tune(NULL, NULL, 0) || layers_cuda_options(0, 0, NULL);
}

static char no_device[256];
static void skipped(void **state) {
    (void)state;
    print_message("skipped: no usable CUDA device: %s\n", no_device);
    skip();
}

int main(void) {
    setenv("CUDA_STAND_IN", "lazy",
           0);  // on the CPU, work runs as late as allowed, so that a buffer that is reused too early gives
                // wrong results
    omp_set_num_threads(1);  // small shapes
    int devices = 0;
    cudaError_t rc = cudaGetDeviceCount(&devices);
    if (rc != cudaSuccess || devices == 0) {
        snprintf(no_device, sizeof no_device, "%s",
                 rc != cudaSuccess ? cudaGetErrorString(rc) : "there is none");
        const struct CMUnitTest none[] = { cmocka_unit_test(skipped) };
        return cmocka_run_group_tests(none, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(rows, clean),
        cmocka_unit_test_teardown(encoder, clean),
        cmocka_unit_test_teardown(crossentropy, clean),
        cmocka_unit_test_teardown(sums, clean),
        cmocka_unit_test_teardown(staging, clean),
        cmocka_unit_test_teardown(asynchronous, clean),
        cmocka_unit_test_teardown(errors, clean),
        cmocka_unit_test_teardown(matmul, clean),
        cmocka_unit_test_teardown(epilogues, clean),
        cmocka_unit_test_teardown(refused_algorithms, clean),
        cmocka_unit_test_teardown(tuning, clean),
        cmocka_unit_test_teardown(attention, clean),
        cmocka_unit_test_teardown(cached_attention, clean),
        cmocka_unit_test_teardown(attention_limit, clean),
        cmocka_unit_test_teardown(attention_options, clean),
        cmocka_unit_test(fewer_rows),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free_scratch();
    layers_cuda()->free();
    layers_cpu.free();
    return failed;
}
#endif
