// Compares the AdamW kernel with memory speed: build/bench/adamw [million elements]. Runs alternate with a
// kernel that only moves the same 28 bytes per element (reads and writes p, m and v; reads g in bf16 and
// writes the bf16 parameter, or reads g in fp32). ratio: that kernel's time / AdamW's.
#include "bench.h"
#include "llmc_zero/device/kernels.h"
#include <omp.h>
#include <sys/mman.h>

enum { ROUNDS = 11 };

static void *room(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("adamw: memory");
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

ZERO_CLONES static void move_block(float *restrict p, float *restrict m, float *restrict v,
                                   const float *restrict g, const uint16_t *restrict g16,
                                   uint16_t *restrict low, int64_t n) {
    if (low)
        for (int64_t i = 0; i < n; i++) {
            p[i] = -p[i];
            m[i] = -m[i];
            v[i] = -v[i];
            low[i] = g16[i];
        }
    else
        for (int64_t i = 0; i < n; i++) {
            p[i] = g[i] - p[i];
            m[i] = -m[i];
            v[i] = -v[i];
        }
}

static void move(float *p, float *m, float *v, const void *g, uint16_t *low, int64_t n) {
    enum { BLOCK = 1024 };
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < n; b += BLOCK) {
        int64_t len = n - b < BLOCK ? n - b : BLOCK;
        move_block(p + b, m + b, v + b, (const float *)g + (low ? 0 : b), (const uint16_t *)g + (low ? b : 0),
                   low ? low + b : NULL, len);
    }
}

static void row(int threads, int low_precision, int64_t n, float *p, float *m, float *v, void *g,
                uint16_t *low) {
    const zero_hyper h = {
        .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .t = 10
    };
    const adamw_constants c = adamw_prepare(&h, 1, 1);
    const adamw_arrays arrays = {
        p, m, v, g, low_precision ? low : NULL, low_precision ? ZERO_BF16 : ZERO_F32, ZERO_BF16
    };
    const adamw_segment all = { .elems = n, .lr_factor = 1, .decay = 1 };
    const adamw_table whole = { &all, 1, adamw_chunks(n) };
    double steps[ROUNDS], moves[ROUNDS];
    omp_set_num_threads(threads);
    for (int i = -1; i < ROUNDS; i++) {  // the first round warms up; its times are overwritten
        double start = clock_now();
        kernel_update(&(own_update){ .update = NULL }, &c, &arrays, &whole);
        double between = clock_now();
        move(p, m, v, g, low_precision ? low : NULL, n);
        move(p, m, v, g, low_precision ? low : NULL, n);  // twice, which restores p, m and v
        steps[i < 0 ? 0 : i] = between - start;
        moves[i < 0 ? 0 : i] = (clock_now() - between) / 2;
    }
    double t = bench_median(steps, ROUNDS), moved = bench_median(moves, ROUNDS);
    printf("%-5s %8d %10.1f %10.1f %10.1f %8.2f\n", low_precision ? "bf16" : "fp32", threads, t * 1e3,
           28.0 * n / t * 1e-9, moved * 1e3, moved / t);
}

int main(int argc, char **argv) {
    const double gpt2_124m = 124475904;  // with the padded vocabulary
    int64_t n = (int64_t)(argc > 1 ? atof(argv[1]) * 1e6 : gpt2_124m);
    float *p = room(n * 4), *m = room(n * 4), *v = room(n * 4);
    void *g = room(n * 4);
    uint16_t *low = room(n * 2);
    memset(g, 0x3c, n * 4);  // 0.0115 in either dtype; writing allocates the memory
    memset(low, 0, n * 2);
    for (int64_t i = 0; i < n; i++) {
        p[i] = (float)(i % 97) * 0.01f;
        m[i] = 0.01f;
        v[i] = 1e-4f;
    }
    printf("AdamW, %.1f million elements\n%-5s %8s %10s %10s %10s %8s\n", n * 1e-6, "g", "threads", "ms",
           "GB/s", "move ms", "ratio");
    for (int threads = 1; threads <= omp_get_num_procs(); threads++) {
        row(threads, 1, n, p, m, v, g, low);
        row(threads, 0, n, p, m, v, g, low);
    }
    return 0;
}
