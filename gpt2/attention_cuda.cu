// Causal attention on CUDA: by cuDNN's fused kernels (attention_cudnn.cpp) or, here, by cuBLASLt matmuls with
// a softmax between them. The matmuls read queries, keys and values directly from qkv, one matmul for all
// heads of a sequence. Scores of only a few sequences exist at a time: forward keeps each row's lse, and
// backward recomputes the probabilities from it. Probabilities and score gradients are rounded to the
// tensors' dtype before they are multiplied; everything else is fp32.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "attention_cudnn.h"
#include "cuda.h"
#include "matmul_lt_cuda.h"

// Default memory for scores: about the size of a large GPU's L2 cache, so that the matmuls find the scores
// there.
static const size_t SCORES_BYTES = (size_t)64 << 20;

// -------- kernels: one warp per row of scores, four contiguous elements per lane

enum { ROWS = 8, LANE = 4 };  // rows per block, elements per lane

// p (rows, ld) = softmax of scale * scores (rows, ld) over keys 0..t of query t = row % T, and 0 after that.
// Writes lse (rows).
template <class T>
__global__ __launch_bounds__(ROWS *WARP) void softmax_kernel(T *__restrict__ p, float *__restrict__ lse,
                                                             const float *__restrict__ scores, float scale,
                                                             int queries, int ld, int rows) {
    int row = blockIdx.x * ROWS + threadIdx.x / WARP, first = threadIdx.x % WARP * LANE;
    if (row >= rows) return;
    int t = row % queries;
    scores += (size_t)row * ld;
    p += (size_t)row * ld;
    float top = -INFINITY, sum = 0;
    for (int i = first; i <= t; i += WARP * LANE) {
        vec<float, LANE> x = load<LANE>(scores + i);
        float old = top;
        for (int k = 0; k < LANE; k++) x.e[k] = i + k <= t ? scale * x.e[k] : -INFINITY;
        for (int k = 0; k < LANE; k++) top = fmaxf(top, x.e[k]);
        sum *= expf(old - top);
        for (int k = 0; k < LANE; k++) sum += expf(x.e[k] - top);
    }
    float row_top = warp_max(top), row_lse = row_top + logf(warp_sum(sum * expf(top - row_top)));
    for (int i = first; i < ld; i += WARP * LANE) {
        vec<float, LANE> x = {};
        vec<T, LANE> y;
        if (i <= t) x = load<LANE>(scores + i);
        for (int k = 0; k < LANE; k++)
            y.e[k] = from_float<T>(i + k <= t ? expf(scale * x.e[k] - row_lse) : 0);
        store(p + i, y);
    }
    if (first == 0) lse[row] = row_lse;
}

// Recomputes p (rows, ld) from scores and lse. ds = gradient of the unscaled scores = p (dp - sum of p dp)
// scale, where the sum over keys is the sum of dout * out over hs: out and dout are (batch, queries, NH, hs).
template <class T> __global__ __launch_bounds__(ROWS *WARP) void softmax_backward_kernel(
    T *__restrict__ p, T *__restrict__ ds, const float *__restrict__ scores, const float *__restrict__ dp,
    const float *__restrict__ lse, const T *__restrict__ dout, const T *__restrict__ out, float scale,
    int queries, int ld, int NH, int hs, int rows) {
    int row = blockIdx.x * ROWS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    int t = row % queries, bh = row / queries;
    size_t at = (((size_t)(bh / NH) * queries + t) * NH + bh % NH) * hs;
    float dot = 0, row_lse = lse[row];
    for (int c = lane; c < hs; c += WARP) dot += to_float(dout[at + c]) * to_float(out[at + c]);
    dot = warp_sum(dot);
    size_t start = (size_t)row * ld;
    for (int i = lane * LANE; i < ld; i += WARP * LANE) {
        vec<float, LANE> x = {}, dx = {};
        vec<T, LANE> y, dy;
        if (i <= t) {
            x = load<LANE>(scores + start + i);
            dx = load<LANE>(dp + start + i);
        }
        for (int k = 0; k < LANE; k++) {
            float probability = i + k <= t ? expf(scale * x.e[k] - row_lse) : 0;
            y.e[k] = from_float<T>(probability);
            dy.e[k] = from_float<T>(i + k <= t ? probability * (dx.e[k] - dot) * scale : 0);
        }
        store(p + start + i, y);
        store(ds + start + i, dy);
    }
}

