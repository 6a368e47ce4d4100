// Measures the plugin's collectives: time, bandwidth and correctness in one row, as in nccl-tests.
//     mpirun -np N build/bench/comm --help
// A round runs -m collectives and then waits for the device's streams. Rounds of the plugin and its peers
// alternate. The first line names the transport: the window, messages, or NCCL. The columns:
//     size   of the whole buffer; each of N ranks owns 1/N of it
//     time   of one collective on the slowest rank, the median of the rounds
//     algbw  algorithm bandwidth: size / time
//     busbw  bus bandwidth: bytes / time, where bytes is the least that any algorithm sends one way over a
//            rank's link; compare it with the link's speed. It equals algbw for a broadcast, which sends the
//            whole buffer, and otherwise algbw (N-1)/N: in an all-gather a rank has 1/N of the result, and
//            in a reduce-scatter or an all-to-all it keeps 1/N of the input. (With --reduce ranks, NCCL runs
//            an all-to-all, and the plugin sums.)
//     #wrong elements on all ranks that differ in any bit from the defined result, in a collective after the
//            timed ones
//     copy   a copy of the same number of bytes between two buffers, on all ranks at once
//     mpi, nccl
//            that library's collective on the same number of bytes; it sums where the plugin averages, and
//            MPI cannot sum bf16 and fp16
//     ratio  that library's time / the plugin's, so above 1 the plugin is faster
//     beside, taken
//            with --beside: the time of the plugin's collective while another thread of the rank computes,
//            and how much longer that thread takes because of it; meant for ranks with one core each
#include "bench.h"
#include "llmc_zero/comm/comm.h"
#include "llmc_zero/base/error.h"
#include "llmc_zero/base/turns.h"
#include "llmc_zero/device/kernels.h"
#include "llmc_zero/device/numbers.h"
#include <mpi.h>
#include <pthread.h>
#include <stdarg.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

// -------- options

enum { ALL, ALL_GATHER, REDUCE_SCATTER, BROADCAST, COLLECTIVES };
static struct {
    int least, most, factor, ring, rounds, warm_ups, batch;  // batch 0: depends on the device
    int only, dtype, messages, beside, cuda, nccl, reduce_nccl, nccl_memory;
} opt = { .least = 64 << 10, .most = 64 << 20, .factor = 4, .rounds = 15, .warm_ups = 2, .dtype = ZERO_BF16 };

static const char usage[] =
    "usage: mpirun -np N comm [options]\n"
    "  -b BYTES             smallest buffer, with K, M or G (64K)\n"
    "  -e BYTES             largest buffer (64M)\n"
    "  -f FACTOR            factor from one size to the next (4)\n"
    "  -r BYTES             takes the next buffers of so much memory in each round, as in a step (0)\n"
    "  -n ROUNDS            timed rounds; the median is printed (15)\n"
    "  -w ROUNDS            warm-up rounds (2)\n"
    "  -m COLLECTIVES       collectives per round, which ends with a wait for the device (1; with cuda 8)\n"
    "  -c COLLECTIVE        all, all-gather, reduce-scatter, broadcast (all; broadcast only with cpu)\n"
    "  --dtype TYPE         bf16, fp32, fp16 (bf16)\n"
    "  --messages           messages, not the window\n"
    "  --beside             also beside a thread that computes\n"
    "  --device DEVICE      cpu, cuda (cpu)\n"
    "  --comm WAY           with cuda: host, nccl (host)\n"
    "  --reduce HOW         with nccl: ranks (the plugin sums in tree order), nccl (NCCL sums) (ranks)\n"
    "  --memory WHOSE       with nccl: cuda (cudaMalloc), nccl (allocated by NCCL, registered) (cuda)\n"
    "Exits with status 1 if any element is wrong.\n";

