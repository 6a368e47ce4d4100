// The reference speed for a step: cuBLASLt's on this GPU, with a large square matmul.
#include <stdlib.h>
#include "cuda.h"
#include "matmul_cuda.h"

enum { SMALLEST = 256, LARGEST = 8192, SLICES = 5 };
static const double SLICE_S = 0.012, LONG_S = 0.001;  // a matmul of LONG_S keeps the whole GPU busy

static Product square(gpt2_dtype dt, int side) {
    return (Product){ .in = dt,
                      .out = dt,
                      .rows = side,
                      .cols = side,
                      .depth = side,
                      .right_t = 1,
                      .left_ld = side,
                      .right_ld = side,
                      .out_ld = side };
}

// Writes values of both signs with random mantissas, in any dtype. With zeros or constants a GPU draws less
// power and is faster than in training.
int cuda_random_values(void *to, size_t bytes) {
    enum { VALUES = 1 << 19 };
    uint16_t *values = malloc(VALUES * sizeof *values);
    if (!values) return gpt2_fail("no memory for %zu bytes to measure with", VALUES * sizeof *values);
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
    return cuda_check(rc, "matrices to measure products with");
}

// Measures the seconds of n matmuls, one after another. matrices: left, right, out, of `bytes` each, and the
// workspace.
static int time_products(const Product *p, char *matrices, size_t bytes, const cudaEvent_t *events, int n,
                         double *seconds) {
    float ms;
    CUDA_TRY(cudaEventRecord(events[0], 0));
    for (int i = 0; i < n; i++)
        if (matmul_cuda_product(p, matrices + 2 * bytes, matrices, matrices + bytes, 0,
                                matrices + 3 * bytes) != 0)
            return -1;
    CUDA_TRY(cudaEventRecord(events[1], 0));
    CUDA_TRY(cudaEventSynchronize(events[1]));
    CUDA_TRY(cudaEventElapsedTime(&ms, events[0], events[1]));
    *seconds = ms * 1e-3;
    return 0;
}

// Measures the seconds of one matmul. Takes the best slice, because other programs may disturb one. Slice -1
// warms up, and slice 0 is one matmul.
static int measure(const Product *p, char *memory, size_t bytes, const cudaEvent_t *events, int slices,
                   double *seconds) {
    double best = 1, slice;
    if (cuda_random_values(memory, 2 * bytes) != 0) return -1;
    for (int i = -1; i <= slices; i++) {
        int n = i <= 0 || best > SLICE_S ? 1 : (int)(SLICE_S / best);
        if (time_products(p, memory, bytes, events, n, &slice) != 0) return -1;
        if (i == 0 || (i > 0 && slice / n < best)) best = slice / n > 1e-6 ? slice / n : 1e-6;
    }
    *seconds = best;
    return 0;
}

static int measure_side(gpt2_dtype dt, int side, size_t workspace, int slices, double *seconds) {
    Product p = square(dt, side);
    size_t bytes = (size_t)side * side * gpt2_dtype_size(dt);
    cudaEvent_t events[2] = { NULL, NULL };
    void *memory = NULL;
    int rc = cuda_check(cudaMalloc(&memory, 3 * bytes + workspace), "memory to measure the peak with");
    if (rc == 0) rc = cuda_check(cudaEventCreate(&events[0]), "cudaEventCreate");
    if (rc == 0) rc = cuda_check(cudaEventCreate(&events[1]), "cudaEventCreate");
    if (rc == 0) rc = measure(&p, memory, bytes, events, slices, seconds);
    for (int i = 0; i < 2; i++)
        if (events[i] && cuda_check(cudaEventDestroy(events[i]), "cudaEventDestroy") != 0) rc = -1;
    return cuda_check(cudaFree(memory), "cudaFree") != 0 ? -1 : rc;
}

// Doubles the side until a matmul takes long enough, or memory gets short.
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
