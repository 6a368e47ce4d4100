// Causal attention, one head of one sequence at a time: each block of query rows attends to the keys up to
// the block's end. A head's queries, keys and values are widened into fp32 scratch once; the matmuls are
// small and stay in L2. Backward recomputes the probabilities from each row's lse. Rows and columns of
// scratch are padded so that kernels have no tails; padding does not affect results. CPUs with bf16 dot
// products use separate kernels for bf16 at GPT-2's head sizes: see "bf16 pairs".
#include <math.h>
#include <omp.h>
#include <string.h>
#include "cpu.h"

enum { QUERIES = 16 };                       // queries per block
enum { ROWS = 4, LANES = 16, DEPTH = 256 };  // the kernel's tile: ROWS x LANES sums stay in registers
enum { PAIR_QUERIES = 32, PAIR_ROWS = 8, PAIR_LANES = 32 };  // block and tile of the kernels for pairs

typedef struct {
    int T, C, NH, hs;
    int pairs;   // 1: uses the kernels for pairs
    int width;   // hs padded: columns of the row-major buffers
    int keys;    // T padded: columns of the transposed buffers
    int scores;  // row stride of scores: not a multiple of a page, so that columns spread over cache sets
    float scale;
} Shape;

static int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }
static int padded(int n) { return round_up(n, LANES); }

static Shape shape_of(int T, int C, int NH, int pairs) {
    Shape s = { .T = T, .C = C, .NH = NH, .hs = C / NH, .pairs = pairs };
    s.width = padded(s.hs);
    s.keys = round_up(T, pairs ? PAIR_LANES : LANES);
    s.scores = s.keys + LANES;
    s.scale = 1.0f / sqrtf((float)s.hs);
    return s;
}

// The offsets of one head of one sequence in qkv and in out, and the distance between its rows in qkv.
typedef struct {
    size_t q, k, v, out, stride;
} Head;

static Head head_at(const Shape *s, int bh) {
    size_t stride = 3 * (size_t)s->C, row = (size_t)(bh / s->NH) * s->T, at = (size_t)(bh % s->NH) * s->hs;
    size_t q = row * stride + at;
    return (Head){ q, q + s->C, q + 2 * (size_t)s->C, row * s->C + at, stride };
}

// One of several buffers laid out consecutively in a thread's scratch.
typedef struct {
    void *pointer;  // address of the buffer's pointer
    size_t floats;
} Part;

// Sets the buffers' pointers and returns the total number of floats.
static size_t lay_out(const Part *parts, size_t n, float *memory) {
    size_t used = 0;
    for (const Part *p = parts; p < parts + n; p++) {
        void *part = memory ? memory + used : NULL;
        memcpy(p->pointer, &part, sizeof part);
        used += p->floats;
    }
    return used;
}

typedef struct {
    float *q, *dout, *out;     // (QUERIES, width)
    float *rows, *dk, *dv;     // (keys, width); rows: keys or values being packed into panels
    float *k, *v, *k_t, *v_t;  // panels of (keys, width) and of (width, keys)
    float *p, *dp;             // (QUERIES, scores)
} Buffers;

static size_t buffers_at(Buffers *f, float *memory, const Shape *s) {
    size_t block = (size_t)QUERIES * s->width, head = (size_t)s->keys * s->width;
    size_t scores = (size_t)QUERIES * s->scores;
    const Part parts[] = { { &f->q, block },  { &f->dout, block }, { &f->out, block }, { &f->rows, head },
                           { &f->dk, head },  { &f->dv, head },    { &f->k, head },    { &f->v, head },
                           { &f->k_t, head }, { &f->v_t, head },   { &f->p, scores },  { &f->dp, scores } };
    return lay_out(parts, sizeof parts / sizeof *parts, memory);
}

// -------- kernels

// c (ROWS, LANES) = or += a (ROWS, K) @ b (K, LANES); element (i, k) of a is at a[i*a_row + k*a_col]
INLINE void multiply_tile(float *restrict c, size_t c_row, const float *restrict a, size_t a_row,
                          size_t a_col, const float *restrict b, size_t b_row, int K, int add) {
    float sums[ROWS][LANES] = { { 0 } };
    for (int k = 0; k < K; k++) {
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; i++) {
            float x = a[i * a_row + k * a_col];
#pragma omp simd
            for (int j = 0; j < LANES; j++) sums[i][j] += x * b[k * b_row + j];
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < ROWS; i++) {
        float *out = c + i * c_row;
#pragma omp simd
        for (int j = 0; j < LANES; j++) out[j] = add ? out[j] + sums[i][j] : sums[i][j];
    }
}