// -------- matmuls

enum { SCORES, DSCORES, OUT, DQ, DK, DV, MATMULS };

typedef struct {
    int T, C, NH, hs;
    int ld;         // row stride of scores: T padded, so that rows are 16-byte aligned in any dtype
    size_t scores;  // elements of one sequence
    float scale;
    Matmul matmuls[MATMULS];
} Shape;

// scores (T, T) = x (T, hs) @ keys or values (T, hs)^T for each head; x_ld: token stride of x
static Matmul scores_of(gpt2_dtype dt, const Shape *s, int x_ld) {
    Matmul p = matmul_of(dt, s->T, s->T, s->hs, 0, 1, 0);
    p.out = GPT2_F32;
    p.batch = s->NH;
    p.left_ld = x_ld;
    p.right_ld = 3 * s->C;
    p.left_next = p.right_next = s->hs;
    p.out_ld = s->ld;
    p.out_next = s->T * s->ld;
    return p;
}

// out (T, hs) = scores (T, T), or their transpose, @ x (T, hs) for each head
static Matmul sums_of(gpt2_dtype dt, const Shape *s, int transposed, int x_ld, int out_ld) {
    Matmul p = matmul_of(dt, s->T, s->hs, s->T, transposed, 0, 0);
    p.batch = s->NH;
    p.left_ld = s->ld;
    p.left_next = s->T * s->ld;
    p.right_ld = x_ld;
    p.out_ld = out_ld;
    p.right_next = p.out_next = s->hs;
    return p;
}

static Shape shape_of(gpt2_dtype dt, int T, int C, int NH) {
    Shape s = {};
    s.T = T;
    s.C = C;
    s.NH = NH;
    s.hs = C / NH;
    s.ld = (T + 7) / 8 * 8;
    s.scores = (size_t)NH * T * s.ld;
    s.scale = 1 / sqrtf((float)s.hs);
    s.matmuls[SCORES] = scores_of(dt, &s, 3 * C);
    s.matmuls[DSCORES] = scores_of(dt, &s, C);
    s.matmuls[OUT] = sums_of(dt, &s, 0, 3 * C, C);
    s.matmuls[DQ] = sums_of(dt, &s, 0, 3 * C, 3 * C);
    s.matmuls[DK] = sums_of(dt, &s, 1, 3 * C, 3 * C);
    s.matmuls[DV] = sums_of(dt, &s, 1, C, 3 * C);
    return s;
}

// -------- sequences, a group at a time

static struct {
    const char *wanted;  // "cudnn", "cudnn-fast", "cublaslt" or NULL
    size_t limit;        // of scratch for several sequences; 0: the default
    int fused;           // 1: cuDNN's kernels
    int rows;            // sequences at a time, without cuDNN
    size_t scratch_bytes, workspace_bytes;
} attention;

// Bytes of scratch for one sequence: scores and their gradients in fp32 and in T.
static size_t row_bytes(gpt2_dtype dt, const Shape *s) {
    return 2 * s->scores * (sizeof(float) + gpt2_dtype_size(dt));
}

template <class T> struct Group {
    int size;  // sequences
    void *workspace;
    float *scores, *dscores;  // (size, NH, T, ld)
    T *p, *ds;
};

template <class T> static int group_of(Group<T> *g, gpt2_dtype dt, const Shape *s, int B) {
    size_t row = row_bytes(dt, s), room = attention.scratch_bytes - attention.workspace_bytes;
    if (row > room)
        return gpt2_fail("attention: T %d, C %d, NH %d needs %zu bytes of scratch, but plan was for a "
                         "smaller shape: %zu bytes",
                         s->T, s->C, s->NH, row, room);
    g->size = room / row < (size_t)B ? (int)(room / row) : B;
    g->workspace = cuda_scratch();
    if (!g->workspace) return -1;
    g->scores = (float *)((char *)g->workspace + attention.workspace_bytes);
    g->dscores = g->scores + g->size * s->scores;
    g->p = (T *)(g->dscores + g->size * s->scores);
    g->ds = g->p + g->size * s->scores;
    return 0;
}

