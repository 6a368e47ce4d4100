// The CPU's table of layers, their plan, and the short layers: encoder, layernorm, softmax with
// cross-entropy.
#include <math.h>
#include <omp.h>
#include <string.h>
#include "cpu.h"
#include "gpt2_error.h"

static void free_layers(void) {
    matmul_free();
    scratch_plan(0, 0);
}

static int check_plan(gpt2_dtype dt, int B, int T, int C, int NH, int Vp, int chunk) {
    if (dt == GPT2_F16) return gpt2_fail("fp16 needs --device cuda");
    if (B < 1 || T < 1 || C < 1 || NH < 1 || C % NH != 0 || Vp < 1 || chunk < 1) {
        return gpt2_fail("layers: B %d, T %d, C %d, NH %d, Vp %d, rows of logits at a time %d: all must be "
                         "positive, and NH must divide C",
                         B, T, C, NH, Vp, chunk);
    }
    return 0;
}

// Layernorm's backward sums its weights' gradients over the rows in so many parts, then over the parts. The
// number is fixed, so that the bits do not depend on the number of threads.
enum { PARTS = 16 };

// Returns the bytes of the threads' scratch.
static size_t plan_threads(int T, int C, int NH, int Vp) {
    size_t rows = 4 * (size_t)C;  // layernorm's backward: w, dout, inp, dinp
    size_t floats = MAX(MAX(rows, (size_t)Vp), attention_scratch_floats(T, C, NH));
    return scratch_plan(omp_get_max_threads(), floats);
}

static int abandon_plan(void) {
    free_layers();
    return -1;
}

static int plan(gpt2_dtype dt, int B, int T, int C, int NH, int Vp, int chunk, size_t *scratch_bytes) {
    size_t matmul_bytes, encoder_bytes = sizeof(int) * ((size_t)Vp + (size_t)B * T);
    const size_t layernorm_bytes = sizeof(float) * PARTS * 2 * (size_t)C;
    if (check_plan(dt, B, T, C, NH, Vp, chunk)) return -1;
    free_layers();
    *scratch_bytes = plan_threads(T, C, NH, Vp);
    if (matmul_plan(dt, B * T, C, Vp, chunk, &matmul_bytes) != 0) return abandon_plan();
    *scratch_bytes += MAX(MAX(matmul_bytes, encoder_bytes), layernorm_bytes);
    return 0;
}

static int plan_cached(gpt2_dtype dt, int tokens, int rows, int T, int C, int NH, int Vp,
                       size_t *scratch_bytes) {
    size_t matmul_bytes;
    if (check_plan(dt, tokens, T, C, NH, Vp, rows)) return -1;
    free_layers();
    *scratch_bytes = plan_threads(T, C, NH, Vp);
    if (matmul_plan_forward(dt, tokens, rows, C, Vp, &matmul_bytes) != 0) return abandon_plan();
    *scratch_bytes += matmul_bytes;
    return 0;
}

static int use_scratch(void *memory) {
    set_scratch(memory);
    return matmul_prepare();
}

// -------- memory

static int download(void *host, const void *x, size_t bytes) {
    memcpy(host, x, bytes);
    return 0;
}

static int clear(void *x, size_t bytes) {
    enum { AT_ONCE = 1 << 16 };
#pragma omp parallel for schedule(static) num_threads(layers_threads())
    for (size_t i = 0; i < bytes; i += AT_ONCE) memset((char *)x + i, 0, MIN(bytes - i, (size_t)AT_ONCE));
    return 0;
}

static int sum_floats(double *total, const float *x, int n, int add) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    *total = add ? *total + sum : sum;
    return 0;
}

// -------- encoder: out (B, T, C) = wte[token] + wpe[position]