// c (M, N) = or += a (M, K) @ b (K, N); M is rounded up to ROWS and N to LANES. Columns j*LANES.. of b start
// at b + j*b_panel. Long sums are split into steps of DEPTH, so that each step's part of a panel stays in L1
// for all rows.
VECTOR static void multiply(float *c, size_t c_row, const float *a, size_t a_row, size_t a_col,
                            const float *b, size_t b_row, size_t b_panel, int M, int N, int K, int add) {
    for (int k = 0; k < K; k += DEPTH) {
        for (int j = 0; j < N; j += LANES) {
            for (int i = 0; i < M; i += ROWS) {
                multiply_tile(c + i * c_row + j, c_row, a + i * a_row + k * a_col, a_row, a_col,
                              b + j / LANES * b_panel + k * b_row, b_row, MIN(K - k, DEPTH), add || k > 0);
            }
        }
    }
}

// dst (rows, width) = rows of hs elements of x, at distance `stride`
VECTOR static void load(float *dst, gpt2_dtype dt, const void *x, size_t at, size_t stride, int rows, int hs,
                        int width) {
    for (int r = 0; r < rows; r++) {
        float *row = dst + (size_t)r * width;
        const float *values = view(dt, x, at + r * stride, hs, row);
        if (values != row) memcpy(row, values, hs * sizeof(float));
    }
}

VECTOR static void store(gpt2_dtype dt, void *x, size_t at, size_t stride, const float *src, int rows, int hs,
                         int width) {
    for (int r = 0; r < rows; r++) {
        const float *row = src + (size_t)r * width;
        if (dt == GPT2_F32) memcpy((float *)x + at + r * stride, row, hs * sizeof(float));
        commit(dt, x, at + r * stride, hs, row);
    }
}

// panels of b for multiply: dst (width/LANES, keys, LANES) from src (keys, width)
VECTOR static void pack(float *restrict dst, const float *restrict src, int keys, int width) {
    for (int r = 0; r < keys; r++) {
        for (int c = 0; c < width; c += LANES)
            for (int j = 0; j < LANES; j++)
                dst[(size_t)c * keys + r * LANES + j] = src[(size_t)r * width + c + j];
    }
}

// The same panels of src transposed: dst (keys/LANES, width, LANES).
VECTOR static void pack_transposed(float *restrict dst, const float *restrict src, int keys, int width) {
    for (int r = 0; r < keys; r += LANES) {
        for (int c = 0; c < width; c++)
            for (int j = 0; j < LANES; j++)
                dst[(size_t)r * width + c * LANES + j] = src[(size_t)(r + j) * width + c];
    }
}

// Turns rows of scores, of queries first..first+rows-1, into probabilities over keys 0..query. Later keys up
// to n get 0. lse may be NULL.
VECTOR static void softmax_rows(float *p, float *lse, const Shape *s, int first, int rows, int n) {
    float scale = s->scale;
    for (int r = 0; r < rows; r++) {
        float *row = p + (size_t)r * s->scores, top = -INFINITY, sum = 0;
        int seen = first + r + 1;
#pragma omp simd reduction(max : top)
        for (int i = 0; i < seen; i++) top = row[i] > top ? row[i] : top;
        int whole = padded(seen);  // whole vectors: a partial one costs as much
#pragma omp simd
        for (int i = 0; i < whole; i++) row[i] = exp_f32(scale * (row[i] - top));
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < seen; i++) sum += row[i];
        float inverse = 1.0f / sum;
#pragma omp simd
        for (int i = 0; i < whole; i++) row[i] *= inverse;
        memset(row + seen, 0, (n - seen) * sizeof(float));
        // cppcheck-suppress invalidFunctionArg ; sum is at least 1, because a row sees itself
        if (lse) lse[r] = scale * top + logf(sum);
    }
}

