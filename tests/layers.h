// Compares each layer, forward and backward, with a naive version in double precision. test_layers.c runs
// these cases on the CPU, test_layers_cuda.c on a CUDA device. Each layer runs twice on the same values,
// first with scratch memory full of NaN, then with zeros, and must give the same bits. Gradients start with
// random values, which shows whether a layer adds to them or overwrites them.
#ifndef TESTS_LAYERS_H
#define TESTS_LAYERS_H
#include <math.h>
#include <omp.h>
#include "unit.h"
#include "../gpt2/layers.h"
#include "../llmc_zero/device/numbers.h"

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))
enum { RUNS = 2, MAX_TENSORS = 64, MAX_BLOCKS = 512 };

static const Layers *layers;  // the device under test
static gpt2_dtype dtype;      // the dtype of the running case
static void *scratch;
static size_t scratch_bytes;

// Each program implements these for its device. device_free checks that nothing was written out of bounds.
static void *device_take(size_t bytes);
static void device_free(void *p, size_t bytes);
static void device_put(void *to, const void *from, size_t bytes);
static void device_fill(void *to, int byte, size_t bytes);
// Restores the device's defaults after a test.
static void device_reset(void);
// Plans for layers without matmuls, with rows of C elements or of Vp logits.
static void plan_rows(int rows, int C, int Vp);

static int on_cpu(void) { return layers == &layers_cpu; }

// -------- tensors

typedef struct {
    gpt2_dtype dt;
    size_t n;
    double *x;        // the values; a naive layer writes the expected results here
    void *mem[RUNS];  // the values on the device, for each run
} Tensor;

static Tensor tensors[MAX_TENSORS];
static int num_tensors;
static struct {
    void *p;
    size_t bytes;
} blocks[MAX_BLOCKS];
static int num_blocks;

static void *room(size_t bytes) {
    assert_true(num_blocks < MAX_BLOCKS);
    void *p = device_take(bytes);
    blocks[num_blocks].p = p;
    blocks[num_blocks++].bytes = bytes;
    return p;
}

static void release(void) {
    while (num_tensors) free(tensors[--num_tensors].x);
    while (num_blocks) {
        num_blocks--;
        device_free(blocks[num_blocks].p, blocks[num_blocks].bytes);
    }
}

static void put(gpt2_dtype dt, void *p, size_t i, double x) {
    if (dt == GPT2_F32)
        ((float *)p)[i] = (float)x;
    else
        ((uint16_t *)p)[i] = dt == GPT2_BF16 ? bf16_round((float)x) : fp16_round((float)x);
}

// Rounds t->x to t's dtype and copies it to the device.
static void upload(Tensor *t) {
    void *bits = malloc(t->n * 4);
    assert_non_null(bits);
    for (size_t i = 0; i < t->n; i++) {
        put(t->dt, bits, i, t->x[i]);
        t->x[i] = gpt2_value(t->dt, bits, i);
    }
    for (int run = 0; run < RUNS; run++) device_put(t->mem[run], bits, t->n * gpt2_dtype_size(t->dt));
    free(bits);
}

static Tensor *tensor_of(gpt2_dtype dt, size_t n, double scale) {
    assert_true(num_tensors < MAX_TENSORS);
    Tensor *t = &tensors[num_tensors++];
    *t = (Tensor){ .dt = dt, .n = n, .x = malloc(n * sizeof(double)) };
    assert_non_null(t->x);
    for (size_t i = 0; i < n; i++) t->x[i] = scale * uniform();
    for (int run = 0; run < RUNS; run++) t->mem[run] = room(n * gpt2_dtype_size(dt));
    upload(t);
    return t;
}
static Tensor *tensor(size_t n, double scale) { return tensor_of(dtype, n, scale); }
static Tensor *floats(size_t n) { return tensor_of(GPT2_F32, n, 1); }

static Tensor *copy(const Tensor *from) {
    Tensor *t = tensor_of(from->dt, from->n, 0);
    memcpy(t->x, from->x, t->n * sizeof(double));
    upload(t);
    return t;
}

static void *download(const Tensor *t, int run) {
    size_t bytes = t->n * gpt2_dtype_size(t->dt);
    void *host = malloc(bytes);
    assert_non_null(host);
    must(layers->download(host, t->mem[run], bytes));
    return host;
}

static const char *name_of(gpt2_dtype dt) {
    return dt == GPT2_F32 ? "fp32" : dt == GPT2_BF16 ? "bf16" : "fp16";
}

static void check_same(const char *what, const Tensor *a, int a_run, const Tensor *b, int b_run) {
    void *x = download(a, a_run), *y = download(b, b_run);
    if (memcmp(x, y, a->n * gpt2_dtype_size(a->dt)))
        fail_msg("%s of %zu (%s): the bits differ", what, a->n, name_of(a->dt));
    free(x);
    free(y);
}
static void same(const char *what, const Tensor *a, const Tensor *b) { check_same(what, a, 0, b, 0); }

