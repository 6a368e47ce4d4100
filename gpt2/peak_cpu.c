// Measures the peak speed that steps are compared with: oneDNN's on this machine, for a matmul that fits into
// the caches.
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "cpu.h"
#include "gpt2_error.h"

enum { SIDE = 768, SLICES = 5 };  // of square matrices: large enough for all threads, 7 MiB of fp32
static const double SLICE_S = 0.01;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

// Returns matmuls per second in one time slice, 0 on failure.
static double matmuls_per_second(gpt2_dtype dt, void *out, const void *left, const void *right) {
    double start = now(), seconds = 0;
    int matmuls = 0;
    while (seconds < SLICE_S) {
        if (cpu_matmul_forward(dt, out, left, right, NULL, SIDE, SIDE, SIDE) != 0) return 0;
        matmuls++;
        seconds = now() - start;
    }
    return matmuls / seconds;
}

// Takes the best slice, because other programs may slow one down. A slice is longer than a scheduler's time
// slice, so that ranks sharing a core each get a turn.
int cpu_peak_flops(gpt2_dtype dt, double *flops) {
    size_t bytes = (size_t)SIDE * SIDE * gpt2_dtype_size(dt);
    char *memory = aligned_alloc(64, 3 * bytes);
    if (!memory) return gpt2_fail("no memory for %zu bytes to measure the peak speed", 3 * bytes);
    memset(memory, 0x3f, 3 * bytes);  // about 0.75 in either dtype
    double best = 0, rate = 1;
    for (int i = 0; i <= SLICES; i++) {
        rate = matmuls_per_second(dt, memory, memory + bytes, memory + 2 * bytes);
        if (rate <= 0) break;
        if (i > 0 && rate > best)  // the first slice warms up
            best = rate;
    }
    free(memory);
    *flops = best * 2.0 * SIDE * SIDE * SIDE;
    return rate > 0 ? 0 : -1;
}