VECTOR static void add(gpt2_dtype dt, void *out, size_t at, const void *a, size_t a_at, const void *b,
                       size_t b_at, size_t n) {
    float a_buf[PIECE], b_buf[PIECE];
    for (size_t i = 0; i < n; i += PIECE) {
        size_t m = MIN(n - i, (size_t)PIECE);
        const float *x = view(dt, a, a_at + i, m, a_buf);
        const float *y = view(dt, b, b_at + i, m, b_buf);
        float *sum = target(dt, out, at + i, a_buf);
#pragma omp simd
        for (size_t j = 0; j < m; j++) sum[j] = x[j] + y[j];
        commit(dt, out, at + i, m, sum);
    }
}

static int encoder_forward(gpt2_dtype dt, void *out, const int *inp, const void *wte, const void *wpe, int B,
                           int T, int C) {
#pragma omp parallel for schedule(static) num_threads(layers_threads())
    for (int bt = 0; bt < B * T; bt++)
        add(dt, out, (size_t)bt * C, wte, (size_t)inp[bt] * C, wpe, (size_t)(bt % T) * C, C);
    return 0;
}

// Chains the positions of each token in order, so that one thread computes a row of dwte and rounds it once.
static void chain_tokens(int *first, int *next, const int *inp, int BT) {
    for (int bt = 0; bt < BT; bt++) first[inp[bt]] = -1;
    for (int bt = BT - 1; bt >= 0; bt--) {
        next[bt] = first[inp[bt]];
        first[inp[bt]] = bt;
    }
}

static int encoder_backward(gpt2_dtype dt, void *dwte, void *dwpe, const void *dout, const int *inp, int B,
                            int T, int C) {
    int BT = B * T;
    int *next = shared_scratch();
    int *first = next + BT;
    chain_tokens(first, next, inp, BT);
#pragma omp parallel num_threads(layers_threads())
    {
        float *acc = thread_scratch(omp_get_thread_num());
#pragma omp for schedule(dynamic, 16)
        for (int bt = 0; bt < BT; bt++) {
            if (first[inp[bt]] == bt) {
                memset(acc, 0, C * sizeof(float));
                for (int i = bt; i >= 0; i = next[i]) accumulate(acc, dt, dout, (size_t)i * C, C);
                add_sums(dt, dwte, (size_t)inp[bt] * C, acc, C);
            }
        }
#pragma omp for schedule(static)
        for (int t = 0; t < T; t++) {
            memset(acc, 0, C * sizeof(float));
            for (int b = 0; b < B; b++) accumulate(acc, dt, dout, ((size_t)b * T + t) * C, C);
            add_sums(dt, dwpe, (size_t)t * C, acc, C);
        }
    }
    return 0;
}

// -------- layernorm

// Normalises one row; `rows` has room for 4 x C floats. With inp2, writes inp1 + inp2 to residual first and
// normalises the rounded sum.
VECTOR static void layernorm_row(gpt2_dtype dt, void *residual, void *out, float *mean, float *rstd,
                                 const void *inp1, const void *inp2, const void *weight, const void *bias,
                                 size_t at, int C, float *rows) {
    if (inp2) {
        const float *x1 = view(dt, inp1, at, C, rows);
        const float *x2 = view(dt, inp2, at, C, rows + C);
        float *sum = target(dt, residual, at, rows);
#pragma omp simd
        for (int c = 0; c < C; c++) sum[c] = x1[c] + x2[c];
        commit(dt, residual, at, C, sum);
    }
    const float *x = view(dt, inp2 ? residual : inp1, at, C, rows);
    const float *w = view(dt, weight, 0, C, rows + C);
    const float *b = view(dt, bias, 0, C, rows + 2 * (size_t)C);
    float *y = target(dt, out, at, rows + 3 * (size_t)C);
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int c = 0; c < C; c++) sum += x[c];
    float m = sum / C;
#pragma omp simd reduction(+ : squares)
    for (int c = 0; c < C; c++) squares += (x[c] - m) * (x[c] - m);
    float s = 1.0f / sqrtf(squares / C + 1e-5f);
