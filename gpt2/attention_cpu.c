/* Causal attention, one head of one sequence at a time, blocks of query rows against the keys up to the block's end.
 * A head's queries, keys and values are widened into fp32 scratch once; the products are small and stay in L2. Backward makes the
 * probabilities again from each row's lse. Rows and columns of scratch are padded so that kernels have no tails; what stands in the
 * padding reaches no result. */
#include <math.h>
#include <omp.h>
#include <string.h>
#include "cpu.h"

enum { QUERIES = 16 };                          // queries in a block
enum { ROWS = 4, LANES = 16, DEPTH = 256 };     // the kernel's tile: ROWS x LANES sums stay in registers

typedef struct {
    int T, C, NH, hs;
    int width;          // hs padded: columns of the row-major buffers
    int keys;           // T padded: columns of the transposed buffers
    int scores;         // distance of two rows of scores; not a multiple of a page, or their columns would share cache sets
    float scale;
} Shape;

static int padded(int n) {
    return (n + LANES - 1) / LANES * LANES;
}

static Shape shape_of(int T, int C, int NH) {
    int hs = C / NH;
    return (Shape){ .T = T, .C = C, .NH = NH, .hs = hs, .width = padded(hs), .keys = padded(T), .scores = padded(T) + LANES,
                    .scale = 1.0f / sqrtf((float)hs) };
}

typedef struct {
    float *q, *dout, *out;              // (QUERIES, width)
    float *rows, *dk, *dv;              // (keys, width); rows: keys or values on their way into panels
    float *k, *v, *k_t, *v_t;           // panels of (keys, width) and of (width, keys)
    float *p, *dp;                      // (QUERIES, scores)
} Buffers;

size_t attention_scratch_floats(int T, int C, int NH) {
    Shape s = shape_of(T, C, NH);
    return (size_t)s.width * (3 * QUERIES + 7 * (size_t)s.keys) + 2 * QUERIES * (size_t)s.scores;
}

static Buffers buffers_at(float *memory, const Shape *s) {
    size_t block = (size_t)QUERIES * s->width, head = (size_t)s->keys * s->width;
    Buffers f = { .q = memory, .dout = memory + block, .out = memory + 2 * block };
    float **heads[] = { &f.rows, &f.dk, &f.dv, &f.k, &f.v, &f.k_t, &f.v_t };
    memory += 3 * block;
    for (int i = 0; i < 7; i++) {
        *heads[i] = memory;
        memory += head;
    }
    f.p = memory;
    f.dp = memory + (size_t)QUERIES * s->scores;
    return f;
}

// ----------------------------------------------------------------------------
// kernels

// c (ROWS, LANES) = or += a (ROWS, K) @ b (K, LANES); element (i, k) of a lies at a[i*a_row + k*a_col]
INLINE void multiply_tile(float *restrict c, size_t c_row, const float *restrict a, size_t a_row, size_t a_col, const float *restrict b,
                          size_t b_row, int K, int add) {
    float sums[ROWS][LANES] = { { 0 } };
    for (int k = 0; k < K; k++) {
        #pragma GCC unroll 4
        for (int i = 0; i < ROWS; i++) {
            float x = a[i * a_row + k * a_col];
            #pragma omp simd
            for (int j = 0; j < LANES; j++) {
                sums[i][j] += x * b[k * b_row + j];
            }
        }
    }
    #pragma GCC unroll 4
    for (int i = 0; i < ROWS; i++) {
        float *out = c + i * c_row;
        #pragma omp simd
        for (int j = 0; j < LANES; j++) {
            out[j] = add ? out[j] + sums[i][j] : sums[i][j];
        }
    }
}

// c (M, N) = or += a (M, K) @ b (K, N); M is rounded up to ROWS and N to LANES. Columns j*LANES.. of b start at b + j*b_panel. Long
// sums go by DEPTH, whose part of a panel stays in L1 for all rows.
VECTOR static void multiply(float *c, size_t c_row, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
                            size_t b_panel, int M, int N, int K, int add) {
    for (int k = 0; k < K; k += DEPTH) {
        for (int j = 0; j < N; j += LANES) {
            for (int i = 0; i < M; i += ROWS) {
                multiply_tile(c + i * c_row + j, c_row, a + i * a_row + k * a_col, a_row, a_col, b + j / LANES * b_panel + k * b_row, b_row,
                              MIN(K - k, DEPTH), add || k > 0);
            }
        }
    }
}