// Backward of the same rows: turns the scores in p into probabilities, and dp from the gradient of the
// probabilities into that of the unscaled scores, p (dp - sum of p dp) scale. The sum over keys equals the
// sum of dout * out over the hs columns.
VECTOR static void softmax_backward_rows(float *p, float *dp, const float *lse, const float *dout,
                                         const float *out, const Shape *s, int first, int rows, int n) {
    float scale = s->scale;
    for (int r = 0; r < rows; r++) {
        float *row = p + (size_t)r * s->scores, *drow = dp + (size_t)r * s->scores, dot = 0, l = lse[r];
        const float *y = out + (size_t)r * s->width, *dy = dout + (size_t)r * s->width;
        int seen = first + r + 1;
#pragma omp simd reduction(+ : dot)
        for (int c = 0; c < s->hs; c++) dot += dy[c] * y[c];
        int whole = padded(seen);  // whole vectors: a partial one costs as much
#pragma omp simd
        for (int i = 0; i < whole; i++) {
            row[i] = exp_f32(scale * row[i] - l);
            drow[i] = row[i] * (drow[i] - dot) * scale;
        }
        memset(row + seen, 0, (n - seen) * sizeof(float));
        memset(drow + seen, 0, (n - seen) * sizeof(float));
    }
}

// -------- one head of one sequence

// A head's keys and values, in the layout that multiply expects.
typedef struct {
    const float *k_t, *v;
    size_t k_panel, v_row, v_panel;
} Keys;

// Attends from positions first..first+n-1, each to the keys up to its own position. The first query is at
// qkv[q_at], and its output goes to out[out_at]. A query's bits do not depend on the other queries.
static void attend(gpt2_dtype dt, void *out, size_t out_at, float *lse, const void *qkv, size_t q_at,
                   int first, int n, const Keys *keys, const Shape *s, const Buffers *f) {
    size_t stride = 3 * (size_t)s->C;
    for (int i = 0; i < n; i += QUERIES) {
        int rows = MIN(QUERIES, n - i), seen = first + i + rows, columns = padded(seen);
        load(f->q, dt, qkv, q_at + i * stride, stride, rows, s->hs, s->width);
        multiply(f->p, s->scores, f->q, s->width, 1, keys->k_t, LANES, keys->k_panel, rows, columns, s->hs,
                 0);
        softmax_rows(f->p, lse ? lse + i : NULL, s, first + i, rows, columns);
        multiply(f->out, s->width, f->p, s->scores, 1, keys->v, keys->v_row, keys->v_panel, rows, s->width,
                 seen, 0);
        store(dt, out, out_at + (size_t)i * s->C, s->C, f->out, rows, s->hs, s->width);
    }
}

static void forward_head(gpt2_dtype dt, void *out, float *lse, const void *qkv, int bh, const Shape *s,
                         float *memory) {
    const Head at = head_at(s, bh);
    Buffers f;
    buffers_at(&f, memory, s);
    load(f.rows, dt, qkv, at.k, at.stride, s->T, s->hs, s->width);
    pack_transposed(f.k_t, f.rows, s->keys, s->width);
    load(f.rows, dt, qkv, at.v, at.stride, s->T, s->hs, s->width);
    pack(f.v, f.rows, s->keys, s->width);
    const Keys keys = { f.k_t, f.v, (size_t)s->width * LANES, LANES, (size_t)s->keys * LANES };
    attend(dt, out, at.out, lse, qkv, at.q, 0, s->T, &keys, s, &f);
}

static void backward_head(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out,
                          const float *lse, int bh, const Shape *s, float *memory) {
    const Head at = head_at(s, bh);
    Buffers buffers, *f = &buffers;
    buffers_at(f, memory, s);
    size_t panel = (size_t)s->keys * LANES, panel_t = (size_t)s->width * LANES;
    load(f->rows, dt, qkv, at.k, at.stride, s->T, s->hs, s->width);
    pack(f->k, f->rows, s->keys, s->width);
    pack_transposed(f->k_t, f->rows, s->keys, s->width);
    load(f->rows, dt, qkv, at.v, at.stride, s->T, s->hs, s->width);
    pack_transposed(f->v_t, f->rows, s->keys, s->width);
    memset(f->dk, 0, (size_t)s->keys * s->width * sizeof(float));
    memset(f->dv, 0, (size_t)s->keys * s->width * sizeof(float));
    for (int first = 0; first < s->T; first += QUERIES) {
        int rows = MIN(QUERIES, s->T - first), end = first + rows, n = padded(end);
        size_t q_at = at.q + first * at.stride, out_at = at.out + (size_t)first * s->C;
        load(f->q, dt, qkv, q_at, at.stride, rows, s->hs, s->width);
        load(f->dout, dt, dout, out_at, s->C, rows, s->hs, s->width);
        load(f->out, dt, out, out_at, s->C, rows, s->hs, s->width);
        multiply(f->p, s->scores, f->q, s->width, 1, f->k_t, LANES, panel_t, rows, n, s->hs, 0);
        multiply(f->dp, s->scores, f->dout, s->width, 1, f->v_t, LANES, panel_t, rows, n, s->hs, 0);
        softmax_backward_rows(f->p, f->dp, lse + first, f->dout, f->out, s, first, rows, n);
        multiply(f->dv, s->width, f->p, 1, s->scores, f->dout, s->width, LANES, end, s->width, rows, 1);
        multiply(f->dk, s->width, f->dp, 1, s->scores, f->q, s->width, LANES, end, s->width, rows, 1);
        multiply(f->out, s->width, f->dp, s->scores, 1, f->k, LANES, panel, rows, s->width, end, 0);  // dq
        store(dt, dqkv, q_at, at.stride, f->out, rows, s->hs, s->width);
    }
    store(dt, dqkv, at.k, at.stride, f->dk, s->T, s->hs, s->width);
    store(dt, dqkv, at.v, at.stride, f->dv, s->T, s->hs, s->width);
}

