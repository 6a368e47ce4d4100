// CUDA layers that work row by row or element by element: layernorm, gelu, and the gradients of biases. All
// are memory-bound: each load is 16 bytes, rows stay in registers between passes, and each lane has several
// loads in flight.
#include "cuda.h"

enum { ROW_THREADS = 128, ROW_WARPS = ROW_THREADS / WARP };

// -------- element by element

// gelu(x) = x s(x) and its slope = s + x s', where s = 1 / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3):
// the tanh form with half the work
__device__ static inline float gelu_sigmoid(float x) {
    const float scale = 0.7978845608f, cube = 0.044715f;
    return fast_reciprocal(1.0f + fast_exp(-2.0f * scale * x * (1.0f + cube * x * x)));
}

struct Gelu {
    enum { INPUTS = 1 };
    static __device__ float of(float x, float) { return x * gelu_sigmoid(x); }
};

struct GeluBackward {
    enum { INPUTS = 2 };
    static __device__ float of(float x, float dout) {
        const float scale = 0.7978845608f, cube = 0.044715f;
        // Beyond +-10 the slope is 0 or 1, and squares could overflow.
        float v = fminf(fmaxf(x, -10.0f), 10.0f);
        float s = gelu_sigmoid(v);
        float slope = s + v * s * (1.0f - s) * (2.0f * scale) * (1.0f + 3.0f * cube * v * v);
        return dout * (x == x ? slope : x);  // fmaxf drops a NaN
    }
};

template <class T, class Op>
static __global__ void elementwise_kernel(T *out, const T *a, const T *b, size_t n) {
    constexpr int W = wide<T>;
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    vec<T, W> x = load<W>(a + i), y = Op::INPUTS > 1 ? load<W>(b + i) : x, z;
#pragma unroll
    for (int k = 0; k < W; k++) z.e[k] = from_float<T>(Op::of(to_float(x, k), to_float(y, k)));
    store(out + i, z);
}

template <class T, class Op>
static int elementwise(const char *what, void *out, const void *a, const void *b, size_t n) {
    enum { THREADS = 256 };
    return launch(what, elementwise_kernel<T, Op>, blocks_for(n, THREADS * wide<T>), THREADS, (T *)out,
                  (const T *)a, (const T *)b, n);
}

int cuda_gelu_forward(gpt2_dtype dt, void *out, const void *inp, size_t n) {
    return BY_DTYPE(dt, elementwise<T, Gelu>("gelu_forward", out, inp, inp, n));
}

int cuda_gelu_backward(gpt2_dtype dt, void *dinp, const void *inp, const void *dout, size_t n) {
    return BY_DTYPE(dt, elementwise<T, GeluBackward>("gelu_backward", dinp, inp, dout, n));
}

// -------- rows
// Each row has one warp. N > 0: the row fits into N vectors of registers per lane; N == 0: each pass reads it
// again, from L1 or L2.

enum { ROW_VECTORS = 8 };  // rows of up to 4 KiB; more would not fit into a thread's registers

// Returns N for rows of C elements.
template <class T> static int vectors_a_lane(int C) {
    int n = (int)blocks_for(C, WARP * wide<T>);
    return n > ROW_VECTORS ? 0 : n;
}

// Calls f(i, c) for each vector of this lane: its i-th, which starts at channel c.
template <int W, int N, class F> __device__ inline void each_vector(int C, F f) {
    int c = threadIdx.x % WARP * W;
    if (N == 0) {
        for (; c < C; c += WARP * W) f(0, c);
    }
#pragma unroll
    for (int i = 0; i < N; i++, c += WARP * W) {
        if (c < C) f(i, c);
    }
}