// Compares the device's values with t->x, and the two runs bit for bit. Allows an error of one rounding to
// t's dtype, plus slack relative to the largest value.
static void check(const char *what, const Tensor *t, double slack) {
    static const double unit[] = { 0, 1.0 / 250, 1.0 / 2000 };
    double top = 0;
    void *got = download(t, 0);
    for (size_t i = 0; i < t->n; i++) top = fmax(top, fabs(t->x[i]));
    for (size_t i = 0; i < t->n; i++) {
        double x = gpt2_value(t->dt, got, i), want = t->x[i];
        double allowed = unit[t->dt] * fabs(want) + slack * top + (t->dt == GPT2_F16 ? 6e-8 : 1e-12);
        if (!(fabs(x - want) <= allowed) && !(isnan(x) && isnan(want)))
            fail_msg("%s[%zu] of %zu (%s, %d threads): %.9g, expected %.9g", what, i, t->n, name_of(t->dt),
                     omp_get_max_threads(), x, want);
    }
    free(got);
    check_same(what, t, 0, t, 1);
}

static void check_finite(const Tensor *t) {
    void *got = download(t, 0);
    for (size_t i = 0; i < t->n; i++) assert_true(isfinite(gpt2_value(t->dt, got, i)));
    free(got);
}

// Slack for fp32 sums in a different order, and for a different implementation of e^x.
#define SLACK 1e-5
// Slack for values that are rounded twice, and for sums of such values.
static double twice(void) { return dtype == GPT2_F32 ? SLACK : dtype == GPT2_BF16 ? 1e-2 : 2e-3; }

static int begin(int run) {
    if (run < RUNS) device_fill(scratch, run ? 0 : 0xff, scratch_bytes);
    return run;
}
#define EACH_RUN for (int run = begin(0); run < RUNS; run = begin(run + 1))
#define AT(t) ((t)->mem[run])
#define LAYER(call) must(layers->call)

static void use_scratch(size_t bytes) {
    if (scratch) device_free(scratch, scratch_bytes);
    scratch = device_take(bytes);
    scratch_bytes = bytes;
    LAYER(use_scratch(scratch));
}

static void plan(int B, int T, int C, int NH, int Vp, int chunk) {
    size_t bytes;
    LAYER(plan(dtype, B, T, C, NH, Vp, chunk, &bytes));
    use_scratch(bytes);
}

// Runs the cases in every dtype that the device supports, with 1 to `threads` threads.
static void on_all(int threads, void (*cases)(void)) {
    for (int n = 1; n <= threads; n++) {
        omp_set_num_threads(n);
        for (dtype = GPT2_F32; dtype <= GPT2_F16; dtype++) {
            if (layers->has_dtype(dtype))
                cases();
            else if (dtype == GPT2_BF16)
                print_message("bf16 not tested: this CPU has no bf16 matmul\n");
            release();
        }
    }
}

// Defines a test that runs the cases through on_all.
#define TEST_ON_ALL(threads, cases) \
    static void test_##cases(void **state) { on_all(threads, cases); }

// Cleans up after a test, so that a failed one does not affect the next.
static int clean(void **state) {
    device_reset();
    release();
    return 0;
}
#define TEST(f) cmocka_unit_test_teardown(f, clean)

// -------- memory

static void clear_case(size_t bytes) {
    unsigned char *x = room(bytes + 1), *host = malloc(bytes + 1);
    device_fill(x, 0xA5, bytes + 1);
    LAYER(clear(x, bytes));
    LAYER(download(host, x, bytes + 1));
    for (size_t i = 0; i < bytes; i++) assert_int_equal(host[i], 0);
    assert_int_equal(host[bytes], 0xA5);
    free(host);
    release();
}

// The CPU adds in the order of the elements, so its sum must match bit for bit.
static void sum_case(int n) {
    const double error = on_cpu() ? 0 : 1e-12 * n;
    double expected = 0, first[RUNS], second[RUNS];
    plan_rows(1, 8, 8);
    Tensor *x = floats(n), *total = floats(2);  // two floats hold one double
    if (on_cpu())
        for (int i = 0; i < n; i += 7) x->x[i] *= 1e10;
    upload(x);
    for (int i = 0; i < n; i++) expected += x->x[i];
    EACH_RUN {
        device_fill(AT(total), 0xff, sizeof(double));  // NaN, which the first sum must ignore
        LAYER(sum(AT(total), AT(x), n, 0));
        LAYER(download(&first[run], AT(total), sizeof(double)));
        LAYER(sum(AT(total), AT(x), n, 1));
        LAYER(download(&second[run], AT(total), sizeof(double)));
    }
    assert_true(first[0] == first[1] && second[0] == second[1]);
    assert_true(fabs(first[0] - expected) <= error && fabs(second[0] - 2 * expected) <= error);
    x->x[n / 2] = NAN;
    upload(x);
    LAYER(sum(total->mem[0], x->mem[0], n, 1));
    LAYER(download(first, total->mem[0], sizeof(double)));
    assert_true(isnan(first[0]));
    release();
}