enum { LARGEST = 1 << 30, OFTEN = 100000, VALUES = 4 };
typedef struct {
    const char *name;
    int *to, least, most;
    const char *values[VALUES];  // the words that the option accepts; none: it takes a number
} option;
static const option options[] = {
    { "-b", &opt.least, 1, LARGEST, { NULL } },
    { "-e", &opt.most, 1, LARGEST, { NULL } },
    { "-f", &opt.factor, 2, LARGEST, { NULL } },
    { "-r", &opt.ring, 1, LARGEST, { NULL } },
    { "-n", &opt.rounds, 1, OFTEN, { NULL } },
    { "-w", &opt.warm_ups, 0, OFTEN, { NULL } },
    { "-m", &opt.batch, 1, OFTEN, { NULL } },
    { "-c", &opt.only, 0, 0, { "all", "all-gather", "reduce-scatter", "broadcast" } },
    { "--dtype", &opt.dtype, 0, 0, { [ZERO_F32] = "fp32", [ZERO_BF16] = "bf16", [ZERO_F16] = "fp16" } },
    { "--device", &opt.cuda, 0, 0, { "cpu", "cuda" } },
    { "--comm", &opt.nccl, 0, 0, { "host", "nccl" } },
    { "--reduce", &opt.reduce_nccl, 0, 0, { "ranks", "nccl" } },
    { "--memory", &opt.nccl_memory, 0, 0, { "cuda", "nccl" } },
};

// Called on every rank before MPI starts: rank 0 prints, and the launcher ends the others while they sleep.
static void refuse(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void refuse(const char *format, ...) {
    va_list args;
    if (zero_launched().rank) {
        sleep(1);
        exit(1);
    }
    va_start(args, format);
    fprintf(stderr, "comm: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "; --help lists the options\n");
    va_end(args);
    exit(1);
}

static int number_of(const option *o, const char *value) {
    static const char suffixes[] = "KMG";
    char *end;
    unsigned long long n = strtoull(value, &end, 10);
    const char *suffix = *end ? strchr(suffixes, *end) : NULL;
    if (suffix && n <= LARGEST) {
        n <<= 10 * (suffix - suffixes + 1);
        end++;
    }
    if (*value < '0' || *value > '9' || *end || n < (unsigned)o->least || n > (unsigned)o->most)
        refuse("option %s %s: not a whole number from %d to %d", o->name, value, o->least, o->most);
    return (int)n;
}

static int choice_of(const option *o, const char *value) {
    for (int i = 0; i < VALUES && o->values[i]; i++)
        if (!strcmp(value, o->values[i])) return i;
    refuse("option %s %s: no such value", o->name, value);
}

static void set_option(const char *name, const char *value) {
    for (const option *o = options; o < options + sizeof options / sizeof *options; o++)
        if (!strcmp(name, o->name)) {
            *o->to = *o->values ? choice_of(o, value) : number_of(o, value);
            return;
        }
    refuse("option %s: unknown", name);
}

static void read_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        int *flag = !strcmp(argv[i], "--messages") ? &opt.messages : NULL;
        if (!strcmp(argv[i], "--beside")) flag = &opt.beside;
        if (flag) {
            *flag = 1;
            continue;
        }
        if (i + 1 == argc) refuse("option %s: unknown, or its value is missing", argv[i]);
        set_option(argv[i], argv[i + 1]);
        i++;
    }
    if (opt.least > opt.most) refuse("-b %d: above -e %d", opt.least, opt.most);
    if (opt.nccl && !opt.cuda) refuse("--comm nccl: needs CUDA devices: add --device cuda");
    if (opt.reduce_nccl && !opt.nccl) refuse("--reduce nccl: add --comm nccl");
    if (opt.nccl_memory && !opt.nccl) refuse("--memory nccl: add --comm nccl");
    if (opt.nccl && opt.messages) refuse("--comm nccl: sends no messages: leave --messages out");
    if (opt.cuda && opt.only == BROADCAST)
        refuse("-c broadcast: works in the CPU's memory: leave --device cuda out");
    if (!opt.batch) opt.batch = opt.cuda ? 8 : 1;
}

// -------- ranks, device, memory

static net ranks;
static comm c;
static device d;
static memory m = { .device = &d };
static zero_config config;
static memory_request planned[COMM_MEMORIES];
static int64_t elems, part;         // elements of the whole buffer, and of a rank's part
static char *full, *shard, *other;  // (elems), (part), (elems) on the device
enum { BUFFERS = 3 };
static char *rings[BUFFERS];  // the memory they are in
static size_t used;           // bytes of a ring before the current buffers
static char *host;            // (elems), or NULL if the host can access the device's memory

