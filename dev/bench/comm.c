/*
 * The plugin's collectives: time and correctness in the same row.      mpirun -np N build/bench/comm [--messages | --window] [--dtype fp32]
 * way: through the window, by messages, or by direct reads of the other ranks' memory; --window: never that.
 * size: bytes of the whole buffer, of which every rank owns 1/N. time: median over the rounds of the slowest rank's. bandwidth: size / time,
 * and the bytes that a rank sends / time. memcpy: what copying the same `size` bytes from one buffer to another takes, on all ranks at
 * once, measured in turn with the collective; the ratio is memcpy's time over the collective's, higher is better. wrong: elements that
 * are not, bit by bit, what the definition gives.
 */
#include "llmc_zero/numbers.h"
#include "llmc_zero/comm.h"
#include "llmc_zero/error.h"
#include "llmc_zero/kernels.h"
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 15 };

static comm c;
static memory m = { .device = &device_host };
static zero_dtype dtype = ZERO_BF16;
static int64_t elems, part;         // of the whole buffer, of a rank's part
static char *full, *shard, *other;  // (elems), (part), (elems)

static void *room(size_t bytes) {
    void *p = memory_alloc(&m, ZERO_WORKING, "benchmark", bytes);
    if (!p) { fprintf(stderr, "comm: %s\n", zero_last_error()); MPI_Abort(MPI_COMM_WORLD, 1); }
    return p;
}

// Small whole numbers over 8: sums of a few of them are exact, their mean is not and must be rounded once.
static float value(int rank, int64_t i) { return (float)((i * 7 + rank * 13) % 31 - 15) / 8; }

static void put(void *x, int64_t i, float v) {
    if (dtype == ZERO_F32) ((float *)x)[i] = v;
    else ((uint16_t *)x)[i] = bf16_round(v);
}
static float get(const void *x, int64_t i) { return dtype == ZERO_F32 ? ((const float *)x)[i] : bf16_widen(((const uint16_t *)x)[i]); }
static float stored(float v) { return dtype == ZERO_F32 ? v : bf16_widen(bf16_round(v)); }

static int all_gather(void) {
    comm_piece p = { full, shard, part };
    return comm_all_gather(&c, &p, 1, dtype_bytes(dtype));
}
static int reduce_scatter(void) {
    comm_piece p = { full, shard, part };
    return comm_reduce_scatter(&c, &p, 1, dtype, dtype, 0);
}
static int broadcast(void) { return comm_broadcast(&c, 0, full, elems * dtype_bytes(dtype)); }
static int copy(void) { memcpy(other, full, elems * dtype_bytes(dtype)); return 0; }

static void fill_gather(void) { for (int64_t i = 0; i < part; i++) put(shard, i, value(c.rank, i)); }
static void fill_reduce(void) { for (int64_t i = 0; i < elems; i++) put(full, i, value(c.rank, i)); }

static int64_t wrong_gather(void) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < elems; i++) wrong += get(full, i) != stored(value((int)(i / part), i % part));
    return wrong;
}
static int64_t wrong_reduce(void) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < part; i++) {
        float sum = 0;
        for (int r = 0; r < c.ranks; r++) sum += stored(value(r, c.rank * part + i));
        wrong += get(shard, i) != stored(sum * (1.0f / c.ranks));
    }
    return wrong;
}
static int64_t wrong_broadcast(void) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < elems; i++) wrong += get(full, i) != stored(value(0, i));
    return wrong;
}

typedef struct {
    const char *name;
    comm_kind kind;
    int (*run)(void);
    void (*fill)(void);
    int64_t (*wrong)(void);
    double sent;        // parts that a rank sends
} collective;

static int compare(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

// Seconds of the slowest rank.
static double once(int (*run)(void)) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = comm_now(), took, slowest;
    if (run()) { fprintf(stderr, "comm: %s\n", zero_last_error()); MPI_Abort(MPI_COMM_WORLD, 1); }
    took = comm_now() - start;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static const char *way(const collective *k, size_t bytes) {
    if (k->kind != COMM_OTHER && comm_goes_direct(&c, k->kind, bytes, 1)) return "direct";
    return strstr(c.name, "messages") ? "messages" : "window";
}

static void row(const collective *k, size_t bytes) {
    double times[ROUNDS], copies[ROUNDS];
    part = (int64_t)bytes / (int64_t)dtype_bytes(dtype) / c.ranks / 128 * 128;
    elems = part * c.ranks;
    for (int i = -2; i < ROUNDS; i++) {     // two to warm up, overwritten by the first
        k->fill();
        times[i < 0 ? 0 : i] = once(k->run);
        copies[i < 0 ? 0 : i] = once(copy);
    }
    k->fill();
    once(k->run);
    long long mine = k->wrong(), wrong;
    MPI_Allreduce(&mine, &wrong, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    qsort(times, ROUNDS, sizeof(double), compare);
    qsort(copies, ROUNDS, sizeof(double), compare);
    double t = times[ROUNDS / 2], copied = copies[ROUNDS / 2], size = (double)elems * dtype_bytes(dtype);
    if (c.rank) return;
    printf("%-15s %-5s %-8s %10.3f %12.1f %10.2f %10.2f %12.1f %8.2f %8lld\n", k->name, dtype == ZERO_F32 ? "fp32" : "bf16",
           way(k, (size_t)size), size / 1048576, t * 1e6, size / t * 1e-9, k->sent * size / c.ranks / t * 1e-9, copied * 1e6, copied / t, wrong);
    fflush(stdout);
}

int main(int argc, char **argv) {
    zero_config config = ZERO_CONFIG_INIT;
    MPI_Comm world = MPI_COMM_WORLD;
    size_t largest = 64 << 20;
    MPI_Init(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--messages")) config.shared_window = 0;
        else if (!strcmp(argv[i], "--window"))
            for (int k = 0; k < COMM_OTHER; k++) comm_direct_least[k] = SIZE_MAX;
        else if (!strcmp(argv[i], "--dtype") && i + 1 < argc) dtype = !strcmp(argv[++i], "fp32") ? ZERO_F32 : ZERO_BF16;
        else { fprintf(stderr, "usage: mpirun -np N comm [--messages | --window] [--dtype fp32|bf16]\n"); MPI_Abort(MPI_COMM_WORLD, 1); }
    }
    config.mpi_comm = &world;
    if (comm_connect(&c, &config) || comm_open(&c, &config, &device_host, &m)) {
        fprintf(stderr, "comm: %s\n", zero_last_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    full = room(largest); shard = room(largest); other = room(largest);
    const collective all[] = { { "all-gather", COMM_ALL_GATHER, all_gather, fill_gather, wrong_gather, c.ranks - 1 },
                               { "reduce-scatter", COMM_REDUCE_SCATTER, reduce_scatter, fill_reduce, wrong_reduce, c.ranks - 1 },
                               { "broadcast", COMM_OTHER, broadcast, fill_reduce, wrong_broadcast, c.ranks } };
    if (!c.rank)
        printf("%d ranks, %s\n%-15s %-5s %-8s %10s %12s %10s %10s %12s %8s %8s\n", c.ranks, c.name, "collective", "dtype", "way", "size MiB",
               "time us", "GB/s", "sent GB/s", "memcpy us", "ratio", "wrong");
    for (int k = 0; k < 3; k++)
        for (size_t bytes = 64 << 10; bytes <= largest; bytes *= 4) row(&all[k], bytes);
    comm_close(&c, 1);
    memory_free_all(&m);
    MPI_Finalize();
    return 0;
}