static void memory_cases(void) {
    static const int sizes[] = { 1, 67, 65536, 65537, 200003 };
    for (int i = 0; i < COUNT(sizes); i++) {
        clear_case(sizes[i]);
        sum_case(sizes[i]);
    }
}

// -------- encoder

// Returns token i. Kind 0: all differ if V is large enough; 1: all are the same; 2: few frequent, many rare.
static int token(int kind, int i, int V) {
    double u = (uniform() + 1) / 2;
    return kind == 0 ? i % V : kind == 1 ? V - 1 : (int)(V * u * u * u * u);
}

static void naive_encoder(double *out, double *dwte, double *dwpe, const double *wte, const double *wpe,
                          const double *dout, const int *tokens, int BT, int T, int C) {
    for (int i = 0; i < BT * C; i++) {
        size_t te = (size_t)tokens[i / C] * C + i % C, pe = (size_t)(i / C % T) * C + i % C;
        out[i] = wte[te] + wpe[pe];
        dwte[te] += dout[i];
        dwpe[pe] += dout[i];
    }
}

static void encoder(int B, int T, int C, int V, int kind) {
    int tokens[256];
    size_t n = (size_t)B * T * C;
    plan_rows(B * T, C, V);
    Tensor *out = tensor(n, 1), *dout = tensor(n, 1), *wte = tensor((size_t)V * C, 1);
    Tensor *wpe = tensor((size_t)T * C, 1), *dwte = tensor(wte->n, 1), *dwpe = tensor(wpe->n, 1);
    for (int i = 0; i < B * T; i++) tokens[i] = token(kind, i, V);
    naive_encoder(out->x, dwte->x, dwpe->x, wte->x, wpe->x, dout->x, tokens, B * T, T, C);
    EACH_RUN {
        LAYER(encoder_forward(dtype, AT(out), tokens, AT(wte), AT(wpe), B, T, C));
        LAYER(encoder_backward(dtype, AT(dwte), AT(dwpe), AT(dout), tokens, B, T, C));
    }
    check("encoder's out", out, SLACK);
    check("dwte", dwte, SLACK);
    check("dwpe", dwpe, SLACK);
    release();
}

// -------- layernorm

static void naive_layernorm(double *out, double *mean, double *rstd, const double *x, const double *w,
                            const double *b, int BT, int C) {
    for (int r = 0; r < BT; r++, x += C, out += C) {
        double m = 0, v = 0;
        for (int c = 0; c < C; c++) m += x[c] / C;
        for (int c = 0; c < C; c++) v += (x[c] - m) * (x[c] - m) / C;
        mean[r] = m;
        rstd[r] = 1 / sqrt(v + 1e-5);
        for (int c = 0; c < C; c++) out[c] = (x[c] - m) * rstd[r] * w[c] + b[c];
    }
}

static void naive_layernorm_backward(double *dx, double *dw, double *db, const double *dout, const double *x,
                                     const double *w, const double *mean, const double *rstd, int BT, int C) {
    for (int r = 0; r < BT; r++, x += C, dx += C, dout += C) {
        double sum = 0, dot = 0;
        for (int c = 0; c < C; c++) {
            sum += dout[c] * w[c] / C;
            dot += dout[c] * w[c] * (x[c] - mean[r]) * rstd[r] / C;
        }
        for (int c = 0; c < C; c++) {
            double norm = (x[c] - mean[r]) * rstd[r];
            dx[c] += rstd[r] * (dout[c] * w[c] - sum - norm * dot);
            dw[c] += dout[c] * norm;
            db[c] += dout[c];
        }
    }
}

