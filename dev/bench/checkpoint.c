// Compares zero_save and zero_load with fio, in alternating runs in the same folder, with the same number of
// processes, file sizes and request sizes:
//   mpirun -np RANKS build/bench/checkpoint FOLDER [--layers 12] [--channels 768] [--rounds 5] [--no-fio]
//                                                  [--no-head]
// The states are those of a GPT-2 in bf16: fp32 masters and two moments. Each round saves to a new folder,
// drops it from the page cache, and loads it into a new instance of the plugin. fio writes and syncs new
// files, then reads them, bypassing the page cache. Prints medians in GB/s over all ranks, their ratio to
// fio's, and the peak increase of a rank's resident memory during save and load.
#include "llmc_zero/zero.h"
#include "bench.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <mpi.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROUNDS_MOST = 99, TENSORS = 16, CHUNK = 1 << 16, REQUEST = 1 << 20, DEPTH = 8 };

typedef struct {
    const char *folder;
    int layers, channels, rounds, no_fio, no_head;
} options;

typedef struct {
    double save[ROUNDS_MOST], load[ROUNDS_MOST], fio_write[ROUNDS_MOST], fio_read[ROUNDS_MOST];  // GB/s
    double save_mib, load_mib;  // the maximum over ranks and rounds
} figures;

static int rank, ranks;

static void die(const char *what) {
    fprintf(stderr, "checkpoint: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}
static void must(int rc) {
    if (rc) die(zero_last_error());
}

// Returns the time after a barrier.
static double now(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    return clock_now();
}

// -------- the model

static zero_tensor tensors[TENSORS];

static zero *create(const options *o) {
    const int64_t C = o->channels;
    const int L = o->layers;
    const zero_tensor table[TENSORS] = {
        { "wte", 2, { 50304, C }, 1, 0, 1, 1 },   { "wpe", 2, { 1024, C }, 1, 0, 1, 1 },
        { "ln1w", 1, { C }, L, 1, 0, 0 },         { "ln1b", 1, { C }, L, 1, 0, 0 },
        { "qkvw", 2, { 3 * C, C }, L, 1, 1, 1 },  { "qkvb", 1, { 3 * C }, L, 1, 0, 0 },
        { "attw", 2, { C, C }, L, 1, 1, 1 },      { "attb", 1, { C }, L, 1, 0, 0 },
        { "ln2w", 1, { C }, L, 1, 0, 0 },         { "ln2b", 1, { C }, L, 1, 0, 0 },
        { "fcw", 2, { 4 * C, C }, L, 1, 1, 1 },   { "fcb", 1, { 4 * C }, L, 1, 0, 0 },
        { "projw", 2, { C, 4 * C }, L, 1, 1, 1 }, { "projb", 1, { C }, L, 1, 0, 0 },
        { "lnfw", 1, { C }, 1, 0, 0, 0 },         { "lnfb", 1, { C }, 1, 0, 0, 0 },
    };
    zero_unit units[1 + L];
    zero_config config = zero_defaults();
    zero *z;
    memcpy(tensors, table, sizeof tensors);
    units[0] = (zero_unit){ "embedding", 2, 2, 1 };
    for (int l = 0; l < L; l++) units[1 + l] = (zero_unit){ "block", 1, 1, 0 };
    config.stage = 3;
    config.numbers.dtype = ZERO_BF16;
    must(zero_create(&z, &config, tensors, TENSORS, units, 1 + L));
    return z;
}

static void fill_tensor(zero *z, zero_value what, int tensor, int layer, int64_t elems) {
    static float values[CHUNK];
    static uint32_t x = 42;
    for (int64_t at = 0, n; at < elems; at += n) {
        n = elems - at < CHUNK ? elems - at : CHUNK;
        for (int64_t i = 0; i < n; i++) {
            x = x * 1664525u + 1013904223u;
            values[i] = (float)(int32_t)x * 1e-11f;
        }
        must(zero_set(z, what, tensor, layer, at, n, values));
    }
}

// Sets random values, which no disk can compress. Returns their size in a checkpoint, in bytes.
static int64_t fill(zero *z) {
    static const zero_value saved[] = { ZERO_PARAM, ZERO_MOMENT1, ZERO_MOMENT2 };
    int64_t all = 0;
    for (int t = 0; t < TENSORS; t++) {
        const int64_t elems = zero_tensor_elems(&tensors[t]);
        all += elems * tensors[t].layers * 3 * (int64_t)sizeof(float);
        for (int l = 0; l < tensors[t].layers; l++)
            for (int i = 0; i < 3; i++) fill_tensor(z, saved[i], t, l, elems);
    }
    return all;
}

// -------- memory

static double resident_mib(const char *field) {
    char line[256];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, field, strlen(field))) kib = atol(line + strlen(field));
    if (f) fclose(f);
    return (double)kib / 1024;
}