#pragma omp simd
    for (int c = 0; c < C; c++) y[c] = (x[c] - m) * s * w[c] + b[c];
    commit(dt, out, at, C, y);
    *mean = m;
    *rstd = s;
}

static int residual_layernorm_forward(gpt2_dtype dt, void *residual, void *out, float *mean, float *rstd,
                                      const void *inp1, const void *inp2, const void *weight,
                                      const void *bias, int BT, int C) {
#pragma omp parallel for schedule(static) num_threads(layers_threads())
    for (int bt = 0; bt < BT; bt++) {
        layernorm_row(dt, residual, out, mean + bt, rstd + bt, inp1, inp2, weight, bias, (size_t)bt * C, C,
                      thread_scratch(omp_get_thread_num()));
    }
    return 0;
}

static int layernorm_forward(gpt2_dtype dt, void *out, float *mean, float *rstd, const void *inp,
                             const void *weight, const void *bias, int BT, int C) {
    return residual_layernorm_forward(dt, NULL, out, mean, rstd, inp, NULL, weight, bias, BT, C);
}

// Handles one row. dw and db (C) accumulate the gradients of weight and bias, w is the weight, `rows` has
// room for 3 x C floats.
VECTOR static void layernorm_backward_row(gpt2_dtype dt, void *dinp, float *dw, float *db, const void *dout,
                                          const void *inp, const float *w, float mean, float rstd, size_t at,
                                          int C, float *rows) {
    const float *dy = view(dt, dout, at, C, rows);
    const float *x = view(dt, inp, at, C, rows + C);
    const float *old = view(dt, dinp, at, C, rows + 2 * (size_t)C);
    float *dx = target(dt, dinp, at, rows + 2 * (size_t)C);
    float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int c = 0; c < C; c++) {
        float norm = (x[c] - mean) * rstd;
        float dnorm = w[c] * dy[c];
        sum += dnorm;
        dot += dnorm * norm;
        dw[c] += norm * dy[c];
        db[c] += dy[c];
    }
    sum /= C;
    dot /= C;
#pragma omp simd
    for (int c = 0; c < C; c++) {
        float norm = (x[c] - mean) * rstd;
        dx[c] = old[c] + (w[c] * dy[c] - sum - norm * dot) * rstd;
    }
    commit(dt, dinp, at, C, dx);
}

static int layernorm_backward(gpt2_dtype dt, void *dinp, void *dweight, void *dbias, float *dinp_sums,
                              const void *dout, const void *inp, const void *weight, const float *mean,
                              const float *rstd, int BT, int C) {
    size_t row = C;
    float *sums = shared_scratch();  // (PARTS, 2, C)
    memset(sums, 0, PARTS * 2 * row * sizeof(float));
#pragma omp parallel num_threads(layers_threads())
    {
        float *w = thread_scratch(omp_get_thread_num()), *rows = w + row;
        memset(w, 0, row * sizeof(float));
        accumulate(w, dt, weight, 0, row);
#pragma omp for schedule(static)
        for (int part = 0; part < PARTS; part++) {
            float *dw = sums + part * 2 * row, *db = dw + row;
            int begin = (int)((int64_t)BT * part / PARTS), end = (int)((int64_t)BT * (part + 1) / PARTS);
            for (int bt = begin; bt < end; bt++)
                layernorm_backward_row(dt, dinp, dw, db, dout, inp, w, mean[bt], rstd[bt], bt * row, C, rows);
        }
    }
    for (int part = 1; part < PARTS; part++) accumulate(sums, GPT2_F32, sums, part * 2 * row, 2 * row);
    add_sums(dt, dweight, 0, sums, row);
    add_sums(dt, dbias, 0, sums + row, row);
    if (dinp_sums) {
        memset(dinp_sums, 0, row * sizeof(float));
        add_column_sums(GPT2_F32, dinp_sums, dt, dinp, BT, C);
    }
    return 0;
}