// The fused residual and layernorm must give the same bits as the rounded sum and a separate layernorm.
static void layernorm_forward(int BT, int C) {
    size_t n = (size_t)BT * C;
    plan_rows(BT, C, 8);
    Tensor *inp = tensor(n, 2), *w = tensor(C, 1), *b = tensor(C, 1);
    Tensor *out = tensor(n, 1), *mean = floats(BT), *rstd = floats(BT);
    Tensor *one = tensor(n, 1), *other = tensor(n, 1), *sum = tensor(n, 1), *in_place = copy(one);
    Tensor *outs[3], *means[3], *rstds[3];
    for (int i = 0; i < 3; i++) {
        outs[i] = tensor(n, 1);
        means[i] = floats(BT);
        rstds[i] = floats(BT);
    }
    if (BT > 1) inp->x[C / 2] = NAN;  // makes only the first row NaN
    for (size_t i = 0; i < n; i++) sum->x[i] = one->x[i] + other->x[i];
    upload(inp);
    upload(sum);
    naive_layernorm(out->x, mean->x, rstd->x, inp->x, w->x, b->x, BT, C);
    EACH_RUN {
        LAYER(layernorm_forward(dtype, AT(out), AT(mean), AT(rstd), AT(inp), AT(w), AT(b), BT, C));
        LAYER(
            layernorm_forward(dtype, AT(outs[0]), AT(means[0]), AT(rstds[0]), AT(sum), AT(w), AT(b), BT, C));
        device_fill(AT(sum), 0xff, n * gpt2_dtype_size(dtype));
        LAYER(residual_layernorm_forward(dtype, AT(sum), AT(outs[1]), AT(means[1]), AT(rstds[1]), AT(one),
                                         AT(other), AT(w), AT(b), BT, C));
        LAYER(residual_layernorm_forward(dtype, AT(in_place), AT(outs[2]), AT(means[2]), AT(rstds[2]),
                                         AT(in_place), AT(other), AT(w), AT(b), BT, C));
    }
    check("layernorm's out", out, SLACK);
    check("mean", mean, BT == 1 ? 100 * SLACK : SLACK);  // the mean of a single row may be close to 0
    check("rstd", rstd, SLACK);
    check("residual", sum, 0);
    same("residual in place", in_place, sum);
    for (int i = 1; i < 3; i++) {
        same("layernorm of the sum, fused", outs[i], outs[0]);
        same("its mean", means[i], means[0]);
        same("its rstd", rstds[i], rstds[0]);
    }
    release();
}

// sums (C) must be the column sums of the device's x (BT, C).
static void check_column_sums(Tensor *sums, const Tensor *x, int C) {
    void *rows = download(x, 0);
    memset(sums->x, 0, C * sizeof(double));
    for (size_t i = 0; i < x->n; i++) sums->x[i % C] += gpt2_value(x->dt, rows, i);
    free(rows);
    check("dinp's column sums", sums, SLACK);
}

static void layernorm_backward(int BT, int C) {
    size_t n = (size_t)BT * C;
    plan_rows(BT, C, 8);
    Tensor *dinp = tensor(n, 1), *dw = tensor(C, 1), *db = tensor(C, 1), *dout = tensor(n, 1);
    Tensor *inp = tensor(n, 2), *w = tensor(C, 1), *mean = floats(BT), *rstd = floats(BT);
    Tensor *dinp2 = copy(dinp), *dw2 = copy(dw), *db2 = copy(db), *sums = floats(C);
    Tensor *bias = tensor(C, 1), *bias_sums = floats(C);
    naive_layernorm_backward(dinp->x, dw->x, db->x, dout->x, inp->x, w->x, mean->x, rstd->x, BT, C);
    for (int c = 0; c < C; c++) bias->x[c] += bias_sums->x[c];
    EACH_RUN {
        LAYER(layernorm_backward(dtype, AT(dinp), AT(dw), AT(db), AT(sums), AT(dout), AT(inp), AT(w),
                                 AT(mean), AT(rstd), BT, C));
        LAYER(layernorm_backward(dtype, AT(dinp2), AT(dw2), AT(db2), NULL, AT(dout), AT(inp), AT(w), AT(mean),
                                 AT(rstd), BT, C));
        LAYER(bias_from_sums(dtype, AT(bias), AT(bias_sums), C));
    }
    check("layernorm's dinp", dinp, SLACK);
    check("layernorm's dweight", dw, SLACK);
    check("layernorm's dbias", db, SLACK);
    check_column_sums(sums, dinp, C);
    same("dinp without its sums", dinp, dinp2);
    same("dweight without dinp's sums", dw, dw2);
    same("dbias without dinp's sums", db, db2);
    check("bias from sums", bias, SLACK);
    release();
}

// -------- gelu