template <class T>
static int forward_rows(const Shape *s, const Group<T> *g, T *out, float *lse, const T *qkv, int n) {
    size_t inp = 3 * (size_t)s->T * s->C, values = (size_t)s->T * s->C;
    int rows = n * s->NH * s->T;
    for (int b = 0; b < n; b++) {
        const T *q = qkv + b * inp;
        if (matmul_cuda_multiply(&s->matmuls[SCORES], g->scores + b * s->scores, q, q + s->C, 0,
                                 g->workspace) != 0)
            return -1;
    }
    if (launch("softmax_kernel", softmax_kernel<T>, dim3(blocks_for(rows, ROWS)), dim3(ROWS * WARP), g->p,
               lse, g->scores, s->scale, s->T, s->ld, rows) != 0)
        return -1;
    for (int b = 0; b < n; b++)
        if (matmul_cuda_multiply(&s->matmuls[OUT], out + b * values, g->p + b * s->scores,
                                 qkv + b * inp + 2 * s->C, 0, g->workspace) != 0)
            return -1;
    return 0;
}

template <class T> static int backward_rows(const Shape *s, const Group<T> *g, T *dqkv, const T *dout,
                                            const T *qkv, const T *out, const float *lse, int n) {
    size_t inp = 3 * (size_t)s->T * s->C, values = (size_t)s->T * s->C;
    int rows = n * s->NH * s->T;
    for (int b = 0; b < n; b++) {
        const T *q = qkv + b * inp, *k = q + s->C, *v = k + s->C;
        float *scores = g->scores + b * s->scores, *dscores = g->dscores + b * s->scores;
        if (matmul_cuda_multiply(&s->matmuls[SCORES], scores, q, k, 0, g->workspace) != 0 ||
            matmul_cuda_multiply(&s->matmuls[DSCORES], dscores, dout + b * values, v, 0, g->workspace) != 0)
            return -1;
    }
    if (launch("softmax_backward_kernel", softmax_backward_kernel<T>, dim3(blocks_for(rows, ROWS)),
               dim3(ROWS * WARP), g->p, g->ds, g->scores, g->dscores, lse, dout, out, s->scale, s->T, s->ld,
               s->NH, s->hs, rows) != 0)
        return -1;
    for (int b = 0; b < n; b++) {
        const T *q = qkv + b * inp, *k = q + s->C, *p = g->p + b * s->scores, *ds = g->ds + b * s->scores;
        T *dq = dqkv + b * inp, *dk = dq + s->C, *dv = dk + s->C;
        if (matmul_cuda_multiply(&s->matmuls[DV], dv, p, dout + b * values, 0, g->workspace) != 0 ||
            matmul_cuda_multiply(&s->matmuls[DQ], dq, ds, k, 0, g->workspace) != 0 ||
            matmul_cuda_multiply(&s->matmuls[DK], dk, ds, q, 0, g->workspace) != 0)
            return -1;
    }
    return 0;
}

// Calls rows(g, b, n) for each group: sequences b..b+n-1.
template <class T, class Rows> static int each_group(gpt2_dtype dt, const Shape *s, int B, Rows rows) {
    Group<T> g = {};
    if (group_of(&g, dt, s, B) != 0) return -1;
    for (int b = 0; b < B; b += g.size)
        if (rows(&g, b, B - b < g.size ? B - b : g.size) != 0) return -1;
    return 0;
}

template <class T>
static int forward(gpt2_dtype dt, T *out, float *lse, const T *qkv, int B, const Shape *s) {
    size_t values = (size_t)s->T * s->C;
    return each_group<T>(dt, s, B, [&](const Group<T> *g, int b, int n) {
        return forward_rows(s, g, out + b * values, lse + (size_t)b * s->NH * s->T, qkv + 3 * b * values, n);
    });
}