static int bias_from_sums(gpt2_dtype dt, void *dbias, const float *sums, int C) {
    add_sums(dt, dbias, 0, sums, C);
    return 0;
}

// -------- softmax and cross-entropy: loss = log(sum of e^logit) - logit[target]

// Returns the maximum of a row's V logits, from x[at..). Skips NaN, which then shows in the sum.
VECTOR static float largest(gpt2_dtype dt, const void *x, size_t at, size_t V) {
    float buf[PIECE], top = -INFINITY;
    for (size_t i = 0; i < V; i += PIECE) {
        size_t m = MIN(V - i, (size_t)PIECE);
        const float *row = view(dt, x, at + i, m, buf);
#pragma omp simd reduction(max : top)
        for (size_t j = 0; j < m; j++) top = row[j] > top ? row[j] : top;
    }
    return top;
}

// e (V) = e^(logit - top); returns the sum
VECTOR static float exponentials(float *e, gpt2_dtype dt, const void *x, size_t at, size_t V, float top) {
    float buf[PIECE], total = 0;
    for (size_t i = 0; i < V; i += PIECE) {
        size_t m = MIN(V - i, (size_t)PIECE);
        const float *row = view(dt, x, at + i, m, buf);
        float *out = e + i, sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t j = 0; j < m; j++) {
            out[j] = exp_f32(row[j] - top);
            sum += out[j];
        }
        total += sum;
    }
    return total;
}

// x[at..at+V) = e * scale, then zeros up to Vp
VECTOR static void scaled(gpt2_dtype dt, void *x, size_t at, const float *e, float scale, size_t V,
                          size_t Vp) {
    float buf[PIECE];
    for (size_t i = 0; i < V; i += PIECE) {
        size_t m = MIN(V - i, (size_t)PIECE);
        float *out = target(dt, x, at + i, buf);
#pragma omp simd
        for (size_t j = 0; j < m; j++) out[j] = e[i + j] * scale;
        commit(dt, x, at + i, m, out);
    }
    size_t size = gpt2_dtype_size(dt);
    memset((char *)x + (at + V) * size, 0, (Vp - V) * size);
}

static int softmax_crossentropy(gpt2_dtype dt, float *losses, void *logits, float dloss, const int *targets,
                                int rows, int V, int Vp) {
#pragma omp parallel for schedule(static) num_threads(layers_threads())
    for (int r = 0; r < rows; r++) {
        float *e = thread_scratch(omp_get_thread_num());
        size_t at = (size_t)r * Vp;
        float top = largest(dt, logits, at, V);
        float sum = exponentials(e, dt, logits, at, V, top);
        float buf;
        losses[r] = logf(sum) + top - *view(dt, logits, at + targets[r], 1, &buf);
        if (dloss != 0) {
            e[targets[r]] -= sum;  // (p - 1) * dloss there, p * dloss elsewhere
            scaled(dt, logits, at, e, dloss / sum, V, Vp);
        }
    }
    return 0;
}

// --------

const Layers layers_cpu = {
    .device = "cpu",
    .plan = plan,
    .plan_cached = plan_cached,
    .use_scratch = use_scratch,
    .free = free_layers,
    .has_dtype = cpu_has_dtype,
    .peak_flops = cpu_peak_flops,
    .download = download,
    .clear = clear,
    .sum = sum_floats,
    .encoder_forward = encoder_forward,
    .encoder_backward = encoder_backward,
    .layernorm_forward = layernorm_forward,
    .residual_layernorm_forward = residual_layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .bias_from_sums = bias_from_sums,
    .matmul_forward = cpu_matmul_forward,
    .matmul_gelu_forward = cpu_matmul_gelu_forward,
    .matmul_backward = cpu_matmul_backward,
    .dinp_bias_fused = cpu_dinp_bias_fused,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .attention_cached = cpu_attention_cached,
    .gelu_forward = cpu_gelu_forward,
    .gelu_backward = cpu_gelu_backward,
    .softmax_crossentropy = softmax_crossentropy,
};