static double naive_gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) {
    double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = tanh(u);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static void gelu(size_t n) {
    plan_rows(1, 8, 8);
    Tensor *x = tensor(n, 5), *y = tensor(n, 1), *dy = tensor(n, 1), *dx = tensor(n, 1);
    for (size_t i = 0; i < n; i++) {
        y->x[i] = naive_gelu(x->x[i]);
        dx->x[i] = dy->x[i] * gelu_slope(x->x[i]);
    }
    EACH_RUN {
        LAYER(gelu_forward(dtype, AT(y), AT(x), n));
        LAYER(gelu_backward(dtype, AT(dx), AT(x), AT(dy), n));
        LAYER(gelu_backward(dtype, AT(dy), AT(x), AT(dy), n));
    }
    check("gelu", y, on_cpu() ? SLACK / 10 : SLACK);
    check("gelu's dinp", dx, on_cpu() ? SLACK / 5 : SLACK);
    same("gelu's dinp in place", dx, dy);
    release();
}

static void gelu_extremes(void) {
    static const double xs[] = { 0, 20, -20, 1e4, -1e4, 1e20, -1e20, 1e-30, NAN },
                        slopes[] = { 0.5, 1, 0, 1, 0, 1, 0, 0.5, NAN };
    for (int i = 0; i < COUNT(xs); i++) {
        plan_rows(1, 8, 8);
        if (dtype == GPT2_F16 && fabs(xs[i]) > 65504) continue;
        Tensor *x = tensor(LAYERS_CUDA_ROWS, 0), *y = copy(x), *dy = copy(x), *dx = copy(x);
        for (int k = 0; k < LAYERS_CUDA_ROWS; k++) {
            x->x[k] = xs[i];
            dy->x[k] = 1;
        }
        upload(x);
        upload(dy);
        for (int k = 0; k < LAYERS_CUDA_ROWS; k++) {
            y->x[k] = x->x[k] * slopes[i];
            dx->x[k] = slopes[i];
        }
        EACH_RUN {
            LAYER(gelu_forward(dtype, AT(y), AT(x), LAYERS_CUDA_ROWS));
            LAYER(gelu_backward(dtype, AT(dx), AT(x), AT(dy), LAYERS_CUDA_ROWS));
        }
        check("gelu of an extreme", y, SLACK);
        check("gelu's dinp at an extreme", dx, SLACK);
        release();
    }
}

// -------- softmax and cross-entropy

static void naive_crossentropy(double *losses, double *logits, double dloss, const int *targets, int rows,
                               int V, int Vp) {
    for (int r = 0; r < rows; r++) {
        double *x = logits + (size_t)r * Vp, top = -INFINITY, sum = 0;
        for (int c = 0; c < V; c++) top = fmax(top, x[c]);
        for (int c = 0; c < V; c++) sum += exp(x[c] - top);
        losses[r] = log(sum) + top - x[targets[r]];
        for (int c = 0; dloss && c < Vp; c++)
            x[c] = c < V ? dloss * (exp(x[c] - top) / sum - (c == targets[r])) : 0;
    }
}

// extreme: among the first four rows, one predicts its target with certainty, one predicts a wrong token with
// certainty, one has -inf in most columns, and one contains a NaN.
static void crossentropy(int rows, int V, int Vp, double dloss, int extreme) {
    int targets[16];
    plan_rows(rows, 8, Vp);
    Tensor *logits = tensor((size_t)rows * Vp, 8), *losses = floats(rows);
    for (int r = 0; r < rows; r++) {
        targets[r] = extreme ? 0 : r == 0 ? V - 1 : r == 1 ? 0 : token(0, 7919 * r, V);
        for (int c = V; c < Vp; c++) logits->x[(size_t)r * Vp + c] = NAN;  // padding must be ignored
    }
    if (extreme) {
        logits->x[0] = logits->x[Vp + 4] = 5000;
        for (int c = 1; c < V; c++) logits->x[(size_t)2 * Vp + c] = c % 300 ? -INFINITY : 1.0;
        logits->x[(size_t)3 * Vp + V / 2] = NAN;
    }
    upload(logits);
    naive_crossentropy(losses->x, logits->x, dloss, targets, rows, V, Vp);
    EACH_RUN {
        LAYER(softmax_crossentropy(dtype, AT(losses), AT(logits), (float)dloss, targets, rows, V, Vp));
    }
    check("losses", losses, SLACK);
    check(dloss ? "gradients of logits" : "unchanged logits", logits, dloss ? SLACK : 0);
    release();
}

// -------- matmul

// out (m, n) (+)= a (m, k) @ b (k, n). a_row and b_row are the distances between rows, a_next and b_next
// those between elements of a row.
static void naive_matmul(double *out, const double *a, int a_row, int a_next, const double *b, int b_row,
                         int b_next, int m, int k, int n, int add) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = add ? out[(size_t)i * n + j] : 0;
            for (int l = 0; l < k; l++)
                sum += a[(size_t)i * a_row + (size_t)l * a_next] * b[(size_t)l * b_row + (size_t)j * b_next];
            out[(size_t)i * n + j] = sum;
        }
}

static void add_columns(double *sums, const double *x, int rows, int C, int add) {
    if (!add) memset(sums, 0, C * sizeof(double));
    for (size_t i = 0; i < (size_t)rows * C; i++) sums[i % C] += x[i];
}

