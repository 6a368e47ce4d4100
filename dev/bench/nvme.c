// Compares the plugin's files for model states on NVMe with fio, in alternating runs in the same folders,
// with the same block size and depth:
//   build/bench/nvme FOLDER[,FOLDER..] [--mib 1024] [--block 1048576] [--depth 32] [--threads 4] [--rounds 5]
//                    [--no-uring] [--verify] [--small-pages] [--no-fio] [--no-head]
// Each round reads the whole file, writes the whole file, and reads one half while it writes the other.
// Prints medians in GB/s, and their ratio to fio's. Both programs write their files once before the first
// round, and bypass the page cache. As in a training step, the plugin reads and writes whole buffers, of
// which it has a few. Both programs allocate buffers in pages of 2 MiB, which need fewer segments per
// transfer, or of 4 KiB with --small-pages.
#include "bench.h"
#include "llmc_zero/tiers/file.h"
#include <sys/mman.h>
#include <unistd.h>

enum { ROUNDS_MOST = 99, BUFFERS = 4, KINDS = 3 };
static const char *const kinds[KINDS] = { "read", "write", "both" };
static const char *const fio_kinds[KINDS] = { "read", "write", "rw" };

typedef struct {
    const char *folders;
    int mib, block, depth, threads, rounds, no_uring, verify, small_pages, no_fio, no_head;
} options;

static void die(const char *what) {
    fprintf(stderr, "nvme: %s\n", what);
    exit(1);
}

static void must(int rc) {
    if (rc) die(zero_last_error());
}

// -------- the plugin

typedef struct {
    file_engine *e;
    char *data;  // BUFFERS buffers
    size_t buffer_bytes;
    int64_t bytes;
} bench;

// Reads (kind 0) or writes (1) the file, or reads the first half and writes the second (2), buffer by buffer.
// Returns GB/s.
static double pass(bench *b, int kind) {
    file_transfer t[BUFFERS] = { 0 };
    int64_t half = b->bytes / 2, buffer = (int64_t)b->buffer_bytes, n = b->bytes / buffer;
    double begin = clock_now();
    for (int64_t i = 0; i < n; i++) {
        file_transfer *next = &t[i % BUFFERS];
        must(file_wait(b->e, next));
        int write = kind == 2 ? (int)(i % 2) : kind;
        int64_t offset = kind == 2 ? i / 2 * buffer + (write ? half : 0) : i * buffer;
        *next = (file_transfer){ offset, b->data + (i % BUFFERS) * buffer, b->buffer_bytes, .write = write };
        must(file_start(b->e, next));
    }
    for (int i = 0; i < BUFFERS; i++) must(file_wait(b->e, &t[i]));
    return (double)(n * buffer) / (clock_now() - begin) * 1e-9;
}

static bench open_bench(const options *o) {
    bench b = { .buffer_bytes = (size_t)o->block * (size_t)o->depth };
    // All passes move the same number of bytes: an even number of whole buffers.
    int64_t pair = 2 * (int64_t)b.buffer_bytes;
    b.bytes = ((int64_t)o->mib << 20) / pair * pair;
    if (!b.bytes) die("--mib is less than two buffers of depth x block");
    size_t all = BUFFERS * b.buffer_bytes;
    b.data = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.data == MAP_FAILED) die("out of memory for the buffers");
    madvise(b.data, all, o->small_pages ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    for (size_t i = 0; i < all; i++) b.data[i] = (char)(i * 2654435761u >> 13);
    file_settings s = { .folders = o->folders,
                        .block_bytes = (size_t)o->block,
                        .depth = o->depth,
                        .threads = o->threads,
                        .no_uring = o->no_uring,
                        .verify = o->verify,
                        .timeout_s = 60 };
    must(file_open(&b.e, &s, b.bytes));
    file_buffers(b.e, b.data, all);
    pass(&b, 1);  // the first write makes the file system allocate blocks
    return b;
}

// -------- fio

// The paths of fio's files, one per folder, separated by colons.
static char fio_files[8192];

static void name_fio_files(const char *folders) {
    for (const char *f = folders; *f;) {
        size_t n = strcspn(f, ","), used = strlen(fio_files);
        snprintf(fio_files + used, sizeof fio_files - used, "%s%.*s/llmc_zero.fio", used ? ":" : "", (int)n,
                 f);
        f += n + (f[n] == ',');
    }
}

static void remove_fio_files(void) {
    for (char *f = strtok(fio_files, ":"); f; f = strtok(NULL, ":")) unlink(f);
}

// Returns the GB/s of one pass over the same number of bytes.
static double fio(const options *o, const bench *b, int kind) {
    char options[9000];
    int uring = !strncmp(file_name(b->e), "io_uring", 8);
    snprintf(options, sizeof options,
             "--filename='%s' --size=%lld --bs=%d --iodepth=%d --ioengine=%s --rw=%s", fio_files,
             (long long)b->bytes, o->block, o->depth, uring ? "io_uring --fixedbufs" : "libaio",
             fio_kinds[kind]);
    double rate = fio_run(options, o->small_pages);
    if (rate <= 0) die(FIO_FAILS);
    return rate;
}

// -------- the table

static void measure(const options *o) {
    static double ours[KINDS][ROUNDS_MOST], fios[KINDS][ROUNDS_MOST];
    bench b = open_bench(o);
    if (!o->no_fio) fio(o, &b, 1);
    for (int round = 0; round < o->rounds; round++) {
        for (int k = 0; k < KINDS; k++) {
            ours[k][round] = pass(&b, k);
            if (!o->no_fio) fios[k][round] = fio(o, &b, k);
        }
    }
    if (!o->no_head) {
        printf("# %s%s, %.0f MiB, medians of %d rounds, GB/s\n", file_name(b.e),
               o->verify ? ", checksums" : "", (double)b.bytes / 1048576, o->rounds);
        printf("%8s %6s %8s", "KiB", "depth", "threads");
        for (int k = 0; k < KINDS; k++) printf(" %8s %8s %6s", kinds[k], "fio", "ratio");
        printf("\n");
    }
    printf("%8d %6d %8d", o->block / 1024, o->depth, o->no_uring ? o->threads : 0);
    for (int k = 0; k < KINDS; k++) bench_print(ours[k], fios[k], o->rounds, o->no_fio);
    printf("\n");
    file_close(b.e);
    remove_fio_files();
}

int main(int argc, char **argv) {
    enum { MANY = 1 << 24 };
    options o = { .mib = 1024, .block = 1 << 20, .depth = 32, .threads = 4, .rounds = 5 };
    o.folders = bench_arguments(argc, argv,
                                (bench_option[]){ { "--mib", &o.mib, 1, MANY },
                                                  { "--block", &o.block, FILE_ALIGN, MANY },
                                                  { "--depth", &o.depth, 1, MANY },
                                                  { "--threads", &o.threads, 1, MANY },
                                                  { "--rounds", &o.rounds, 1, ROUNDS_MOST },
                                                  { "--no-uring", &o.no_uring, 0, 0 },
                                                  { "--verify", &o.verify, 0, 0 },
                                                  { "--small-pages", &o.small_pages, 0, 0 },
                                                  { "--no-fio", &o.no_fio, 0, 0 },
                                                  { "--no-head", &o.no_head, 0, 0 },
                                                  { NULL, NULL, 0, 0 } });
    if (!o.folders) die("name a folder on the disk; the top of dev/bench/nvme.c lists the options");
    name_fio_files(o.folders);
    measure(&o);
    return 0;
}