template <class T> static int backward(gpt2_dtype dt, T *dqkv, const T *dout, const T *qkv, const T *out,
                                       const float *lse, int B, const Shape *s) {
    size_t values = (size_t)s->T * s->C;
    return each_group<T>(dt, s, B, [&](const Group<T> *g, int b, int n) {
        return backward_rows(s, g, dqkv + 3 * b * values, dout + b * values, qkv + 3 * b * values,
                             out + b * values, lse + (size_t)b * s->NH * s->T, n);
    });
}

// -------- the choice between cuDNN and these kernels

int attention_cuda_options(const char *wanted) {
    static const char *const words[] = { "cudnn", "cudnn-fast", "cublaslt" };
    attention.wanted = NULL;
    if (!wanted) return 0;
    for (int i = 0; i < 3; i++)
        if (strcmp(wanted, words[i]) == 0) attention.wanted = words[i];
    if (attention.wanted) return 0;
    return gpt2_fail("attention \"%s\" is unknown: cudnn, cudnn-fast or cublaslt", wanted);
}

void layers_cuda_attention_limit(size_t bytes) { attention.limit = bytes; }

static int wants(const char *way) { return attention.wanted && strcmp(attention.wanted, way) == 0; }

const char *layers_cuda_attention(void) {
    static char text[96];
    const char *note = wants("cudnn-fast") ? ", fast: bits may differ from run to run" : "";
    if (!attention.fused) return "cuBLASLt";
    snprintf(text, sizeof text, "%s%s", attention_cudnn_version(), note);
    return text;
}

layers_attention_backward layers_cuda_attention_backward(void) {
    if (attention.fused) return attention_cudnn_groups();
    layers_attention_backward own = { attention.rows, attention.scratch_bytes - attention.workspace_bytes,
                                      attention.limit ? attention.limit : SCORES_BYTES };
    return own;
}

int attention_cuda_plan(gpt2_dtype dt, int B, int T, int C, int NH, size_t *scratch_bytes) {
    int fast = wants("cudnn-fast"), needs_cudnn = fast || wants("cudnn");
    attention.fused = (!attention.wanted || needs_cudnn) &&
                      attention_cudnn_plan(dt, B, T, C, NH, fast, attention.limit, scratch_bytes) == 0;
    if (attention.fused) return 0;
    if (needs_cudnn || matmul_cuda_workspace(&attention.workspace_bytes) != 0) return -1;
    Shape s = shape_of(dt, T, C, NH);
    size_t row = row_bytes(dt, &s), limit = attention.limit ? attention.limit : SCORES_BYTES;
    size_t rows = limit / row < 1 ? 1 : limit / row;
    attention.rows = rows < (size_t)B ? (int)rows : B;
    *scratch_bytes = attention.scratch_bytes = attention.workspace_bytes + attention.rows * row;
    for (int i = 0; i < MATMULS; i++)
        if (matmul_cuda_prepare(&s.matmuls[i]) != 0) return -1;
    return 0;
}

void attention_cuda_free(void) {
    attention_cudnn_free();
    attention.fused = attention.rows = 0;
    attention.scratch_bytes = attention.workspace_bytes = 0;
}

int cuda_attention_forward(gpt2_dtype dt, void *out, float *lse, const void *qkv, int B, int length, int C,
                           int NH) {
    if (attention.fused) return attention_cudnn_forward(dt, out, lse, qkv, B, length, C, NH);
    Shape s = shape_of(dt, length, C, NH);
    return BY_DTYPE(dt, forward(dt, (T *)out, lse, (const T *)qkv, B, &s));
}

int cuda_attention_backward(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out,
                            const float *lse, int B, int length, int C, int NH) {
    if (attention.fused) return attention_cudnn_backward(dt, dqkv, dout, qkv, out, lse, B, length, C, NH);
    Shape s = shape_of(dt, length, C, NH);
    return BY_DTYPE(dt, backward(dt, (T *)dqkv, (const T *)dout, (const T *)qkv, (const T *)out, lse, B, &s));
}