// dst (rows, width) = rows of hs elements of x, `stride` apart
VECTOR static void load(float *dst, gpt2_dtype dt, const void *x, size_t at, size_t stride, int rows, int hs, int width) {
    for (int r = 0; r < rows; r++) {
        float *row = dst + (size_t)r * width;
        const float *values = view(dt, x, at + r * stride, hs, row);
        if (values != row) {
            memcpy(row, values, hs * sizeof(float));
        }
    }
}

VECTOR static void store(gpt2_dtype dt, void *x, size_t at, size_t stride, const float *src, int rows, int hs, int width) {
    for (int r = 0; r < rows; r++) {
        const float *row = src + (size_t)r * width;
        if (dt == GPT2_F32) {
            memcpy((float *)x + at + r * stride, row, hs * sizeof(float));
        }
        commit(dt, x, at + r * stride, hs, row);
    }
}

// panels of b for multiply: dst (width/LANES, keys, LANES) from src (keys, width)
VECTOR static void pack(float *restrict dst, const float *restrict src, int keys, int width) {
    for (int r = 0; r < keys; r++) {
        for (int c = 0; c < width; c += LANES) {
            for (int j = 0; j < LANES; j++) {
                dst[(size_t)c * keys + r * LANES + j] = src[(size_t)r * width + c + j];
            }
        }
    }
}

// the same of src transposed: dst (keys/LANES, width, LANES)
VECTOR static void pack_transposed(float *restrict dst, const float *restrict src, int keys, int width) {
    for (int r = 0; r < keys; r += LANES) {
        for (int c = 0; c < width; c++) {
            for (int j = 0; j < LANES; j++) {
                dst[(size_t)r * width + c * LANES + j] = src[(size_t)(r + j) * width + c];
            }
        }
    }
}

// Rows of scores, of queries first..first+rows-1, become probabilities over keys 0..query; the later keys up to n get 0.
VECTOR static void softmax_rows(float *p, float *lse, const Shape *s, int first, int rows, int n) {
    float scale = s->scale;
    for (int r = 0; r < rows; r++) {
        float *row = p + (size_t)r * s->scores, top = -INFINITY, sum = 0;
        int seen = first + r + 1;
        #pragma omp simd reduction(max:top)
        for (int i = 0; i < seen; i++) {
            top = row[i] > top ? row[i] : top;
        }
        #pragma omp simd reduction(+:sum)
        for (int i = 0; i < seen; i++) {
            row[i] = exp_f32(scale * (row[i] - top));
            sum += row[i];
        }
        float inverse = 1.0f / sum;
        #pragma omp simd
        for (int i = 0; i < seen; i++) {
            row[i] *= inverse;
        }
        memset(row + seen, 0, (n - seen) * sizeof(float));
        // cppcheck-suppress invalidFunctionArg ; sum is at least 1: a row sees itself
        lse[r] = scale * top + logf(sum);
    }
}

// The same rows in backward: p comes in as scores and leaves as probabilities; dp comes in as the gradient of the probabilities and leaves
// as that of the unscaled scores, p (dp - sum of p dp) scale, where the sum over keys is sum of dout * out, rows of hs.
VECTOR static void softmax_backward_rows(float *p, float *dp, const float *lse, const float *dout, const float *out, const Shape *s,
                                         int first, int rows, int n) {
    float scale = s->scale;
    for (int r = 0; r < rows; r++) {
        float *row = p + (size_t)r * s->scores, *drow = dp + (size_t)r * s->scores, dot = 0, l = lse[r];
        const float *y = out + (size_t)r * s->width, *dy = dout + (size_t)r * s->width;
        int seen = first + r + 1;
        #pragma omp simd reduction(+:dot)
        for (int c = 0; c < s->hs; c++) {
            dot += dy[c] * y[c];
        }
        #pragma omp simd
        for (int i = 0; i < seen; i++) {
            row[i] = exp_f32(scale * row[i] - l);
            drow[i] = row[i] * (drow[i] - dot) * scale;
        }
        memset(row + seen, 0, (n - seen) * sizeof(float));
        memset(drow + seen, 0, (n - seen) * sizeof(float));
    }
}

// ----------------------------------------------------------------------------
// one head of one sequence