// -------- bf16 pairs
// vdpbf16ps adds the products of two adjacent bf16 to an fp32 sum, so depth is stored in pairs of 32 bits.
// Queries, keys, values and dout are multiplied without conversion. Backward rounds probabilities and score
// gradients to bf16, as fused GPU kernels do. Forward multiplies values by fp32 probabilities, so that out is
// rounded once.

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#include <immintrin.h>
#define PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define PAIRS_INLINE PAIRS INLINE

// Two bf16; or one fp32, for a kernel whose argument `pairs` is 0.
typedef uint32_t pair __attribute__((may_alias));

typedef struct {
    pair *rows;                  // (keys, hs/2) keys or values, as in memory
    pair *k_t, *v_t;             // panels of (hs/2, keys): pairs along hs
    pair *k;                     // (keys/2, hs): pairs of two keys
    pair *q, *dout;              // (PAIR_QUERIES, hs/2)
    pair *q_pairs, *dout_pairs;  // (PAIR_QUERIES/2, hs): pairs of two queries
    pair *p_pairs, *dp_pairs;    // (PAIR_QUERIES/2, scores): the same
    pair *dp_rows;               // (PAIR_QUERIES, scores/2): pairs of two keys
    float *p, *dp;               // (PAIR_QUERIES, scores)
    float *v, *dk, *dv;          // (keys, hs); forward needs v, backward the others
    float *out, *dout_f32;       // (PAIR_QUERIES, hs)
} PairBuffers;

static int pairs_fit(gpt2_dtype dt, int C, int NH) {
    return dt == GPT2_BF16 && C / NH % PAIR_LANES == 0 && cpu_has_dtype(GPT2_BF16);
}

static size_t pair_buffers_at(PairBuffers *f, float *memory, const Shape *s) {
    size_t head = (size_t)s->keys * s->hs, block = (size_t)PAIR_QUERIES * s->hs;
    size_t scores = (size_t)PAIR_QUERIES * s->scores;
    const Part parts[] = { { &f->rows, head / 2 },
                           { &f->k_t, head / 2 },
                           { &f->v_t, head / 2 },
                           { &f->k, head / 2 },
                           { &f->q, block / 2 },
                           { &f->dout, block / 2 },
                           { &f->q_pairs, block / 2 },
                           { &f->dout_pairs, block / 2 },
                           { &f->p_pairs, scores / 2 },
                           { &f->dp_pairs, scores / 2 },
                           { &f->dp_rows, scores / 2 },
                           { &f->p, scores },
                           { &f->dp, scores },
                           { &f->dk, head },
                           { &f->dv, head },
                           { &f->out, block },
                           { &f->dout_f32, block } };
    size_t floats = lay_out(parts, sizeof parts / sizeof *parts, memory);
    f->v = f->dv;
    return floats;
}

