// Measures the peak speed that steps are compared with: cuBLASLt's on this GPU, for a large square matmul.
#include <stdlib.h>
#include "cuda.h"
#include "matmul_lt_cuda.h"

enum { SMALLEST = 256, LARGEST = 8192, SLICES = 5 };
static const double SLICE_S = 0.012, LONG_S = 0.001;  // a matmul of LONG_S keeps the whole GPU busy

// Writes values of both signs with random mantissas, in any dtype. With zeros or constants a GPU draws less
// power and is faster than in training.
int cuda_random_values(void *to, size_t bytes) {
    enum { VALUES = 1 << 19 };
    uint16_t *values = malloc(VALUES * sizeof *values);
    if (!values) return gpt2_fail("no memory for %zu bytes to measure matmuls", VALUES * sizeof *values);
    uint32_t random = 1;
    for (int i = 0; i < VALUES; i++) {
        random = random * 1664525 + 1013904223;
        values[i] = (uint16_t)((random >> 16 & 0x80ff) | 0x3e00);
    }
    cudaError_t rc = cudaSuccess;
    for (size_t at = 0; at < bytes; at += VALUES * sizeof *values) {
        if (rc != cudaSuccess) break;
        size_t rest = bytes - at, n = VALUES * sizeof *values;
        rc = cudaMemcpy((char *)to + at, values, n < rest ? n : rest, cudaMemcpyHostToDevice);
    }
    free(values);
    return cuda_check(rc, "matrices to measure matmuls with");
}

int cuda_time(int (*run)(const void *ctx), const void *ctx, int runs, double *ms) {
    cudaEvent_t events[2] = { NULL, NULL };
    float together = 0;
    int rc = 0;
    for (int i = 0; i < 2 && rc == 0; i++) rc = cuda_check(cudaEventCreate(&events[i]), "cudaEventCreate");
    if (rc == 0) rc = cuda_check(cudaEventRecord(events[0], 0), "cudaEventRecord");
    for (int i = 0; i < runs && rc == 0; i++) rc = run(ctx);
    if (rc == 0) rc = cuda_check(cudaEventRecord(events[1], 0), "cudaEventRecord");
    if (rc == 0) rc = cuda_check(cudaEventSynchronize(events[1]), "cudaEventSynchronize");
    if (rc == 0)
        rc = cuda_check(cudaEventElapsedTime(&together, events[0], events[1]), "cudaEventElapsedTime");
    for (int i = 0; i < 2; i++)
        if (events[i] && cuda_check(cudaEventDestroy(events[i]), "cudaEventDestroy") != 0) rc = -1;
    *ms = together / runs;
    return rc;
}

typedef struct {
    Matmul matmul;
    char *memory;  // left, right, out, of `bytes` each, and the workspace
    size_t bytes;
} Square;

static int multiply(const void *ctx) {
    const Square *s = ctx;
    return matmul_cuda_multiply(&s->matmul, s->memory + 2 * s->bytes, s->memory, s->memory + s->bytes, 0,
                                s->memory + 3 * s->bytes);
}

// Measures the seconds of one matmul. Takes the best slice, because other programs may slow one down. Slice
// -1 warms up, and slice 0 is one matmul.
static int measure(const Square *s, int slices, double *seconds) {
    double best = 1, ms;
    if (cuda_random_values(s->memory, 2 * s->bytes) != 0) return -1;
    for (int i = -1; i <= slices; i++) {
        int n = i <= 0 || best > SLICE_S ? 1 : (int)(SLICE_S / best);
        if (cuda_time(multiply, s, n, &ms) != 0) return -1;
        if (i == 0 || (i > 0 && ms * 1e-3 < best)) best = ms > 1e-3 ? ms * 1e-3 : 1e-6;
    }
    *seconds = best;
    return 0;
}

static int measure_side(gpt2_dtype dt, int side, size_t workspace, int slices, double *seconds) {
    Square s = { matmul_of(dt, side, side, side, 0, 1, 0), NULL, (size_t)side * side * gpt2_dtype_size(dt) };
    int rc = cuda_check(cudaMalloc((void **)&s.memory, 3 * s.bytes + workspace),
                        "memory to measure the peak with");
    if (rc == 0) rc = measure(&s, slices, seconds);
    return cuda_check(cudaFree(s.memory), "cudaFree") != 0 ? -1 : rc;
}

// Doubles the side until a matmul takes long enough or memory runs short.
int cuda_peak_flops(gpt2_dtype dt, double *flops) {
    size_t workspace, available, total;
    int side = SMALLEST / 2;
    double seconds = 0;
    if (matmul_cuda_workspace(&workspace) != 0) return -1;
    CUDA_TRY(cudaMemGetInfo(&available, &total));
    do {
        side *= 2;
        if (measure_side(dt, side, workspace, 0, &seconds) != 0) return -1;
    } while (seconds < LONG_S && side < LARGEST &&
             12 * (size_t)side * side * gpt2_dtype_size(dt) + workspace < available / 2);
    if (measure_side(dt, side, workspace, SLICES, &seconds) != 0) return -1;
    *flops = 2.0 * side * side * side / seconds;
    return 0;
}