// With ADD, the sum of inp1 and inp2 goes to residual first, and the rounded sum is normalised.
template <class T, int N, bool ADD> static __global__ void __launch_bounds__(ROW_THREADS)
    layernorm_forward_kernel(T *residual, T *out, float *mean, float *rstd, const T *inp1, const T *inp2,
                             const T *weight, const T *bias, int rows, int C) {
    constexpr int W = wide<T>;
    int row = blockIdx.x * ROW_WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    size_t at = (size_t)row * C;
    vec<T, W> x[N ? N : 1], y[N ? N : 1];
    if (N) each_vector<W, N>(C, [&](int i, int c) { x[i] = load<W>(inp1 + at + c); });
    if (N && ADD) each_vector<W, N>(C, [&](int i, int c) { y[i] = load<W>(inp2 + at + c); });
    if (ADD) {
        each_vector<W, N>(C, [&](int i, int c) {
            if (!N) x[i] = load<W>(inp1 + at + c), y[i] = load<W>(inp2 + at + c);
            for (int k = 0; k < W; k++) x[i].e[k] = from_float<T>(to_float(x[i], k) + to_float(y[i], k));
            store(residual + at + c, x[i]);
        });
    }
    const T *normalised = ADD ? residual : inp1;  // each lane rereads only what it has written itself
    auto vector_at = [&](int i, int c) { return N ? x[i] : load<W>(normalised + at + c); };
    float sum = 0, squares = 0;
    each_vector<W, N>(C, [&](int i, int c) {
        vec<T, W> v = vector_at(i, c);
        for (int k = 0; k < W; k++) sum += to_float(v, k);
    });
    float m = warp_sum(sum) / C;
    each_vector<W, N>(C, [&](int i, int c) {
        vec<T, W> v = vector_at(i, c);
        for (int k = 0; k < W; k++) squares += (to_float(v, k) - m) * (to_float(v, k) - m);
    });
    float s = 1.0f / sqrtf(warp_sum(squares) / C + 1e-5f);
    each_vector<W, N>(C, [&](int i, int c) {
        vec<T, W> v = vector_at(i, c), w = load<W>(weight + c), b = load<W>(bias + c);
        for (int k = 0; k < W; k++)
            v.e[k] = from_float<T>((to_float(v, k) - m) * s * to_float(w, k) + to_float(b, k));
        store(out + at + c, v);
    });
    if (threadIdx.x % WARP == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
}

template <class T, bool ADD> static int layernorm_rows(void *residual, void *out, float *mean, float *rstd,
                                                       const void *inp1, const void *inp2, const void *weight,
                                                       const void *bias, int rows, int C) {
    int n = vectors_a_lane<T>(C);
    auto kernel = n > 5   ? layernorm_forward_kernel<T, 8, ADD>
                  : n > 4 ? layernorm_forward_kernel<T, 5, ADD>
                  : n > 3 ? layernorm_forward_kernel<T, 4, ADD>
                  : n > 0 ? layernorm_forward_kernel<T, 3, ADD>
                          : layernorm_forward_kernel<T, 0, ADD>;
    return launch("layernorm_forward", kernel, blocks_for(rows, ROW_WARPS), ROW_THREADS, (T *)residual,
                  (T *)out, mean, rstd, (const T *)inp1, (const T *)inp2, (const T *)weight, (const T *)bias,
                  rows, C);
}

int cuda_layernorm_forward(gpt2_dtype dt, void *out, float *mean, float *rstd, const void *inp,
                           const void *weight, const void *bias, int BT, int C) {
    return BY_DTYPE(dt,
                    layernorm_rows<T, false>(nullptr, out, mean, rstd, inp, nullptr, weight, bias, BT, C));
}

int cuda_residual_layernorm_forward(gpt2_dtype dt, void *residual, void *out, float *mean, float *rstd,
                                    const void *inp1, const void *inp2, const void *weight, const void *bias,
                                    int BT, int C) {
    return BY_DTYPE(dt, layernorm_rows<T, true>(residual, out, mean, rstd, inp1, inp2, weight, bias, BT, C));
}

// -------- gradients of weights and biases
// Sums over all rows, in two stages. Each block leaves its sums in the scratch; a second kernel adds them in
// order and rounds once.

static struct {
    int row_blocks, column_blocks;
    size_t columns;  // of the widest layer, even if the scratch has room for more
    size_t floats;
} planned;

// Returns memory for the sums of `parts` blocks.
static float *partial_sums(size_t parts, size_t columns) {
    if (columns <= planned.columns && parts * columns <= planned.floats) return (float *)cuda_scratch();
    gpt2_fail("gradients of %zu columns, but the layers were planned for %zu: plan for this shape", columns,
              planned.columns);
    return NULL;
}

// partial (parts, columns); each kind of sum has C columns. Sums of the first kind go to a (C) and those of
// the second to b (C), or are added with `add`; those of the third go to c (C).
template <class T> static __global__ void add_partial_sums_kernel(T *a, T *b, float *c, const float *partial,
                                                                  int parts, int columns, int C, int add) {
    __shared__ float slices[WARP][WARP];
    int slice = threadIdx.x / WARP, lane = threadIdx.x % WARP, column = blockIdx.x * WARP + lane;
    float sums[1] = {};
    if (column < columns)
        add_vectors<8>(sums, slice, parts, WARP,
                       [&](int p) { return partial + (size_t)p * columns + column; });
    float sum = slices[slice][lane] = sums[0];
    __syncthreads();
    if (slice != 0 || column >= columns) return;
    for (int i = 1; i < WARP; i++) sum += slices[i][lane];
    int kind = column / C, at = column % C;
    if (kind == 2) {
        c[at] = sum;
        return;
    }
    T *x = kind ? b : a;
    x[at] = from_float<T>(add ? to_float(x[at]) + sum : sum);
}

template <class T> static int add_partial_sums(const char *what, T *a, T *b, float *c, const float *partial,
                                               int parts, int columns, int C, int add) {
    return launch(what, add_partial_sums_kernel<T>, blocks_for(columns, WARP), WARP * WARP, a, b, c, partial,
                  parts, columns, C, add);
}

// A block handles a strip of WARP * W columns; its warps, and the blocks of gridDim.y, share the rows.
// partial (gridDim.y, C) gets the sums of dout; with NORM, partial (gridDim.y, 2, C) gets those of dout times
// the normalised input first.
template <class T, bool NORM> static __global__ void __launch_bounds__(ROW_THREADS)
    column_sums_kernel(float *partial, const T *dout, const T *inp, const float *mean, const float *rstd,
                       int rows, int C) {
    constexpr int W = wide<T>;
    __shared__ float total[1 + NORM][WARP * W];
    int lane = threadIdx.x % WARP, c = (blockIdx.x * WARP + lane) * W;
    float sum[W] = {}, scaled[W] = {};
    int first = blockIdx.y * ROW_WARPS + threadIdx.x / WARP, step = gridDim.y * ROW_WARPS;
    if (c < C && !NORM)
        add_vectors<4>(sum, first, rows, step, [&](int row) { return dout + (size_t)row * C + c; });
    int end = NORM && c < C ? rows : 0;
    for (int row = first; row < end; row += step) {
        vec<T, W> dy = load<W>(dout + (size_t)row * C + c), x = load<W>(inp + (size_t)row * C + c);
        for (int k = 0; k < W; k++) {
            sum[k] += to_float(dy, k);
            scaled[k] += (to_float(x, k) - mean[row]) * rstd[row] * to_float(dy, k);
        }
    }
    add_by_turns(total[NORM], lane * W, sum);
    if (NORM) add_by_turns(total[0], lane * W, scaled);
    for (int i = threadIdx.x; i < (1 + NORM) * WARP * W; i += blockDim.x) {
        int kind = i / (WARP * W), column = blockIdx.x * WARP * W + i % (WARP * W);
        if (column < C)
            partial[((size_t)blockIdx.y * (1 + NORM) + kind) * C + column] = total[kind][i % (WARP * W)];
    }
}

// With NORM, a (C) is dweight and b (C) is dbias; without it, a is dbias and b is not used.
template <class T, bool NORM, class Sum>
static int column_sums(const char *what, Sum *a, Sum *b, const void *dout, const void *inp, const float *mean,
                       const float *rstd, int rows, int C, int add) {
    int strips = (int)blocks_for(C, WARP * wide<T>), columns = (1 + NORM) * C;
    int parts = planned.column_blocks / strips, most = (int)blocks_for(rows, ROW_WARPS);
    parts = parts < 1 ? 1 : parts < most ? parts : most;
    float *partial = partial_sums(parts, columns);
    if (!partial) return -1;
    if (launch(what, column_sums_kernel<T, NORM>, dim3(strips, parts), ROW_THREADS, partial, (const T *)dout,
               (const T *)inp, mean, rstd, rows, C))
        return -1;
    return add_partial_sums(what, a, b, NULL, partial, parts, columns, C, add);
}

int cuda_bias_backward(gpt2_dtype dt, void *dbias, const void *dout, int BT, int OC, int add) {
    return BY_DTYPE(dt, column_sums<T, false>("bias_backward", (T *)dbias, (T *)nullptr, dout, nullptr,
                                              nullptr, nullptr, BT, OC, add));
}

template <class T> static __global__ void bias_from_sums_kernel(T *dbias, const float *sums, int C) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c < C) dbias[c] = from_float<T>(to_float(dbias[c]) + sums[c]);
}