static void forward_head(gpt2_dtype dt, void *out, float *lse, const void *qkv, int b, int h, const Shape *s, const Buffers *f) {
    size_t stride = 3 * (size_t)s->C, q_at = (size_t)b * s->T * stride + (size_t)h * s->hs;
    size_t out_at = (size_t)b * s->T * s->C + (size_t)h * s->hs;
    size_t panel = (size_t)s->keys * LANES, panel_t = (size_t)s->width * LANES;
    load(f->rows, dt, qkv, q_at + s->C, stride, s->T, s->hs, s->width);
    pack_transposed(f->k_t, f->rows, s->keys, s->width);
    load(f->rows, dt, qkv, q_at + 2 * (size_t)s->C, stride, s->T, s->hs, s->width);
    pack(f->v, f->rows, s->keys, s->width);
    for (int first = 0; first < s->T; first += QUERIES) {
        int rows = MIN(QUERIES, s->T - first), n = padded(first + rows);
        load(f->q, dt, qkv, q_at + first * stride, stride, rows, s->hs, s->width);
        multiply(f->p, s->scores, f->q, s->width, 1, f->k_t, LANES, panel_t, rows, n, s->hs, 0);
        softmax_rows(f->p, lse + first, s, first, rows, n);
        multiply(f->out, s->width, f->p, s->scores, 1, f->v, LANES, panel, rows, s->width, first + rows, 0);
        store(dt, out, out_at + (size_t)first * s->C, s->C, f->out, rows, s->hs, s->width);
    }
}

static void backward_head(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out, const float *lse, int b, int h,
                          const Shape *s, const Buffers *f) {
    size_t stride = 3 * (size_t)s->C, q_at = (size_t)b * s->T * stride + (size_t)h * s->hs;
    size_t k_at = q_at + s->C, v_at = k_at + s->C, out_at = (size_t)b * s->T * s->C + (size_t)h * s->hs;
    size_t panel = (size_t)s->keys * LANES, panel_t = (size_t)s->width * LANES;
    load(f->rows, dt, qkv, k_at, stride, s->T, s->hs, s->width);
    pack(f->k, f->rows, s->keys, s->width);
    pack_transposed(f->k_t, f->rows, s->keys, s->width);
    load(f->rows, dt, qkv, v_at, stride, s->T, s->hs, s->width);
    pack_transposed(f->v_t, f->rows, s->keys, s->width);
    memset(f->dk, 0, (size_t)s->keys * s->width * sizeof(float));
    memset(f->dv, 0, (size_t)s->keys * s->width * sizeof(float));
    for (int first = 0; first < s->T; first += QUERIES) {
        int rows = MIN(QUERIES, s->T - first), end = first + rows, n = padded(end);
        load(f->q, dt, qkv, q_at + first * stride, stride, rows, s->hs, s->width);
        load(f->dout, dt, dout, out_at + (size_t)first * s->C, s->C, rows, s->hs, s->width);
        load(f->out, dt, out, out_at + (size_t)first * s->C, s->C, rows, s->hs, s->width);
        multiply(f->p, s->scores, f->q, s->width, 1, f->k_t, LANES, panel_t, rows, n, s->hs, 0);
        multiply(f->dp, s->scores, f->dout, s->width, 1, f->v_t, LANES, panel_t, rows, n, s->hs, 0);
        softmax_backward_rows(f->p, f->dp, lse + first, f->dout, f->out, s, first, rows, n);
        multiply(f->dv, s->width, f->p, 1, s->scores, f->dout, s->width, LANES, end, s->width, rows, 1);
        multiply(f->dk, s->width, f->dp, 1, s->scores, f->q, s->width, LANES, end, s->width, rows, 1);
        multiply(f->out, s->width, f->dp, s->scores, 1, f->k, LANES, panel, rows, s->width, end, 0);     // dq
        store(dt, dqkv, q_at + first * stride, stride, f->out, rows, s->hs, s->width);
    }
    store(dt, dqkv, k_at, stride, f->dk, s->T, s->hs, s->width);
    store(dt, dqkv, v_at, stride, f->dv, s->T, s->hs, s->width);
}

// ----------------------------------------------------------------------------

int attention_forward(gpt2_dtype dt, void *out, float *lse, const void *qkv, int B, int T, int C, int NH) {
    Shape s = shape_of(T, C, NH);
    #pragma omp parallel for schedule(static) num_threads(layers_threads())
    for (int bh = 0; bh < B * NH; bh++) {
        Buffers f = buffers_at(thread_scratch(omp_get_thread_num()), &s);
        forward_head(dt, out, lse + (size_t)bh * T, qkv, bh / NH, bh % NH, &s, &f);
    }
    return 0;
}

int attention_backward(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out, const float *lse,
                       int B, int T, int C, int NH) {
    Shape s = shape_of(T, C, NH);
    #pragma omp parallel for schedule(static) num_threads(layers_threads())
    for (int bh = 0; bh < B * NH; bh++) {
        Buffers f = buffers_at(thread_scratch(omp_get_thread_num()), &s);
        backward_head(dt, dqkv, dout, qkv, out, lse + (size_t)bh * T, bh / NH, bh % NH, &s, &f);
    }
    return 0;
}