// c (PAIR_ROWS, PAIR_LANES) = or += a @ b; element (i, k) of a is at a[i*a_row + k*a_col], row k of b at b +
// k*b_row
PAIRS_INLINE void multiply_pairs_tile(int pairs, float *c, size_t c_row, const pair *a, size_t a_row,
                                      size_t a_col, const pair *b, size_t b_row, int K, int add) {
    __m512 sums[PAIR_ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < PAIR_ROWS; i++) {
        sums[i][0] = add ? _mm512_loadu_ps(c + i * c_row) : _mm512_setzero_ps();
        sums[i][1] = add ? _mm512_loadu_ps(c + i * c_row + 16) : _mm512_setzero_ps();
    }
    for (int k = 0; k < K; k++) {
        __m512i b0 = _mm512_loadu_si512(b + k * b_row), b1 = _mm512_loadu_si512(b + k * b_row + 16);
#pragma GCC unroll 8
        for (int i = 0; i < PAIR_ROWS; i++) {
            __m512i x = _mm512_set1_epi32((int)a[i * a_row + k * a_col]);
            if (pairs) {
                sums[i][0] = _mm512_dpbf16_ps(sums[i][0], (__m512bh)x, (__m512bh)b0);
                sums[i][1] = _mm512_dpbf16_ps(sums[i][1], (__m512bh)x, (__m512bh)b1);
            } else {
                sums[i][0] = _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(b0), sums[i][0]);
                sums[i][1] = _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(b1), sums[i][1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < PAIR_ROWS; i++) {
        _mm512_storeu_ps(c + i * c_row, sums[i][0]);
        _mm512_storeu_ps(c + i * c_row + 16, sums[i][1]);
    }
}

// c (M, N) = or += a (M, K) @ b (K, N), M and N multiples of the tile's. Columns j*PAIR_LANES.. of b start at
// b + j*b_panel.
PAIRS static void multiply_pairs(int pairs, float *c, size_t c_row, const void *a, size_t a_row, size_t a_col,
                                 const void *b, size_t b_row, size_t b_panel, int M, int N, int K, int add) {
    for (int j = 0; j < N; j += PAIR_LANES) {
        const pair *panel = (const pair *)b + j / PAIR_LANES * b_panel;
        for (int i = 0; i < M; i += PAIR_ROWS) {
            float *out = c + i * c_row + j;
            const pair *rows = (const pair *)a + i * a_row;
            if (pairs)  // passes a constant, so that the compiler specialises the tile
                multiply_pairs_tile(1, out, c_row, rows, a_row, a_col, panel, b_row, K, add);
            else
                multiply_pairs_tile(0, out, c_row, rows, a_row, a_col, panel, b_row, K, add);
        }
    }
}

// dst (padded_rows, hs) = rows of hs bf16 of x, at distance `stride`, then zeros
static void copy_rows(pair *dst, const void *x, size_t at, size_t stride, int rows, int padded_rows, int hs) {
    const uint16_t *row = (const uint16_t *)x + at;
    for (int r = 0; r < rows; r++, row += stride)
        memcpy(dst + (size_t)r * hs / 2, row, hs * sizeof(uint16_t));
    memset(dst + (size_t)rows * hs / 2, 0, (size_t)(padded_rows - rows) * hs * sizeof(uint16_t));
}

// dst (rows/2, hs) from src (rows, hs) bf16: a pair is one column of two rows
PAIRS static void pair_rows(pair *restrict dst, const pair *restrict src, int rows, int hs) {
    for (int r = 0; r < rows; r += 2) {
        const uint16_t __attribute__((may_alias)) *even = (const void *)(src + (size_t)r * hs / 2),
                                                  *odd = even + hs;
        for (int c = 0; c < hs; c++) dst[(size_t)r / 2 * hs + c] = even[c] | (uint32_t)odd[c] << 16;
    }
}

// out (16, 16) = in transposed, with row strides in_row and out_row
PAIRS_INLINE void transpose_16(pair *out, size_t out_row, const pair *in, size_t in_row) {
    __m512i a[16], b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        __m512i x = _mm512_loadu_si512(in + i * in_row), y = _mm512_loadu_si512(in + (i + 1) * in_row);
        a[i] = _mm512_unpacklo_epi32(x, y);
        a[i + 1] = _mm512_unpackhi_epi32(x, y);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {  // afterwards lane l of b[i + c] is column 4l + c of rows i..i+3
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512i even0 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88),
                even1 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
        __m512i odd0 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd),
                odd1 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
        _mm512_storeu_si512(out + c * out_row, _mm512_shuffle_i32x4(even0, even1, 0x88));
        _mm512_storeu_si512(out + (4 + c) * out_row, _mm512_shuffle_i32x4(odd0, odd1, 0x88));
        _mm512_storeu_si512(out + (8 + c) * out_row, _mm512_shuffle_i32x4(even0, even1, 0xdd));
        _mm512_storeu_si512(out + (12 + c) * out_row, _mm512_shuffle_i32x4(odd0, odd1, 0xdd));
    }
}