static void must(int rc) {
    if (!rc) return;
    fprintf(stderr, "comm: %s\n", zero_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static char *room(size_t bytes) {
    int all = ZERO_MOVED_BY_GATHERS | ZERO_MOVED_BY_REDUCTIONS;
    char *p = memory_alloc(&m, &(memory_request){ ZERO_WORKING, "benchmark", ZERO_DEVICE, bytes, 1, all });
    if (!p) must(ZERO_ERR_MEMORY);
    return p;
}

// Sets the number of threads as the trainer does; otherwise sums would wait for threads that have no core.
static void share_cores(void) {
#ifdef _OPENMP
    int bound = omp_get_num_procs(), each = (int)sysconf(_SC_NPROCESSORS_ONLN) / ranks.ranks_on_node;
    if (each > bound) each = bound;
    if (!getenv("OMP_NUM_THREADS")) omp_set_num_threads(each > 1 ? each : 1);
#endif
}

// Includes staging for the largest reduction that the plugin sums.
static void plan(comm_way way) { must(comm_plan(planned, &config, &way, opt.most / ranks.ranks)); }

static void open_ranks(void) {
    MPI_Comm world = MPI_COMM_WORLD;
    config = zero_defaults();
    config.start.mpi_comm = &world;
    config.device = opt.cuda ? ZERO_CUDA : ZERO_CPU;
    config.comm.shared_window = !opt.messages;
    config.comm.nccl = opt.nccl;
    config.comm.reduce_nccl = opt.reduce_nccl;
    config.comm.nccl_memory = opt.nccl_memory;
    must(net_start(&ranks, &config));
    share_cores();
    must(net_agree(&ranks, device_open(&d, &config, ranks.node_rank)));
    plan((comm_way){ .ranks = ranks.ranks, .window = opt.messages ? 0 : ranks.ranks });
    must(comm_open(&c, &ranks, &config, &d, &m, planned));
    plan(c.way);
    must(net_agree(&ranks, comm_stage(&c, &m)));
}

static void take_buffers(size_t at) {
    used = at;
    full = rings[0] + at, shard = rings[1] + at, other = rings[2] + at;
}
// Takes the memory that was used longest ago.
static void next_buffers(size_t bytes) {
    take_buffers(used + 2 * bytes <= (size_t)opt.ring ? used + bytes : 0);
}

static size_t ring_bytes(void) { return opt.ring > opt.most ? opt.ring : opt.most; }
static void alloc_buffers(void) {
    for (int i = 0; i < BUFFERS; i++) {
        rings[i] = room(ring_bytes());
        must(d.f->clear(&d, COMM, rings[i], ring_bytes()));
    }
    take_buffers(0);
    memory_request on_host = { ZERO_WORKING, "benchmark", ZERO_HOST, opt.most, 1, ZERO_MOVED_BY_NONE };
    if (d.asynchronous && !(host = memory_alloc(&m, &on_host))) must(ZERO_ERR_MEMORY);
}

static void close_ranks(void) {
    comm_close(&c, 1);
    memory_free_all(&m);
    net_close(&ranks, 1);
    device_close(&d);
}

// -------- numbers

// 1: values whose sums are the same in any order and dtype; 0: the order affects the sums
static int exact;

static float value(int rank, int64_t i) {
    uint32_t u = noise_at(rank, (uint32_t)i);
    int span = 256 / c.group.ranks;  // bf16 represents every whole number up to 256
    span = span > 15 ? 15 : span < 1 ? 1 : span;
    return exact ? ((int)(u % (2 * span + 1)) - span) / 8.0f
                 : ((int)(u & 0xffff) - 0x8000) * (u >> 16 & 1 ? 0x1p-20f : 0x1p-4f);
}

static uint32_t stored(float x) {
    return opt.dtype == ZERO_F32 ? bits_of(x) : opt.dtype == ZERO_BF16 ? bf16_round(x) : fp16_round(x);
}
static float number(uint32_t x) {
    return opt.dtype == ZERO_F32    ? float_of(x)
           : opt.dtype == ZERO_BF16 ? bf16_widen((uint16_t)x)
                                    : fp16_widen((uint16_t)x);
}

static void put(char *to, int64_t i, uint32_t x) {
    if (opt.dtype == ZERO_F32)
        ((uint32_t *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = (uint16_t)x;
}
static uint32_t get(const char *from, int64_t i) {
    return opt.dtype == ZERO_F32 ? ((const uint32_t *)from)[i] : ((const uint16_t *)from)[i];
}

static size_t bytes_of(int64_t n) { return n * dtype_bytes(opt.dtype); }

// -------- collectives and their peers

static const comm_use for_unit = { .purpose = ZERO_FOR_STEP, .unit = 0, .units = 1 };

static int all_gather(void) {
    return comm_all_gather(&c, for_unit, &(comm_piece){ full, shard, part }, 1, bytes_of(1));
}
static int reduce_scatter(void) {
    return comm_reduce_scatter(&c, for_unit, &(comm_piece){ full, shard, part }, 1, opt.dtype, opt.dtype,
                               1.0f / c.group.ranks);
}
static int broadcast(void) { return comm_broadcast(&c, for_unit, 0, full, bytes_of(elems)); }

// Runs the largest collectives once, so that NCCL connects for all sizes.
static int rehearse(void *ctx) {
    part = (int64_t)(opt.most / bytes_of(1)) / c.group.ranks;
    ZERO_TRY(all_gather());
    return reduce_scatter();
}

static int copy(void) { return d.f->copy(&d, COMM, other, full, bytes_of(elems)); }

// These need no checks: an error in MPI ends the program.
static int mpi_all_gather(void) {
    int n = (int)bytes_of(part);
    return MPI_Allgather(shard, n, MPI_BYTE, other, n, MPI_BYTE, MPI_COMM_WORLD);
}
static int mpi_reduce_scatter(void) {
    return MPI_Reduce_scatter_block(full, other, (int)part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static int mpi_broadcast(void) { return MPI_Bcast(full, (int)bytes_of(elems), MPI_BYTE, 0, MPI_COMM_WORLD); }

#ifdef ZERO_HAVE_NCCL
#include "llmc_zero/comm/nccl_library.h"
cudaStream_t device_cuda_stream(device *d, device_stream s);
static ncclComm_t plain;           // NCCL without the plugin: a separate, blocking communicator
static void *registered[BUFFERS];  // its registrations

static int nccl_result(const char *what, ncclResult_t rc) {
    return rc == ncclSuccess ? 0
                             : zero_fail(ZERO_ERR_COMM, "%s: %s: %s", what, nccl.GetErrorString(rc),
                                         nccl.GetLastError(plain));
}
#define NCCL(name, ...) nccl_result("nccl" #name, nccl.name(__VA_ARGS__))

static int nccl_all_gather(void) {
    return NCCL(AllGather, shard, other, bytes_of(part), ncclInt8, plain, device_cuda_stream(&d, COMM));
}
static int nccl_reduce_scatter(void) {
    static const ncclDataType_t types[] = {
        [ZERO_F32] = ncclFloat32, [ZERO_BF16] = ncclBfloat16, [ZERO_F16] = ncclFloat16
    };
    return NCCL(ReduceScatter, full, other, part, types[opt.dtype], ncclSum, plain,
                device_cuda_stream(&d, COMM));
}

static void open_plain(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    if (!c.nccl) return;
    if (!c.group.rank) must(NCCL(GetUniqueId, &id));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    must(NCCL(CommInitRankConfig, &plain, c.group.ranks, id, c.group.rank, &config));
    for (int i = 0; i < BUFFERS && m.mover; i++)
        must(NCCL(CommRegister, plain, rings[i], ring_bytes(), &registered[i]));
}

static void close_plain(void) {
    if (!plain) return;
    for (int i = 0; i < BUFFERS; i++)
        if (registered[i]) must(NCCL(CommDeregister, plain, registered[i]));
    must(NCCL(CommDestroy, plain));
}
#else
static void open_plain(void) {}
static void close_plain(void) {}
#define nccl_all_gather NULL
#define nccl_reduce_scatter NULL
#endif

typedef int (*operation)(void);
typedef struct {
    const char *name;
    comm_kind kind;
    int from_whole, to_whole;  // 1: the whole buffer, full; 0: a part, shard
    operation run, mpi, nccl;
} collective;

static const collective collectives[COLLECTIVES] = {
    [ALL_GATHER] = { "all-gather", COMM_ALL_GATHER, 0, 1, all_gather, mpi_all_gather, nccl_all_gather },
    [REDUCE_SCATTER] = { "reduce-scatter", COMM_REDUCE_SCATTER, 1, 0, reduce_scatter, mpi_reduce_scatter,
                         nccl_reduce_scatter },
    [BROADCAST] = { "broadcast", COMM_OTHER, 1, 1, broadcast, mpi_broadcast, NULL },
};

// Returns the peer library's collective, or NULL if it has none.
static operation peer_of(const collective *k) {
    if (c.nccl) return k->nccl;
    return opt.cuda || (k->kind == COMM_REDUCE_SCATTER && opt.dtype != ZERO_F32) ? NULL : k->mpi;
}
static const char *peer_name(void) { return c.nccl ? "nccl" : "mpi"; }

// -------- correctness

static int wait(void) {
    for (device_stream s = COMPUTE; s < DEVICE_STREAMS; s++) ZERO_TRY(d.f->wait(&d, s));
    return 0;
}

// Sets new inputs, and fills the outputs with NaN.
static void fill(const collective *k) {
    char *from = k->from_whole ? full : shard, *values = device_target(&d, from, host);
    int64_t n = k->from_whole ? elems : part;
    must(d.f->fill_nan(&d, COMM, full, bytes_of(elems)));
    must(d.f->fill_nan(&d, COMM, shard, bytes_of(part)));
    must(d.f->fill_nan(&d, COMM, other, bytes_of(elems)));
    must(wait());
    if (k->kind == COMM_OTHER && c.group.rank) return;  // only the root has inputs
    for (int64_t i = 0; i < n; i++) put(values, i, stored(value(c.group.rank, i)));
    must(device_commit(&d, from, bytes_of(n), host));
}

// Returns the sum of this rank's element i over ranks [first, first + n), in tree order.
static float tree(int first, int n, int64_t i) {
    int left = 1;
    if (n == 1) return number(stored(value(first, c.group.rank * part + i)));
    while (2 * left < n) left *= 2;
    return tree(first, left, i) + tree(first + left, n - left, i);
}

static uint32_t expected(const collective *k, int64_t i, float scale) {
    if (k->kind == COMM_ALL_GATHER) return stored(value((int)(i / part), i % part));
    if (k->kind == COMM_OTHER) return stored(value(0, i));
    return stored(tree(0, c.group.ranks, i) * scale);
}

// Runs a collective and returns the number of wrong elements on all ranks. Expects sums multiplied by scale.
static long long wrong_after(const collective *k, operation run, char *to, float scale) {
    int64_t n = k->to_whole ? elems : part;
    long long mine = 0, all;
    fill(k);
    must(run());
    must(wait());
    const char *got = device_view(&d, to, bytes_of(n), host);
    if (!got) must(ZERO_ERR_DEVICE);
    for (int64_t i = 0; i < n; i++) mine += get(got, i) != expected(k, i, scale);
    MPI_Allreduce(&mine, &all, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static long long wrong_of_ours(const collective *k) {
    exact = opt.reduce_nccl;
    return wrong_after(k, k->run, k->to_whole ? full : shard, 1.0f / c.group.ranks);
}

// Returns 1 if the peer computes something else, so that comparing results is meaningless.
static int peer_differs(const collective *k) {
    if (!peer_of(k)) return 0;
    exact = 1;
    long long wrong = wrong_after(k, peer_of(k), k->kind == COMM_OTHER ? full : other, 1);
    if (wrong && !c.group.rank)
        fprintf(stderr, "comm: %s by %s: %lld wrong elements\n", k->name, peer_name(), wrong);
    return wrong != 0;
}

// -------- time

// Returns the seconds per collective of a round, on the slowest rank.
static double round_of(operation run) {
    double took, slowest;
    next_buffers(bytes_of(elems));
    MPI_Barrier(MPI_COMM_WORLD);
    double start = clock_now();
    for (int i = 0; i < opt.batch; i++) must(run());
    must(wait());
    took = (clock_now() - start) / opt.batch;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

enum { OURS, COPY, PEER, CONTENDERS };

// Alternates the order of the contenders. The median is 0 for a contender that does not run.
static void measure(const collective *k, double *medians) {
    const operation run[CONTENDERS] = { [OURS] = k->run, [COPY] = copy, [PEER] = peer_of(k) };
    static double times[CONTENDERS][OFTEN];
    for (int i = -opt.warm_ups; i < opt.rounds; i++)
        for (int j = 0; j < CONTENDERS; j++) {
            int who = i % 2 ? CONTENDERS - 1 - j : j;
            double s = run[who] ? round_of(run[who]) : 0;
            if (i >= 0) times[who][i] = s;
        }
    for (int who = 0; who < CONTENDERS; who++) medians[who] = bench_median(times[who], opt.rounds);
}

// -------- beside a thread that computes

static struct {
    pthread_t thread;
    int computes, ends;
    long parts;  // that the thread has computed so far
} other_thread;

// Uses as much memory as a matrix product does at once, because a collective takes the caches, too.
static void *compute(void *ignored) {
    enum { N = 1 << 18 };
    static float x[N];
    while (!__atomic_load_n(&other_thread.ends, __ATOMIC_RELAXED)) {
        if (!__atomic_load_n(&other_thread.computes, __ATOMIC_ACQUIRE)) {
            clock_nap(1e-3);
            continue;
        }
        for (int i = 0; i < N; i++) x[i] = x[i] * 0.5f + 1;
        __atomic_fetch_add(&other_thread.parts, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

// As the plugin's thread for collectives does, the main thread asks for short turns.
static void start_computing(void) {
    if (!opt.beside) return;
    turns_short();
    if (pthread_create(&other_thread.thread, NULL, compute, NULL))
        must(zero_fail(ZERO_ERR_MEMORY, "--beside: cannot start a thread"));
}
static void end_computing(void) {
    if (!opt.beside) return;
    __atomic_store_n(&other_thread.ends, 1, __ATOMIC_RELAXED);
    pthread_join(other_thread.thread, NULL);
}

static double parts_computed(void) { return (double)__atomic_load_n(&other_thread.parts, __ATOMIC_RELAXED); }

// Sets the time of a collective beside the other thread, and what this thread loses: in the same time,
// without a collective, it computes `alone` parts a second.
static void round_beside(operation run, double *beside, double *taken) {
    const double alone_s = 20e-3;
    __atomic_store_n(&other_thread.computes, 1, __ATOMIC_RELEASE);
    clock_nap(5e-3);  // until it computes
    double parts = parts_computed(), start = clock_now();
    clock_nap(alone_s);
    const double alone = (parts_computed() - parts) / (clock_now() - start);
    MPI_Barrier(MPI_COMM_WORLD);
    parts = parts_computed();
    start = clock_now();
    for (int i = 0; i < opt.batch; i++) must(run());
    must(wait());
    const double took = clock_now() - start;
    *taken = (took - (parts_computed() - parts) / alone) / opt.batch;
    *beside = took / opt.batch;
    __atomic_store_n(&other_thread.computes, 0, __ATOMIC_RELEASE);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void measure_beside(const collective *k, double *beside, double *taken) {
    static double besides[OFTEN], takens[OFTEN];
    if (!opt.beside) return;
    for (int i = 0; i < opt.rounds; i++) round_beside(k->run, &besides[i], &takens[i]);
    *beside = bench_median(besides, opt.rounds);
    *taken = bench_median(takens, opt.rounds);
}

// -------- table

static void print_header(void) {
    char peer[16];
    snprintf(peer, sizeof peer, "%s us", peer_name());
    printf("# %d rank%s, %s; memory of %s\n", c.group.ranks, c.group.ranks == 1 ? "" : "s", c.name, d.name);
    for (int i = 0; i < m.n_lines; i++)
        if (c.nccl) printf("# %s: %.1f MiB\n", m.lines[i].purpose, (double)m.lines[i].bytes / 1048576);
    printf("# %-14s %11s %11s %-5s %10s %10s %10s %8s", "collective", "size B", "elements", "type", "time us",
           "algbw GB/s", "busbw GB/s", "#wrong");
    printf(" %10s %6s %10s %6s", "copy us", "ratio", peer, "ratio");
    printf(opt.beside ? " %10s %10s\n" : "\n", "beside us", "taken us");
}

static void print_other(double time, double ours) {
    if (time > 0)
        printf(" %10.2f %6.2f", time * 1e6, time / ours);
    else
        printf(" %10s %6s", "-", "-");
}

static void print_row(const collective *k, const double *medians, long long wrong, double beside,
                      double taken) {
    double size = bytes_of(elems), algbw = size / medians[OURS] * 1e-9;
    double bus = k->kind == COMM_OTHER ? c.group.ranks > 1 : (c.group.ranks - 1.0) / c.group.ranks;
    printf("  %-14s %11.0f %11lld %-5s", k->name, size, (long long)elems, dtype_name(opt.dtype));
    printf(" %10.2f %10.2f %10.2f %8lld", medians[OURS] * 1e6, algbw, algbw * bus, wrong);
    print_other(medians[COPY], medians[OURS]);
    print_other(medians[PEER], medians[OURS]);
    if (opt.beside) printf(" %10.2f %10.2f", beside * 1e6, taken * 1e6);
    printf("\n");
    fflush(stdout);
}

// Returns 1 if a result is wrong. Rounds the size down to a multiple of 128 elements per rank, as in the
// plugin's shards.
static int row(const collective *k, int64_t bytes) {
    double medians[CONTENDERS], beside = 0, taken = 0;
    part = (int64_t)(bytes / bytes_of(1)) / c.group.ranks / 128 * 128;
    elems = part * c.group.ranks;
    take_buffers(0);
    if (!part)
        must(zero_fail(ZERO_ERR_ARGUMENT, "-b %lld: less than 128 elements for each of %d ranks",
                       (long long)bytes, c.group.ranks));
    fill(k);
    measure(k, medians);
    measure_beside(k, &beside, &taken);
    long long wrong = wrong_of_ours(k);
    int differs = peer_differs(k);
    if (!c.group.rank) print_row(k, medians, wrong, beside, taken);
    return wrong || differs;
}

int main(int argc, char **argv) {
    int level, started = 0, failed = 0, rows = 0;
    int rank = zero_launched().rank, ranks = zero_launched().ranks;
    if (argc == 2 && !strcmp(argv[1], "--help")) {
        if (!rank) fputs(usage, stdout);
        return 0;
    }
    if (!ranks) refuse("%s", zero_last_error());
    read_options(argc, argv);
    link_send_in_parts();  // as the plugin does when it starts MPI
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    MPI_Comm_size(MPI_COMM_WORLD, &started);
    if (started != ranks)
        refuse("the launcher started %d ranks, but MPI has %d: start with mpirun", ranks, started);
    open_ranks();
    alloc_buffers();
    must(comm_prepare(&c, &m, rehearse, NULL));
    open_plain();
    start_computing();
    if (!c.group.rank) print_header();
    for (int k = ALL_GATHER; k < COLLECTIVES; k++) {
        if (opt.only ? opt.only != k : opt.cuda && k == BROADCAST) continue;
        for (int64_t bytes = opt.least; bytes <= opt.most; bytes *= opt.factor, rows++)
            failed += row(&collectives[k], bytes);
    }
    if (!c.group.rank) printf("# %d rows, %d of them wrong\n", rows, failed);
    end_computing();
    close_plain();
    close_ranks();
    MPI_Finalize();
    return failed != 0;
}