int cuda_bias_from_sums(gpt2_dtype dt, void *dbias, const float *sums, int C) {
    return BY_DTYPE(dt, launch("bias_from_sums", bias_from_sums_kernel<T>, blocks_for(C, ROW_THREADS),
                               ROW_THREADS, (T *)dbias, sums, C));
}

// -------- layernorm's backward, in one pass over dout, inp and dinp
// A team of warps handles a row, one vector per lane. So for any C a thread needs only 64 registers, for one
// vector of the row and the sums of its channels over all rows. partial (blocks, kinds, C) receives the sums
// of each block: for dweight, for dbias and, with 3 kinds, of the finished dinp.

enum { TEAMS_WARPS = 16, TEAMS_THREADS = TEAMS_WARPS * WARP };  // maximum per block

// Returns the number of warps that share a row; 0: too many.
template <class T> static int warps_a_row(int C) {
    int warps = (int)blocks_for(C, WARP * wide<T>);
    return warps > TEAMS_WARPS ? 0 : warps;
}

template <class T> static __global__ void __launch_bounds__(TEAMS_THREADS, 2)
    layernorm_backward_kernel(T *dinp, float *partial, int kinds, const T *dout, const T *inp,
                              const T *weight, const float *mean, const float *rstd, int rows, int C,
                              int row_warps) {
    constexpr int W = wide<T>;
    // The sums of each warp, for its team. Rows alternate between the halves, so one barrier per row is
    // enough.
    __shared__ float sums[2][TEAMS_WARPS], dots[2][TEAMS_WARPS];
    int warp = threadIdx.x / WARP, teams = blockDim.x / WARP / row_warps, team = warp / row_warps;
    int c = (threadIdx.x - team * row_warps * WARP) * W;
    float total_dw[W] = {}, total_db[W] = {}, total_dx[W] = {};
    int half = 0, rows_at_once = gridDim.x * teams;
    for (int row = blockIdx.x * teams + team; row - team < rows; row += rows_at_once, half ^= 1) {
        bool mine = row < rows && c < C;  // a team without a row still takes part in the barrier
        size_t at = (size_t)row * C + c;
        float m = 0, s = 0, sum = 0, dot = 0;
        vec<T, W> x, dy, dx, w;
        if (mine) {
            x = load<W>(inp + at);
            dy = load<W>(dout + at);
            dx = load<W>(dinp + at);
            w = load<W>(weight + c);
            m = mean[row];
            s = rstd[row];
            for (int k = 0; k < W; k++) {
                float d = to_float(dy, k), norm = (to_float(x, k) - m) * s, dnorm = to_float(w, k) * d;
                sum += dnorm;
                dot += dnorm * norm;
                total_dw[k] += norm * d;
                total_db[k] += d;
            }
        }
        sum = warp_sum(sum);
        dot = warp_sum(dot);
        if (row_warps > 1) {
            if (threadIdx.x % WARP == 0) {
                sums[half][warp] = sum;
                dots[half][warp] = dot;
            }
            __syncthreads();
            sum = dot = 0;
            for (int i = team * row_warps; i < (team + 1) * row_warps; i++) {
                sum += sums[half][i];
                dot += dots[half][i];
            }
        }
        sum /= C;
        dot /= C;
        if (!mine) continue;
        for (int k = 0; k < W; k++) {
            float norm = (to_float(x, k) - m) * s, dnorm = to_float(w, k) * to_float(dy, k);
            dx.e[k] = from_float<T>(to_float(dx, k) + (dnorm - sum - norm * dot) * s);
            total_dx[k] += to_float(dx, k);
        }
        store(dinp + at, dx);
    }
    __shared__ float total[TEAMS_THREADS * W];
    float *of_block = partial + (size_t)blockIdx.x * kinds * C;
#pragma unroll
    for (int kind = 0; kind < 3; kind++, of_block += C) {
        if (kind == kinds) break;
        add_by_turns(total, c, kind == 0 ? total_dw : kind == 1 ? total_db : total_dx, team, teams);
        for (int i = threadIdx.x; i < C; i += blockDim.x) of_block[i] = total[i];
        __syncthreads();
    }
}