// panels: dst (keys/PAIR_LANES, hs/2, PAIR_LANES) from src (keys, hs/2)
PAIRS static void transpose_pairs(pair *dst, const pair *src, int keys, int hs) {
    size_t depth = (size_t)hs / 2;
    for (int r = 0; r < keys; r += 16) {
        for (size_t c = 0; c < depth; c += 16) {
            transpose_16(dst + r / PAIR_LANES * depth * PAIR_LANES + c * PAIR_LANES + r % PAIR_LANES,
                         PAIR_LANES, src + r * depth + c, depth);
        }
    }
}

// x (PAIR_QUERIES, scores), n columns, rounded to bf16: pairs of two queries and, unless rows is NULL, pairs
// of two keys
PAIRS static void round_scores(pair *pairs, pair *rows, const float *x, size_t scores, int n) {
    for (int r = 0; r < PAIR_QUERIES; r += 2) {
        const float *even = x + r * scores, *odd = even + scores;
        for (int i = 0; i < n; i += 16) {
            __m512i e = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(even + i)));
            __m512i o = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(odd + i)));
            _mm512_storeu_si512(pairs + r / 2 * scores + i, _mm512_or_si512(e, _mm512_slli_epi32(o, 16)));
            if (rows) {
                _mm256_storeu_si256((__m256i *)(rows + (r * scores + i) / 2), _mm512_cvtepi32_epi16(e));
                _mm256_storeu_si256((__m256i *)(rows + ((r + 1) * scores + i) / 2), _mm512_cvtepi32_epi16(o));
            }
        }
    }
}

// Like attend: queries of positions first..first+n-1 against panels of keys and rows of values.
static void attend_pairs(void *out, size_t out_at, float *lse, const void *qkv, size_t q_at, int first, int n,
                         const pair *k_t, const Shape *s, const PairBuffers *f) {
    size_t stride = 3 * (size_t)s->C, depth = s->hs / 2, panel = depth * PAIR_LANES;
    for (int i = 0; i < n; i += PAIR_QUERIES) {
        int rows = MIN(PAIR_QUERIES, n - i), whole = round_up(rows, PAIR_ROWS);
        int columns = round_up(first + i + rows, PAIR_LANES);
        copy_rows(f->q, qkv, q_at + i * stride, stride, rows, whole, s->hs);
        multiply_pairs(1, f->p, s->scores, f->q, depth, 1, k_t, PAIR_LANES, panel, whole, columns, (int)depth,
                       0);
        softmax_rows(f->p, lse ? lse + i : NULL, s, first + i, rows, columns);
        for (int r = 0; r < rows; r += PAIR_ROWS) {  // a query sees no later key
            multiply_pairs(0, f->out + r * s->hs, s->hs, f->p + r * (size_t)s->scores, s->scores, 1, f->v,
                           s->hs, PAIR_LANES, PAIR_ROWS, s->hs, first + i + MIN(r + PAIR_ROWS, rows), 0);
        }
        store(GPT2_BF16, out, out_at + (size_t)i * s->C, s->C, f->out, rows, s->hs, s->hs);
    }
}

static void forward_head_pairs(gpt2_dtype dt, void *out, float *lse, const void *qkv, int bh, const Shape *s,
                               float *memory) {
    const Head at = head_at(s, bh);
    PairBuffers f;
    pair_buffers_at(&f, memory, s);
    copy_rows(f.rows, qkv, at.k, at.stride, s->T, s->keys, s->hs);
    transpose_pairs(f.k_t, f.rows, s->keys, s->hs);
    copy_rows(f.rows, qkv, at.v, at.stride, s->T, s->keys, s->hs);
    load(f.v, dt, f.rows, 0, s->hs, s->T, s->hs, s->hs);
    attend_pairs(out, at.out, lse, qkv, at.q, 0, s->T, f.k_t, s, &f);
}

static void cached_head_pairs(gpt2_dtype dt, void *out, size_t out_at, const void *k, const void *v,
                              const void *qkv, size_t q_at, const layers_span *span, const Shape *s,
                              float *memory) {
    PairBuffers f;
    pair_buffers_at(&f, memory, s);
    load(f.v, dt, v, 0, s->hs, span->first + span->n, s->hs, s->hs);
    attend_pairs(out, out_at, NULL, qkv, q_at, span->first, span->n, k, s, &f);
}