// Resets VmHWM, the peak of the resident memory.
static void forget_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f || fputs("5", f) < 0 || fclose(f)) die("/proc/self/clear_refs cannot be written");
}

// Raises *most to the largest increase of any rank's peak over `before`.
static void note_peak(double *most, double before) {
    double mib = resident_mib("VmHWM:") - before;
    MPI_Allreduce(MPI_IN_PLACE, &mib, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (mib > *most) *most = mib;
}

// -------- the plugin

static void drop_from_cache(const char *folder) {
    DIR *dir = opendir(folder);
    if (!dir) die("the checkpoint's folder cannot be listed");
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) die("a file of the checkpoint cannot be opened");
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    closedir(dir);
}

static void save_and_load(zero **z, const options *o, int round, int64_t bytes, figures *f) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/llmc_zero.checkpoint", o->folder);
    double before = resident_mib("VmRSS:");
    forget_peak();
    double begin = now();
    must(zero_save(*z, path, NULL));
    f->save[round] = (double)bytes / (now() - begin) * 1e-9;
    note_peak(&f->save_mib, before);
    zero_destroy(*z);
    *z = create(o);
    drop_from_cache(path);
    forget_peak();
    begin = now();
    must(zero_load(*z, path, NULL));
    f->load[round] = (double)bytes / (now() - begin) * 1e-9;
    // Relative to the memory after the load, because the states become resident only when zero_load writes
    // them.
    note_peak(&f->load_mib, resident_mib("VmRSS:"));
    if (!rank) must(zero_checkpoint_remove(path));
}

// -------- fio

// Returns the GB/s of one pass.
static double fio(const options *o, int64_t bytes, const char *kind) {
    char options[PATH_MAX + 1000];
    snprintf(options, sizeof options,
             "--directory='%s' --filename_format=llmc_zero.fio.\\$jobnum --size=%lld --bs=%d --iodepth=%d "
             "--ioengine=io_uring --fixedbufs --rw=%s --end_fsync=1 --numjobs=%d --group_reporting",
             o->folder, (long long)(bytes / ranks / REQUEST * REQUEST), REQUEST, DEPTH, kind, ranks);
    double rate = fio_run(options, 0);
    if (rate <= 0) die(FIO_FAILS);
    return rate;
}

static void measure_fio(const options *o, int round, int64_t bytes, figures *f) {
    if (!rank) {
        f->fio_write[round] = fio(o, bytes, "write");
        f->fio_read[round] = fio(o, bytes, "read");
        for (int r = 0; r < ranks; r++) {
            char path[PATH_MAX];
            snprintf(path, sizeof path, "%s/llmc_zero.fio.%d", o->folder, r);
            unlink(path);
        }
    }
    // Polls with naps, because a rank that waits in MPI would take CPU time from fio.
    MPI_Request all;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &all);
    for (MPI_Test(&all, &done, MPI_STATUS_IGNORE); !done; MPI_Test(&all, &done, MPI_STATUS_IGNORE))
        clock_nap(0.01);
}

// -------- the table

static void measure(const options *o) {
    static figures f;
    zero *z = create(o);
    const int64_t bytes = fill(z);
    for (int round = 0; round < o->rounds; round++) {
        save_and_load(&z, o, round, bytes, &f);
        if (!o->no_fio) measure_fio(o, round, bytes, &f);
    }
    zero_destroy(z);
    if (rank) return;
    if (!o->no_head)
        printf("# checkpoints, medians of %d rounds, GB/s of all ranks; requests of %d KiB, %d in flight\n"
               "%10s %6s %8s %8s %6s %8s %8s %8s %6s %8s\n",
               o->rounds, REQUEST / 1024, DEPTH, "MiB", "ranks", "save", "fio", "ratio", "+MiB", "load",
               "fio", "ratio", "+MiB");
    printf("%10.1f %6d", (double)bytes / 1048576, ranks);
    bench_print(f.save, f.fio_write, o->rounds, o->no_fio);
    printf(" %8.1f", f.save_mib);
    bench_print(f.load, f.fio_read, o->rounds, o->no_fio);
    printf(" %8.1f\n", f.load_mib);
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    options o = { .layers = 12, .channels = 768, .rounds = 5 };
    o.folder = bench_arguments(argc, argv,
                               (bench_option[]){ { "--layers", &o.layers, 1, 1000 },
                                                 { "--channels", &o.channels, 1, 100000 },
                                                 { "--rounds", &o.rounds, 1, ROUNDS_MOST },
                                                 { "--no-fio", &o.no_fio, 0, 0 },
                                                 { "--no-head", &o.no_head, 0, 0 },
                                                 { NULL, NULL, 0, 0 } });
    if (!o.folder) die("name a folder on the disk; the top of dev/bench/checkpoint.c lists the options");
    measure(&o);
    MPI_Finalize();
    return 0;
}