// Computes only dinp, for wider rows: each warp handles a row, which it reads again for the second pass.
template <class T> static __global__ void __launch_bounds__(ROW_THREADS)
    layernorm_backward_dinp_kernel(T *dinp, const T *dout, const T *inp, const T *weight, const float *mean,
                                   const float *rstd, int rows, int C) {
    constexpr int W = wide<T>;
    int row = blockIdx.x * ROW_WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    size_t at = (size_t)row * C;
    float m = mean[row], s = rstd[row], sum = 0, dot = 0;
    each_vector<W, 0>(C, [&](int, int c) {
        vec<T, W> x = load<W>(inp + at + c), dy = load<W>(dout + at + c), w = load<W>(weight + c);
        for (int k = 0; k < W; k++) {
            float dnorm = to_float(w, k) * to_float(dy, k);
            sum += dnorm;
            dot += dnorm * (to_float(x, k) - m) * s;
        }
    });
    sum = warp_sum(sum) / C;
    dot = warp_sum(dot) / C;
    each_vector<W, 0>(C, [&](int, int c) {
        vec<T, W> x = load<W>(inp + at + c), dy = load<W>(dout + at + c), w = load<W>(weight + c);
        vec<T, W> dx = load<W>(dinp + at + c);
        for (int k = 0; k < W; k++) {
            float norm = (to_float(x, k) - m) * s, dnorm = to_float(w, k) * to_float(dy, k);
            dx.e[k] = from_float<T>(to_float(dx, k) + (dnorm - sum - norm * dot) * s);
        }
        store(dinp + at + c, dx);
    });
}