static void backward_head_pairs(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out,
                                const float *lse, int bh, const Shape *s, float *memory) {
    const Head at = head_at(s, bh);
    PairBuffers buffers, *f = &buffers;
    pair_buffers_at(f, memory, s);
    size_t hs = s->hs, depth = hs / 2, panel = depth * PAIR_LANES, scores = s->scores;
    copy_rows(f->rows, qkv, at.v, at.stride, s->T, s->keys, s->hs);
    transpose_pairs(f->v_t, f->rows, s->keys, s->hs);
    copy_rows(f->rows, qkv, at.k, at.stride, s->T, s->keys, s->hs);
    transpose_pairs(f->k_t, f->rows, s->keys, s->hs);
    pair_rows(f->k, f->rows, s->keys, s->hs);
    memset(f->dk, 0, s->keys * hs * sizeof(float));
    memset(f->dv, 0, s->keys * hs * sizeof(float));
    for (int first = 0; first < s->T; first += PAIR_QUERIES) {
        int rows = MIN(PAIR_QUERIES, s->T - first), n = first + PAIR_QUERIES;
        size_t q_at = at.q + first * at.stride, out_at = at.out + (size_t)first * s->C;
        size_t left = (PAIR_QUERIES - rows) * scores * sizeof(float);
        copy_rows(f->q, qkv, q_at, at.stride, rows, PAIR_QUERIES, s->hs);
        copy_rows(f->dout, dout, out_at, s->C, rows, PAIR_QUERIES, s->hs);
        pair_rows(f->q_pairs, f->q, PAIR_QUERIES, s->hs);
        pair_rows(f->dout_pairs, f->dout, PAIR_QUERIES, s->hs);
        load(f->dout_f32, dt, f->dout, 0, hs, rows, s->hs, s->hs);
        load(f->out, dt, out, out_at, s->C, rows, s->hs, s->hs);
        multiply_pairs(1, f->p, scores, f->q, depth, 1, f->k_t, PAIR_LANES, panel, PAIR_QUERIES, n,
                       (int)depth, 0);
        multiply_pairs(1, f->dp, scores, f->dout, depth, 1, f->v_t, PAIR_LANES, panel, PAIR_QUERIES, n,
                       (int)depth, 0);
        softmax_backward_rows(f->p, f->dp, lse + first, f->dout_f32, f->out, s, first, rows, n);
        memset(f->p + rows * scores, 0, left);
        memset(f->dp + rows * scores, 0, left);
        round_scores(f->p_pairs, NULL, f->p, scores, n);
        round_scores(f->dp_pairs, f->dp_rows, f->dp, scores, n);
        multiply_pairs(1, f->dv, hs, f->p_pairs, 1, scores, f->dout_pairs, hs, PAIR_LANES, n, s->hs,
                       PAIR_QUERIES / 2, 1);
        multiply_pairs(1, f->dk, hs, f->dp_pairs, 1, scores, f->q_pairs, hs, PAIR_LANES, n, s->hs,
                       PAIR_QUERIES / 2, 1);
        multiply_pairs(1, f->out, hs, f->dp_rows, scores / 2, 1, f->k, hs, PAIR_LANES, PAIR_QUERIES, s->hs,
                       n / 2, 0);  // dq
        store(dt, dqkv, q_at, at.stride, f->out, rows, s->hs, s->hs);
    }
    store(dt, dqkv, at.k, at.stride, f->dk, s->T, s->hs, s->hs);
    store(dt, dqkv, at.v, at.stride, f->dv, s->T, s->hs, s->hs);
}

static size_t pair_scratch_floats(int T, int C, int NH) {
    PairBuffers f;
    Shape s = shape_of(T, C, NH, 1);
    return pair_buffers_at(&f, NULL, &s);
}
#else
#define pairs_fit(dt, C, NH) 0
#define pair_scratch_floats(T, C, NH) 0
#define forward_head_pairs forward_head
#define cached_head_pairs cached_head
#define backward_head_pairs backward_head
#endif

// -------- over a cache
// Keys are stored in the panels that multiply expects, (room/lanes, hs/depth, lanes, depth), where depth is
// 2 for pairs; values are stored as rows, (room, hs). Each row's room is a multiple of LAYERS_CACHE_STEP.

// Returns the index of a key's element c.
INLINE size_t cached_at(int position, int c, int hs, int lanes, int depth) {
    size_t panel = (size_t)(position / lanes) * (hs / depth) + c / depth;
    return (panel * lanes + position % lanes) * depth + c % depth;
}