static void matmul_forward(int BT, int C, int OC) {
    Tensor *inp = tensor((size_t)BT * C, 1), *w = tensor((size_t)OC * C, 1), *b = tensor(OC, 1);
    Tensor *out = tensor((size_t)BT * OC, 1), *plain = copy(out), *pre = copy(out), *act = copy(out);
    Tensor *unfused = copy(out);
    naive_matmul(plain->x, inp->x, C, 1, w->x, 1, C, BT, C, OC, 0);
    for (size_t i = 0; i < out->n; i++) {
        pre->x[i] = out->x[i] = plain->x[i] + b->x[i % OC];
        act->x[i] = naive_gelu(pre->x[i]);
    }
    EACH_RUN {
        LAYER(matmul_forward(dtype, AT(out), AT(inp), AT(w), AT(b), BT, C, OC));
        LAYER(matmul_forward(dtype, AT(plain), AT(inp), AT(w), NULL, BT, C, OC));
        LAYER(matmul_gelu_forward(dtype, AT(act), AT(pre), AT(inp), AT(w), AT(b), BT, C, OC));
        LAYER(gelu_forward(dtype, AT(unfused), AT(pre), pre->n));
    }
    check("matmul's out", out, SLACK);
    check("out without bias", plain, SLACK);
    check("input of gelu", pre, SLACK);
    check("gelu of the matmul", act, twice());
    if (on_cpu()) same("gelu of the matmul, fused and not", act, unfused);
    release();
}

// Runs with and without GELU's derivative, the bias gradient of the layer below, and accumulation.
static void matmul_backward(int BT, int C, int OC) {
    Tensor *inp = tensor((size_t)BT * C, 1), *w = tensor((size_t)OC * C, 1),
           *dout = tensor((size_t)BT * OC, 1);
    Tensor *dinp = tensor(inp->n, 1), *dw = tensor(w->n, 1), *db = tensor(OC, 4);
    Tensor *pre = tensor(inp->n, 2), *sloped = tensor(inp->n, 1), *below = tensor(C, 1);
    Tensor *added_dw = tensor(w->n, 4), *added_db = tensor(OC, 4), *added_below = tensor(C, 1);
    Tensor *unfused = copy(dinp), *added = copy(dinp);
    naive_matmul(dinp->x, dout->x, OC, 1, w->x, C, 1, BT, OC, C, 0);
    for (size_t i = 0; i < inp->n; i++) added->x[i] = sloped->x[i] = dinp->x[i] * gelu_slope(pre->x[i]);
    naive_matmul(dw->x, dout->x, 1, OC, inp->x, C, 1, OC, BT, C, 0);
    naive_matmul(added_dw->x, dout->x, 1, OC, inp->x, C, 1, OC, BT, C, 1);
    add_columns(db->x, dout->x, BT, OC, 0);
    add_columns(added_db->x, dout->x, BT, OC, 1);
    add_columns(below->x, sloped->x, BT, C, 0);
    add_columns(added_below->x, sloped->x, BT, C, 1);
    EACH_RUN {
        LAYER(matmul_backward(dtype, AT(sloped), AT(below), AT(dw), NULL, AT(dout), AT(inp), AT(w), AT(pre),
                              BT, C, OC, 0));
        LAYER(matmul_backward(dtype, AT(added), AT(added_below), AT(added_dw), AT(added_db), AT(dout),
                              AT(inp), AT(w), AT(pre), BT, C, OC, 1));
        LAYER(matmul_backward(dtype, AT(dinp), NULL, AT(dw), AT(db), AT(dout), AT(inp), AT(w), NULL, BT, C,
                              OC, 0));
        LAYER(gelu_backward(dtype, AT(unfused), AT(pre), AT(dinp), dinp->n));
    }
    check("matmul's dinp", dinp, SLACK);
    check("dinp times gelu's slope", sloped, twice());
    check("dweight", dw, SLACK);
    check("dweight added", added_dw, twice());
    check("dbias", db, SLACK);
    check("dbias added", added_db, twice());
    check("dinp's column sums", below, 2 * twice());  // a library may add values before it rounds them
    check("dinp's column sums added", added_below, 2 * twice());
    check("dinp with `add`", added, twice());
    if (on_cpu()) {
        same("dinp with `add`", added, sloped);
        same("dinp times gelu's slope, fused and not", sloped, unfused);
    }
    release();
}

static void matmul(int BT, int C, int OC) {
    matmul_forward(BT, C, OC);
    matmul_backward(BT, C, OC);
}

// -------- attention

typedef struct {
    int B, T, C, NH;
} Heads;