// The whole backward for rows of any width, in three passes.
template <class T>
static int layernorm_backward_in_passes(void *dinp, void *dweight, void *dbias, float *dinp_sums,
                                        const void *dout, const void *inp, const void *weight,
                                        const float *mean, const float *rstd, int BT, int C) {
    const char *what = "layernorm_backward";
    if (launch(what, layernorm_backward_dinp_kernel<T>, blocks_for(BT, ROW_WARPS), ROW_THREADS, (T *)dinp,
               (const T *)dout, (const T *)inp, (const T *)weight, mean, rstd, BT, C))
        return -1;
    if (column_sums<T, true>(what, (T *)dweight, (T *)dbias, dout, inp, mean, rstd, BT, C, 1)) return -1;
    if (!dinp_sums) return 0;
    return column_sums<T, false>(what, dinp_sums, (float *)NULL, dinp, NULL, NULL, NULL, BT, C, 0);
}

template <class T> static int layernorm_backward(void *dinp, void *dweight, void *dbias, float *dinp_sums,
                                                 const void *dout, const void *inp, const void *weight,
                                                 const float *mean, const float *rstd, int BT, int C) {
    const char *what = "layernorm_backward";
    int row_warps = warps_a_row<T>(C);
    if (!row_warps)
        return layernorm_backward_in_passes<T>(dinp, dweight, dbias, dinp_sums, dout, inp, weight, mean, rstd,
                                               BT, C);
    int teams = TEAMS_WARPS / row_warps, most = (int)blocks_for(BT, teams), kinds = dinp_sums ? 3 : 2;
    int parts = planned.row_blocks < most ? planned.row_blocks : most;
    float *partial = partial_sums(parts, (size_t)kinds * C);
    if (!partial) return -1;
    if (launch(what, layernorm_backward_kernel<T>, parts, teams * row_warps * WARP, (T *)dinp, partial, kinds,
               (const T *)dout, (const T *)inp, (const T *)weight, mean, rstd, BT, C, row_warps))
        return -1;
    return add_partial_sums(what, (T *)dweight, (T *)dbias, dinp_sums, partial, parts, kinds * C, C, 1);
}

int cuda_layernorm_backward(gpt2_dtype dt, void *dinp, void *dweight, void *dbias, float *dinp_sums,
                            const void *dout, const void *inp, const void *weight, const float *mean,
                            const float *rstd, int BT, int C) {
    return BY_DTYPE(dt, layernorm_backward<T>(dinp, dweight, dbias, dinp_sums, dout, inp, weight, mean, rstd,
                                              BT, C));
}

// --------

// Sets the numbers of blocks that run at once: for layernorm's backward with this C, and for the sums of
// columns.
template <class T> static int plan_blocks(int C) {
    int device, processors, rows = 0, columns, row_warps = warps_a_row<T>(C);
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    if (row_warps) {
        int threads = TEAMS_WARPS / row_warps * row_warps * WARP;
        CUDA_TRY(
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&rows, layernorm_backward_kernel<T>, threads, 0));
    }
    CUDA_TRY(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&columns, column_sums_kernel<T, true>, ROW_THREADS, 0));
    planned.row_blocks = processors * rows;
    planned.column_blocks = processors * columns;
    return 0;
}

int rows_cuda_plan(gpt2_dtype dt, int C, size_t *scratch_bytes) {
    if (BY_DTYPE(dt, plan_blocks<T>(C))) return -1;
    size_t width = 3 * (size_t)C, strip = 2 * WARP * 16 / gpt2_dtype_size(dt);
    size_t rows = planned.row_blocks * width, columns = planned.column_blocks * strip;
    planned.columns = 4 * (size_t)C;  // FC's bias
    planned.floats = rows > columns ? rows : columns;
    planned.floats = planned.floats > planned.columns ? planned.floats : planned.columns;
    *scratch_bytes = planned.floats * sizeof(float);
    return 0;
}