// Stores a span's keys and values in the cache of its row and head.
static void keep(gpt2_dtype dt, void *k, void *v, const void *qkv, size_t k_at, const layers_span *span,
                 const Shape *s) {
    int lanes = s->pairs ? PAIR_LANES : LANES, depth = s->pairs ? 2 : 1;
    size_t size = gpt2_dtype_size(dt), row = s->hs * size;
    for (int i = 0; i < span->n; i++, k_at += 3 * (size_t)s->C) {
        const char *key = (const char *)qkv + k_at * size, *value = key + s->C * size;
        memcpy((char *)v + (span->first + i) * row, value, row);
        for (int c = 0; c < s->hs; c++) {
            size_t at = cached_at(span->first + i, c, s->hs, lanes, depth);
            if (dt == GPT2_F32)
                ((float *)k)[at] = ((const float *)key)[c];
            else
                ((uint16_t *)k)[at] = ((const uint16_t *)key)[c];
        }
    }
}

// Returns n elements of the cache in fp32: the cache itself, or buf with the widened values.
VECTOR static const float *widened(gpt2_dtype dt, const void *x, size_t n, float *buf) {
    return view(dt, x, 0, n, buf);
}

static void cached_head(gpt2_dtype dt, void *out, size_t out_at, const void *k, const void *v,
                        const void *qkv, size_t q_at, const layers_span *span, const Shape *s,
                        float *memory) {
    size_t seen = span->first + span->n, hs = s->hs;
    Keys keys = { .k_panel = hs * LANES, .v_row = s->width, .v_panel = LANES };
    Buffers f;
    buffers_at(&f, memory, s);
    keys.k_t = widened(dt, k, padded((int)seen) * hs, f.k_t);
    if (s->width == s->hs) {
        keys.v = widened(dt, v, seen * hs, f.v);
    } else {
        load(f.v, dt, v, 0, hs, (int)seen, s->hs, s->width);
        keys.v = f.v;
    }
    attend(dt, out, out_at, NULL, qkv, q_at, span->first, span->n, &keys, s, &f);
}

int cpu_attention_cached(gpt2_dtype dt, void *out, void *cache, const void *qkv, const layers_span *spans,
                         int n_spans, int C, int NH) {
    const size_t stride = 3 * (size_t)C, size = gpt2_dtype_size(dt);
    int pairs = pairs_fit(dt, C, NH);
#pragma omp parallel for schedule(dynamic) num_threads(layers_threads())
    for (int i = 0; i < n_spans * NH; i++) {
        const layers_span *span = &spans[i / NH];
        const Shape s = shape_of(span->room, C, NH, pairs);
        int h = i % NH;
        size_t head = (size_t)span->room * s.hs, row = 2 * (size_t)span->begin * C;
        char *k = (char *)cache + (row + 2 * h * head) * size, *v = k + head * size;
        size_t q_at = span->at * stride + (size_t)h * s.hs, out_at = (size_t)span->at * C + (size_t)h * s.hs;
        keep(dt, k, v, qkv, q_at + C, span, &s);
        (pairs ? cached_head_pairs : cached_head)(dt, out, out_at, k, v, qkv, q_at, span, &s,
                                                  thread_scratch(omp_get_thread_num()));
    }
    return 0;
}

// --------

size_t attention_scratch_floats(int T, int C, int NH) {
    Buffers f;
    T = layers_cache_positions(T);
    const Shape s = shape_of(T, C, NH, 0);
    return MAX(buffers_at(&f, NULL, &s), pair_scratch_floats(T, C, NH));
}

int cpu_attention_forward(gpt2_dtype dt, void *out, float *lse, const void *qkv, int B, int T, int C,
                          int NH) {
    const Shape s = shape_of(T, C, NH, pairs_fit(dt, C, NH));
#pragma omp parallel for schedule(static) num_threads(layers_threads())
    for (int bh = 0; bh < B * NH; bh++)
        (s.pairs ? forward_head_pairs : forward_head)(dt, out, lse + (size_t)bh * T, qkv, bh, &s,
                                                      thread_scratch(omp_get_thread_num()));
    return 0;
}

int cpu_attention_backward(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out,
                           const float *lse, int B, int T, int C, int NH) {
    const Shape s = shape_of(T, C, NH, pairs_fit(dt, C, NH));
#pragma omp parallel for schedule(static) num_threads(layers_threads())
    for (int bh = 0; bh < B * NH; bh++)
        (s.pairs ? backward_head_pairs : backward_head)(dt, dqkv, dout, qkv, out, lse + (size_t)bh * T, bh,
                                                        &s, thread_scratch(omp_get_thread_num()));
    return 0;
}