// q . k / sqrt(head size) for query t and key t2
static double score(const double *qkv, Heads s, int b, int h, int t, int t2) {
    int hs = s.C / s.NH;
    const double *q = qkv + ((size_t)b * s.T + t) * 3 * s.C + h * hs;
    const double *k = qkv + ((size_t)b * s.T + t2) * 3 * s.C + s.C + h * hs;
    double sum = 0;
    for (int i = 0; i < hs; i++) sum += q[i] * k[i];
    return sum / sqrt(hs);
}

// Computes a query's probabilities p (t + 1) and its output. Returns the log-sum-exp of its scores.
static double naive_query(double *p, double *out, const double *qkv, Heads s, int b, int h, int t) {
    int hs = s.C / s.NH;
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < hs; i++) out[i] = 0;
    for (int t2 = 0; t2 <= t; t2++) top = fmax(top, p[t2] = score(qkv, s, b, h, t, t2));
    for (int t2 = 0; t2 <= t; t2++) sum += p[t2] = exp(p[t2] - top);
    for (int t2 = 0; t2 <= t; t2++) {
        const double *v = qkv + ((size_t)b * s.T + t2) * 3 * s.C + 2 * s.C + h * hs;
        p[t2] /= sum;
        for (int i = 0; i < hs; i++) out[i] += p[t2] * v[i];
    }
    return log(sum) + top;
}

static void naive_query_backward(double *dqkv, const double *dout, const double *p, const double *qkv,
                                 Heads s, int b, int h, int t) {
    int hs = s.C / s.NH;
    double dp[512], mean = 0;
    size_t q = ((size_t)b * s.T + t) * 3 * s.C + h * hs;
    for (int t2 = 0; t2 <= t; t2++) {
        size_t v = ((size_t)b * s.T + t2) * 3 * s.C + 2 * s.C + h * hs;
        dp[t2] = 0;
        for (int i = 0; i < hs; i++) {
            dp[t2] += dout[i] * qkv[v + i];
            dqkv[v + i] += p[t2] * dout[i];
        }
        mean += p[t2] * dp[t2];
    }
    for (int t2 = 0; t2 <= t; t2++) {
        size_t k = ((size_t)b * s.T + t2) * 3 * s.C + s.C + h * hs;
        double ds = p[t2] * (dp[t2] - mean) / sqrt(hs);
        for (int i = 0; i < hs; i++) {
            dqkv[q + i] += ds * qkv[k + i];
            dqkv[k + i] += ds * qkv[q + i];
        }
    }
}

// dqkv NULL: runs only forward.
static void naive_attention(double *out, double *lse, double *dqkv, const double *dout, const double *qkv,
                            Heads s) {
    double p[512];
    if (dqkv) memset(dqkv, 0, (size_t)3 * s.B * s.T * s.C * sizeof *dqkv);
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++)
            for (int t = 0; t < s.T; t++) {
                size_t at = ((size_t)b * s.T + t) * s.C + h * (s.C / s.NH);
                lse[((size_t)b * s.NH + h) * s.T + t] = naive_query(p, out + at, qkv, s, b, h, t);
                if (dqkv) naive_query_backward(dqkv, dout + at, p, qkv, s, b, h, t);
            }
}

// A NaN in the last query must make only its own row NaN.
static void attention_nan(Tensor *qkv, Tensor *out, Tensor *lse, Heads s, double slack) {
    qkv->x[qkv->n - 3 * s.C] = NAN;
    upload(qkv);
    naive_attention(out->x, lse->x, NULL, NULL, qkv->x, s);
    EACH_RUN { LAYER(attention_forward(dtype, AT(out), AT(lse), AT(qkv), s.B, s.T, s.C, s.NH)); }
    check("out with a NaN", out, slack);
    check("lse with a NaN", lse, slack);
}

// Inputs of up to 30 give scores of +-1000. The softmax must not overflow or return a row of zeros.
static void attention(Heads s, double scale) {
    const double extreme = scale > 1 ? 30 : 1;
    const double slack = extreme * (on_cpu() ? SLACK : twice());  // a GPU rounds the softmax
    plan(s.B, s.T, s.C, s.NH, 8, 1);
    size_t n = (size_t)s.B * s.T * s.C;
    Tensor *qkv = tensor(3 * n, scale), *out = tensor(n, 1), *lse = floats((size_t)s.B * s.NH * s.T);
    Tensor *dout = tensor(n, 1), *dqkv = tensor(3 * n, 1);
    naive_attention(out->x, lse->x, dqkv->x, dout->x, qkv->x, s);
    EACH_RUN {
        LAYER(attention_forward(dtype, AT(out), AT(lse), AT(qkv), s.B, s.T, s.C, s.NH));
        begin(run);
        LAYER(attention_backward(dtype, AT(dqkv), AT(dout), AT(qkv), AT(out), AT(lse), s.B, s.T, s.C, s.NH));
    }
    check("attention's out", out, slack);
    check("lse", lse, slack);
    if (scale > 1)
        check_finite(dqkv);
    else
        check("dqkv", dqkv, twice());
    // cuDNN, which computes the other dtypes on a GPU, guarantees nothing about NaN
    if (on_cpu() || dtype == GPT2_F32) attention_nan(qkv, out, lse, s, slack);
    release();
}

