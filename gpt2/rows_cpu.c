// Shared by the CPU layers: threads and their scratch, and sums of rows. Also GELU.
#include <string.h>
#include "cpu.h"

// -------- scratch: a private piece for each thread, then a shared one for the running layer

static struct {
    int threads;
    size_t thread_floats;
    char *memory;
} scratch;

size_t scratch_plan(int threads, size_t floats) {
    memset(&scratch, 0, sizeof scratch);
    scratch.threads = threads;
    scratch.thread_floats = (floats + 15) / 16 * 16;
    return (size_t)threads * scratch.thread_floats * sizeof(float);
}

void set_scratch(void *memory) { scratch.memory = memory; }

int layers_threads(void) { return scratch.threads; }

float *thread_scratch(int thread) { return (float *)scratch.memory + (size_t)thread * scratch.thread_floats; }

void *shared_scratch(void) { return thread_scratch(scratch.threads); }

// -------- dtypes

int cpu_has_dtype(gpt2_dtype dt) {
#if defined(__x86_64__)
    if (dt == GPT2_BF16) return __builtin_cpu_supports("avx512bf16") != 0;  // CPUs with AMX also have it
#endif
    return dt == GPT2_F32;
}

uint16_t f32_to_bf16(float x) { return narrow(x); }

// -------- sums of rows

VECTOR void accumulate(float *acc, gpt2_dtype dt, const void *x, size_t at, size_t n) {
    float buf[PIECE];
    for (size_t i = 0; i < n; i += PIECE) {
        size_t m = MIN(n - i, (size_t)PIECE);
        const float *row = view(dt, x, at + i, m, buf);
#pragma omp simd
        for (size_t j = 0; j < m; j++) acc[i + j] += row[j];
    }
}

VECTOR void add_sums(gpt2_dtype dt, void *x, size_t at, const float *acc, size_t n) {
    float buf[PIECE];
    for (size_t i = 0; i < n; i += PIECE) {
        size_t m = MIN(n - i, (size_t)PIECE);
        const float *row = view(dt, x, at + i, m, buf);
        float *sum = target(dt, x, at + i, buf);
#pragma omp simd
        for (size_t j = 0; j < m; j++) sum[j] = row[j] + acc[i + j];
        commit(dt, x, at + i, m, sum);
    }
}

// -------- gelu: x/2 (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3)

#define GELU_SCALE 0.7978845608f
#define GELU_CUBE 0.044715f

VECTOR static void gelu_forward_piece(gpt2_dtype dt, void *out, const void *inp, size_t at, size_t n) {
    float buf[PIECE];
    const float *x = view(dt, inp, at, n, buf);
    float *y = target(dt, out, at, buf);
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / (1.0f + exp_f32(-2.0f * GELU_SCALE * x[i] * (1.0f + GELU_CUBE * x[i] * x[i])));
    commit(dt, out, at, n, y);
}

int cpu_gelu_forward(gpt2_dtype dt, void *out, const void *inp, size_t n) {
#pragma omp parallel for schedule(static) num_threads(layers_threads())
    for (size_t i = 0; i < n; i += PIECE) gelu_forward_piece(dt, out, inp, i, MIN(n - i, (size_t)PIECE));
    return 0;
}

VECTOR static void gelu_backward_piece(gpt2_dtype dt, void *dinp, const void *inp, const void *dout,
                                       size_t at, size_t n) {
    float x_buf[PIECE], buf[PIECE];
    const float *x = view(dt, inp, at, n, x_buf);
    const float *dy = view(dt, dout, at, n, buf);
    float *dx = target(dt, dinp, at, buf);
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        // Beyond +-10 the slope is 0 or 1, and squares could overflow.
        float v = x[i] < -10.0f ? -10.0f : x[i];
        v = v > 10.0f ? 10.0f : v;
        float s = 1.0f / (1.0f + exp_f32(-2.0f * GELU_SCALE * v * (1.0f + GELU_CUBE * v * v)));
        float slope = s + v * s * (1.0f - s) * (2.0f * GELU_SCALE) * (1.0f + 3.0f * GELU_CUBE * v * v);
        dx[i] = dy[i] * slope;
    }
    commit(dt, dinp, at, n, dx);
}

int cpu_gelu_backward(gpt2_dtype dt, void *dinp, const void *inp, const void *dout, size_t n) {
#pragma omp parallel for schedule(static) num_threads(layers_threads())
    for (size_t i = 0; i < n; i += PIECE)
        gelu_backward_piece(dt, dinp, inp, dout, i, MIN(n - i, (size_t)PIECE));
    return 0;
}