// Rows of different lengths grow in a cache, one or more tokens at a time. Cache entries past a row's tokens
// are NaN here and must be ignored. On the CPU each token must get the same bits as from attention over its
// row alone.
enum { CACHE_ROWS = 3 };
typedef struct {
    Tensor *qkv, *out;  // (length, 3C), (length, C)
    int length, done, begin;
} CachedRow;

static CachedRow cached_row(int length, int C, int NH, int begin) {
    CachedRow r = { tensor((size_t)length * 3 * C, 1), tensor((size_t)length * C, 1), length, 0, begin };
    Tensor *lse = floats((size_t)NH * length);
    naive_attention(r.out->x, lse->x, NULL, NULL, r.qkv->x, (Heads){ 1, length, C, NH });
    if (on_cpu())
        LAYER(attention_forward(dtype, r.out->mem[0], lse->mem[0], r.qkv->mem[0], 1, length, C, NH));
    return r;
}

// Takes up to n more tokens of each unfinished row, and copies their qkv to `to`. Returns the number of
// spans.
static int next_spans(layers_span spans[CACHE_ROWS], CachedRow *rows, int n, char *to, int C) {
    int count = 0, at = 0;
    const size_t width = 3 * C * gpt2_dtype_size(dtype);
    for (int r = CACHE_ROWS - 1; r >= 0; r--) {
        CachedRow *row = &rows[r];
        const int left = row->length - row->done, tokens = n < left ? n : left;
        if (!tokens) continue;
        char *qkv = download(row->qkv, 0);
        device_put(to + at * width, qkv + row->done * width, tokens * width);
        free(qkv);
        spans[count++] = (layers_span){ r,  row->done,  tokens,
                                        at, row->begin, layers_cache_positions(row->length) };
        row->done += tokens;
        at += tokens;
    }
    return count;
}

static void check_span(const CachedRow *row, const layers_span *s, const char *out, int C) {
    const size_t size = gpt2_dtype_size(dtype), width = C * size;
    const double slack = dtype == GPT2_F32 ? SLACK : 2 * twice();
    const double *want = row->out->x + (size_t)s->first * C;
    for (int i = 0; i < s->n * C; i++) {
        double got = gpt2_value(dtype, out + s->at * width, i);
        if (!(fabs(got - want[i]) <= slack))
            fail_msg("position %d of a cached row of %d (%s, C %d): %g, expected %g", s->first + i / C,
                     row->length, name_of(dtype), C, got, want[i]);
    }
    if (!on_cpu()) return;
    char *alone = download(row->out, 0);
    assert_memory_equal(out + s->at * width, alone + s->first * width, s->n * width);
    free(alone);
}

static void cached_attention(int T, int C, int NH) {
    static const int steps[] = { 5, 1, 1, 17, 2, 40, 1, 1, 1, 300 };
    const int lengths[CACHE_ROWS] = { T / 2 + 1, T, 1 };
    const size_t out_bytes = CACHE_ROWS * T * C * gpt2_dtype_size(dtype);
    size_t bytes;
    int positions = 0, n;
    CachedRow rows[CACHE_ROWS];
    layers_span spans[CACHE_ROWS];
    LAYER(plan_cached(dtype, CACHE_ROWS * T, CACHE_ROWS, T, C, NH, 16, &bytes));
    use_scratch(bytes);
    for (int r = 0; r < CACHE_ROWS; r++) {
        rows[r] = cached_row(lengths[r], C, NH, positions);
        positions += layers_cache_positions(lengths[r]);
    }
    bytes = layers_cache_bytes(dtype, positions, C);
    char *cache = room(bytes), *qkv = room(3 * out_bytes), *out = room(out_bytes), *host = malloc(out_bytes);
    device_fill(cache, 0xff, bytes);
    for (int step = 0; (n = next_spans(spans, rows, steps[step], qkv, C)); step = (step + 1) % COUNT(steps)) {
        device_fill(scratch, 0xff, scratch_bytes);
        LAYER(attention_cached(dtype, out, cache, qkv, spans, n, C, NH));
        LAYER(download(host, out, out_bytes));
        for (const layers_span *s = spans; s < spans + n; s++) check_span(&rows[s->row], s, host, C);
    }
    free(host);
    release();
}
#endif
