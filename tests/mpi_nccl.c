// Compares collectives through NCCL with those through host memory, and tests failures. With the stand-ins
// (tests/cuda/) each rank has its own GPU. With real GPUs, there may be more ranks than GPUs if NCCL is 2.30
// or newer.
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>
#include "check.h"
#include "pretend.h"

#ifndef ZERO_HAVE_NCCL
int main(void) {
    printf("skip mpi_nccl: built without NCCL\n0 passed, 0 failed, 1 skipped\n");
    return 0;
}
#else
#include "../llmc_zero/base/clock.h"
#include "../llmc_zero/comm/comm.h"
#include "../llmc_zero/net/net.h"
#include "../llmc_zero/comm/nccl.h"
#include "../llmc_zero/comm/nccl_state.h"
#include "device.h"

enum { MOST_PIECES = 3, ROUND = 64 << 10 };  // ROUND: bytes per round, less than the pieces need
static const int64_t piece_elems[MOST_PIECES] = { 128 * 301, 128, 128 * 37 };

static net ranks;
static comm c;
static const comm_use for_unit = { .purpose = ZERO_FOR_STEP, .unit = 0, .units = 1 };
static device d;
static memory m;
static zero_config config;  // without overlap, all device streams are the same stream

#ifdef CUDA_STAND_IN
static void counts(long *waits, long *allocations) { cuda_stand_in_counts(NULL, waits, allocations); }
#else
static void counts(long *waits, long *allocations) { *waits = *allocations = 0; }
#endif

// -------- set-up

static memory_request planned[COMM_MEMORIES];

static void plan(const comm_way *way, size_t reduced_bytes) {
    MUST(comm_plan(planned, &config, way, reduced_bytes));
}
static void plan_opened(size_t reduced_bytes) { plan(&c.way, reduced_bytes); }

// Memory for incoming data: [0] for the host's collectives, [1] for NCCL's. by() selects one.
static struct {
    char *at;
    size_t bytes;
} incoming[2];

static void stage(int nccl) {
    MUST(comm_stage(&c, &m));
    incoming[nccl].at = c.incoming;
    incoming[nccl].bytes = c.incoming_bytes;
}

// Opens everything except NCCL.
static void begin(int cuda_device, double timeout_s) {
    config.device = ZERO_CUDA;
    config.cuda_device = cuda_device;
    config.comm.window_bytes = ROUND;
    config.comm.timeout_s = timeout_s;
    MUST(net_start(&ranks, &config));
    MUST(device_open(&d, &config, ranks.node_rank));
    m = (memory){ .device = &d };
    zero_config without = config;
    without.comm.nccl = 0;
    const comm_way way = comm_way_asked(&without, ranks.ranks, ranks.ranks_on_node);
    plan(&way, 0);
    MUST(comm_open(&c, &ranks, &without, &d, &m, planned));
    stage(0);
}

static const comm_functions *through_nccl;

static void open_nccl(void) {
    MUST(comm_check_nccl(&c, &config));
    MUST(comm_open_nccl(&c, &config, &m));
    through_nccl = c.f;
}

static void end(void) {
    comm_close(&c, 1);
    CHECK(!c.nccl && !d.check && !d.is_stalled);
    memory_free_all(&m);
    net_close(&ranks, 1);
    device_close(&d);
}

static void *device_bytes(size_t bytes) {
    int all = ZERO_MOVED_BY_GATHERS | ZERO_MOVED_BY_REDUCTIONS;
    void *p = memory_alloc(&m, &(memory_request){ ZERO_WORKING, "test", ZERO_DEVICE, bytes, 1, all });
    if (!p) MUST(ZERO_ERR_MEMORY);
    return p;
}

// Uses stream COMPUTE, so it does not wait for collectives.
static void to_device(void *to, const void *from, size_t bytes) {
    MUST(d.f->copy(&d, COMPUTE, to, from, bytes));
    MUST(d.f->wait(&d, COMPUTE));
}
static void to_host(void *to, const void *from, size_t bytes) { to_device(to, from, bytes); }

// -------- a set of pieces

typedef struct {
    int n, separate;  // separate: 1: the shards are not in the full arrays
    zero_dtype type, shard_type;
    int add;
} shape;
typedef struct {
    comm_piece pieces[MOST_PIECES];
    int64_t elems;
} set;  // elems: the sum over all shards

enum { DTYPES = 3 };
static char *fulls, *shards, *host[DTYPES], *host_shards[DTYPES];
static int64_t all_elems;

static set set_of(const shape *s) {
    set t = { .elems = 0 };
    size_t size = dtype_bytes(s->type), shard_size = dtype_bytes(s->shard_type);
    for (int i = 0; i < s->n; i++) {
        char *full = fulls + t.elems * c.group.ranks * size;
        char *own = full + c.group.rank * piece_elems[i] * size;
        char *shard = s->separate ? shards + t.elems * shard_size : own;
        t.pieces[i] = (comm_piece){ full, shard, piece_elems[i], s->add ? (const float *)shard : NULL };
        t.elems += piece_elems[i];
    }
    return t;
}

// Computes this rank's values, of very different magnitudes, so that the order of sums matters.
static void make_values(zero_dtype type) {
    int64_t n = all_elems * c.group.ranks;
    host[type] = malloc(n * dtype_bytes(type));
    host_shards[type] = malloc(all_elems * dtype_bytes(type));
    if (!host[type] || !host_shards[type]) MUST(ZERO_ERR_MEMORY);
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = noise_at(77 + c.group.rank, (uint32_t)i);
        toy_store(type, host[type], i, ((int)(u & 0xffff) - 0x8000) * (u >> 16 & 1 ? 0x1p-20f : 0x1p-4f));
    }
    for (int64_t i = 0; i < all_elems; i++) toy_store(type, host_shards[type], i, (float)i);
}
static void fill(const shape *s) {
    to_device(fulls, host[s->type], all_elems * c.group.ranks * dtype_bytes(s->type));
    to_device(shards, host_shards[s->shard_type], all_elems * dtype_bytes(s->shard_type));
}

static void take_shards(const shape *s, const set *t, char *to) {
    size_t size = dtype_bytes(s->shard_type);
    for (int i = 0; i < s->n; to += t->pieces[i].elems * size, i++)
        to_host(to, t->pieces[i].shard, t->pieces[i].elems * size);
}

// -------- same bits

static const comm_functions *by(int nccl) {
    c.incoming = incoming[nccl].at;
    c.incoming_bytes = incoming[nccl].bytes;
    return nccl ? through_nccl : &comm_host_functions;
}

static int reduce(const shape *s, const set *t, int by_nccl) {
    return by(by_nccl)->reduce_scatter(&c, for_unit, t->pieces, s->n, s->type, s->shard_type,
                                       1.0f / c.group.ranks);
}
static void reduced(const shape *s, const set *t, int by_nccl) {
    MUST(reduce(s, t, by_nccl));
    MUST(d.f->wait(&d, COMM));
}

static int gather(const shape *s, const set *t, int by_nccl) {
    return by(by_nccl)->all_gather(&c, for_unit, t->pieces, s->n, dtype_bytes(s->type));
}

static void gathered(const shape *s, const set *t, int by_nccl) {
    MUST(gather(s, t, by_nccl));
    MUST(d.f->wait(&d, by_nccl ? GATHER : COMM));
}

static int64_t sent(void) {
    return c.traffic.all_gather[ZERO_FOR_STEP] + c.traffic.reduce_scatter[ZERO_FOR_STEP];
}

// Runs a reduction or a gather, and copies its result to `to`. Returns the number of bytes sent.
static int64_t run_one(const shape *s, int gathers, int by_nccl, char *to) {
    set t = set_of(s);
    const int64_t before = sent();
    fill(s);
    if (gathers) {
        gathered(s, &t, by_nccl);
        to_host(to, fulls, t.elems * c.group.ranks * dtype_bytes(s->type));
    } else {
        reduced(s, &t, by_nccl);
        take_shards(s, &t, to);
    }
    return sent() - before;
}

static void check_same(const shape *s, int gathers, char *expected, char *got) {
    const int64_t elems = set_of(s).elems;
    const size_t bytes = gathers ? elems * c.group.ranks * dtype_bytes(s->type)
                                 : elems * dtype_bytes(s->shard_type);
    const comm_way flat = { .ranks = c.group.ranks };
    for (int nccl = 0; nccl < 2; nccl++) {
        const comm_way *used = nccl && !gathers ? &c.way : &flat;
        CHECK(run_one(s, gathers, nccl, nccl ? got : expected) ==
              comm_reduction_bytes(used, elems, dtype_bytes(s->type)));
    }
    CHECK(!memcmp(expected, got, bytes));
}

// Runs a gather and a reduction at the same time; ranks wait for them in different orders. Queuing them must
// not allocate memory or, with overlap, make the host wait.
static void check_both(char *expected, char *got) {
    shape s = { 3, 1, ZERO_BF16, ZERO_BF16, 0 };
    set t = set_of(&s);
    size_t size = t.elems * 2, full = size * c.group.ranks;
    char *other = fulls + full;  // fulls has space for fp32, so bf16 uses only half
    set u = t;
    for (int i = 0; i < s.n; i++) u.pieces[i].full += full;
    fill(&s);
    gathered(&s, &u, 0);
    reduced(&s, &t, 0);
    take_shards(&s, &t, expected);
    to_host(expected + size, other, full);
    for (int round = 0; round < 3; round++) {
        long waits[2], allocations[2];
        fill(&s);
        counts(&waits[0], &allocations[0]);
        // the gather is still reading the shards, so the sums go into `full`
        for (int i = 0; i < s.n; i++)
            t.pieces[i].shard = t.pieces[i].full + c.group.rank * t.pieces[i].elems * 2;
        MUST(reduce(&s, &t, 1));
        MUST(gather(&s, &u, 1));
        counts(&waits[1], &allocations[1]);
        CHECK(!config.overlap || waits[0] == waits[1]);
        CHECK(allocations[0] == allocations[1]);
        MUST(d.f->wait(&d, (c.group.rank + round) % 2 ? COMM : GATHER));
        MUST(d.f->wait(&d, (c.group.rank + round) % 2 ? GATHER : COMM));
        take_shards(&s, &t, got);
        to_host(got + size, other, full);
        CHECK(!memcmp(expected, got, size + full));
    }
}

// Queues more gathers than the ring holds.
static void check_many(void) {
    shape s = { 1, 0, ZERO_F32, ZERO_F32, 0 };
    comm_piece p = { fulls, fulls + c.group.rank * 512, 128 };
    fill(&s);
    for (int i = 0; i < 3 * QUEUED; i++) MUST(comm_all_gather(&c, for_unit, &p, 1, 4));
    MUST(d.f->wait(&d, GATHER));
}

static int rehearse_both(void *ctx) {
    shape s = { MOST_PIECES, 1, ZERO_F32, ZERO_F32, 0 };
    set t = set_of(&s);
    MUST(gather(&s, &t, 1));
    return reduce(&s, &t, 1);
}

// -------- memory, groups

#ifdef CUDA_STAND_IN
static size_t device_in_use(void) {
    size_t left = 0, all = 0;
    CHECK(cudaMemGetInfo(&left, &all) == cudaSuccess);
    return all - left;
}

// Returns the device bytes in the memory table, including what the stand-in adds to each allocation.
enum { RED_ZONE = 256 };
static size_t in_table(void) {
    size_t sum = 0;
    for (const memory_block *b = m.blocks; b; b = b->next)
        if (m.lines[b->line].tier == ZERO_DEVICE) sum += b->bytes + (b->base ? RED_ZONE : 0);
    return sum;
}

// Finds a function of the loaded library.
static void *of_stand_in(const char *name) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD),
         *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(1);
    }
    return found;
}

static size_t registered(void) { return ((size_t(*)(void))of_stand_in("nccl_stand_in_registered"))(); }

// The table must account for all device memory in use, including that of the NCCL connections that the
// rehearsal opened.
static void check_memory(size_t in_use_before) {
    size_t moved = 0;
    const zero_memory_line *nccl = NULL;
    for (int i = 0; i < m.n_lines; i++)
        if (strstr(m.lines[i].purpose, "NCCL")) nccl = &m.lines[i];
    CHECK(device_in_use() - in_use_before == in_table());
    CHECK(nccl && nccl->tier == ZERO_DEVICE && nccl->class_ == ZERO_WORKING);
    // each communicator is connected with all of its other ranks
    const int hosts = comm_hosts(&c.way);
    const int connections = (c.group.ranks - 1) + (c.way.nccl - 1) + (hosts - 1);
    CHECK(nccl && nccl->bytes ==
                      (2 + (hosts > 1)) * ((64u << 10) + RED_ZONE) + connections * ((256u << 10) + RED_ZONE));
    // blocks are registered only with the communicators that transfer them
    for (const memory_block *b = m.blocks; b && config.comm.nccl_memory; b = b->next)
        moved += b->bytes *
                 (!!(b->moved_by & ZERO_MOVED_BY_GATHERS) + !!(b->moved_by & ZERO_MOVED_BY_REDUCTIONS) +
                  (hosts > 1 && b->base == c.incoming));
    CHECK(registered() == moved && (moved > 0) == config.comm.nccl_memory);
}

static long groups_so_far(void) { return ((long (*)(void))of_stand_in("nccl_stand_in_groups"))(); }

// A collective must use few groups, because NCCL starts a thread for each.
static void check_groups(int rounds) {
    shape s = { MOST_PIECES, 1, ZERO_BF16, ZERO_BF16, 0 };
    set t = set_of(&s);
    fill(&s);
    long before = groups_so_far();
    gathered(&s, &t, 1);
    CHECK(groups_so_far() - before == 1);
    reduced(&s, &t, 1);
    CHECK(groups_so_far() - before == 1 + rounds * (c.way.nccl < c.group.ranks ? 2 : 1));
}
#else
static size_t device_in_use(void) { return 0; }
static size_t in_table(void) { return 0; }
static void check_memory(size_t in_use_before) { (void)in_use_before; }
static void check_groups(int rounds) {}
#endif

// The time limit must not include work queued before the collective. Here that work alone takes longer than
// the limit, and no call waits for it.
static void check_work_ahead(void) {
#ifdef CUDA_STAND_IN
    void *event;
    set_manner("lazy");
    CHECK_SETTING("long work ahead");
    MUST(d.f->create_event(&d, &event));
    MPI_Barrier(MPI_COMM_WORLD);
    ranks.timeout_s = 1.0;
    for (int i = 0; i < 250; i++) MUST(d.f->clear(&d, COMPUTE, fulls, 512));
    MUST(d.f->record(&d, event, COMPUTE));
    MUST(d.f->order(&d, GATHER, event));
    comm_piece p = { fulls, fulls + c.group.rank * 512, 128 };
    MUST(comm_all_gather(&c, for_unit, &p, 1, 4));
    double start = clock_now();
    while (clock_now() - start < 2 * ranks.timeout_s) {  // each check runs two operations
        CHECK(!d.check(d.check_ctx));
        usleep(50000);
    }
    ranks.timeout_s = config.comm.timeout_s;
    MUST(d.f->wait(&d, GATHER));
    d.f->destroy_event(&d, event);
#endif
}

// NCCL's own sum must be close. NCCL adds in a different order and rounds after each addition, but it adds
// fp32 gradients in fp32 and rounds to a narrower shard only at the end.
static void check_ring(char *expected, char *got) {
    static const double unit[] = { [ZERO_F32] = 0x1p-23, [ZERO_BF16] = 0x1p-7, [ZERO_F16] = 0x1p-10 };
    static const struct {
        zero_dtype type, shard_type;
        int separate, add;
    } rows[] = {
        { ZERO_F32, ZERO_F32, 0, 0 },   { ZERO_F32, ZERO_F32, 1, 0 },   { ZERO_F32, ZERO_F32, 1, 1 },
        { ZERO_BF16, ZERO_BF16, 0, 0 }, { ZERO_BF16, ZERO_BF16, 1, 0 }, { ZERO_BF16, ZERO_F32, 1, 1 },
        { ZERO_F32, ZERO_BF16, 1, 0 },  { ZERO_F16, ZERO_F16, 0, 0 },   { ZERO_F16, ZERO_F16, 1, 0 },
        { ZERO_F16, ZERO_F32, 1, 1 },   { ZERO_F32, ZERO_F16, 1, 0 },
    };
    int64_t different = 0;
    for (int k = 0; k < (int)(sizeof rows / sizeof *rows); k++) {
        shape s = { 3, rows[k].separate, rows[k].type, rows[k].shard_type, rows[k].add };
        CHECK_SETTING("NCCL sums, dtype %d, shards of dtype %d, separate %d, added %d", (int)s.type,
                      (int)s.shard_type, s.separate, s.add);
        run_one(&s, 0, 0, expected);
        run_one(&s, 0, 1, got);
        int64_t far = 0;
        for (int64_t i = 0; i < set_of(&s).elems; i++) {
            double a = toy_load(s.shard_type, expected, i), b = toy_load(s.shard_type, got, i),
                   size = a < 0 ? -a : a;
            double limit = 2048 * c.group.ranks * unit[s.type] + (s.add ? (double)i * 0x1p-22
                                                                  : s.type != s.shard_type
                                                                      ? size * unit[s.shard_type]
                                                                      : 0);
            far += !(a - b <= limit && b - a <= limit);
            different += a != b;
        }
        CHECK(!far);
    }
    CHECK_SETTING("NCCL sums in another order");
    CHECK(c.group.ranks < 3 || MANNERS == 1 || different > 0);
}

// Each shape runs in one order of streams, in the next call in the next one.
static void check_all_shapes(char *expected, char *got) {
    static int turn;
    turn++;
    for (int mode = 0; mode < MANNERS; mode++) {
        int at = turn;
        set_manner(manners[mode]);
        for (zero_dtype type = ZERO_F32; type <= ZERO_F16; type++)
            for (int n = 1; n <= MOST_PIECES; n += 2)
                for (int kind = 0; kind < 4; kind++) {
                    if (++at % MANNERS != mode) continue;
                    // Shards are 0: in the full arrays; 1: separate; 2: separate, in fp32; 3: separate, in
                    // fp32, and added to.
                    shape s = { n, kind > 0, type, kind > 1 ? ZERO_F32 : type, kind == 3 };
                    CHECK_SETTING("%s, dtype %d, %d pieces, shards %d", manners[mode], (int)type, n, kind);
                    check_same(&s, 0, expected, got);
                    if (kind < 2) check_same(&s, 1, expected, got);
                }
        for (zero_dtype narrow = ZERO_BF16; narrow <= ZERO_F16;
             narrow++) {  // gradients with comm.reduce_fp32
            shape s = { MOST_PIECES, 1, ZERO_F32, narrow, 0 };
            CHECK_SETTING("%s, fp32 into dtype %d", manners[mode], (int)narrow);
            check_same(&s, 0, expected, got);
        }
        CHECK_SETTING("%s, a reduction and a gather at once", manners[mode]);
        check_both(expected, got);
        CHECK_SETTING("%s, many gathers", manners[mode]);
        check_many();
    }
}

static void alloc_arrays(void) {
    for (int i = 0; i < MOST_PIECES; i++) all_elems += piece_elems[i];
    fulls = device_bytes(all_elems * c.group.ranks * sizeof(float));
    shards = device_bytes(all_elems * sizeof(float));
    for (int type = 0; type < DTYPES; type++) make_values(type);
    plan_opened(all_elems * sizeof(float));
    stage(1);
    MUST(comm_prepare(&c, &m, rehearse_both, NULL));
}

static void free_arrays(void) {
    for (int type = 0; type < DTYPES; type++) {
        free(host[type]);
        free(host_shards[type]);
    }
    all_elems = 0;
}

// one_round 1: staging is as large as the bucket needs; 0: it has ROUND bytes per rank. each: ranks per
// pretended host, in two groups if that is a power of two and divides the ranks; 0: one host.
static void check_results(int reduce_nccl, int overlap, int one_round, int nccl_memory, int each) {
    const int two_groups = each > 1 && checks.ranks % each == 0 && !reduce_nccl;
    size_t in_use = 0;
    config.comm.reduce_nccl = reduce_nccl;
    config.comm.nccl_memory = nccl_memory;
    config.overlap = overlap;
    CHECK_SETTING("opens: NCCL sums %d, overlap %d, one round %d, NCCL's memory %d, %d ranks per host",
                  reduce_nccl, overlap, one_round, nccl_memory, each);
    ranks_per_host = each;
    begin(checks.rank % zero_cuda_devices(), 30.0);
    in_use = device_in_use() - in_table();
    open_nccl();
    CHECK(c.way.nccl == (two_groups ? each : c.group.ranks));
    if (one_round) config.comm.window_bytes = 0;
    plan_opened((size_t)1 << 40);
    if (MANNERS > 1 && one_round && !reduce_nccl)  // the plan exceeds the device's memory
        CHECK(comm_stage(&c, &m) == ZERO_ERR_MEMORY &&
              strstr(zero_last_error(), "no memory for bytes of other ranks: 256.0 MiB"));
    alloc_arrays();
    check_memory(in_use);
    if (!reduce_nccl) check_groups(one_round ? 1 : 2);
    size_t bytes = all_elems * (c.group.ranks + 1) * sizeof(float);
    char *expected = malloc(bytes), *got = malloc(bytes);
    if (!expected || !got) MUST(ZERO_ERR_MEMORY);
    if (reduce_nccl)
        check_ring(expected, got);
    else {
        check_all_shapes(expected, got);
        if (overlap) check_work_ahead();
    }
    free(expected);
    free(got);
    free_arrays();
    end();
    CHECK_SETTING("ends normally, and frees its memory");
    CHECK(device_in_use() == in_use);
    ranks_per_host = 0;
}

// -------- the plugin's memory

#ifdef CUDA_STAND_IN
// Returns how many communicators transfer memory with that purpose. wide: 16-bit gradients are sent as fp32.
static int movers_of(const char *purpose, int stage, int wide) {
    if (!strcmp(purpose, "parameters")) return stage > 0;
    if (!strncmp(purpose, "gradients on the wire", 21)) return 1;
    if (!strncmp(purpose, "gradients", 9)) return (stage == 0) + (stage < 2 && !wide);
    if (!strncmp(purpose, "buckets", 7)) return stage >= 2 && !wide;
    return !strncmp(purpose, "slots", 5) || !strcmp(purpose, "bytes of other ranks");
}

// zero_create must register the memory that the stage transfers, or none, count no traffic, and connect all
// ranks.
static void check_stage(int stage, int micro_batches, int reduce_fp32, int nccl_memory) {
    static const zero_tensor tensors[] = { { "shared", 1, { 700 }, 1, 0, 1, 0 },
                                           { "block", 1, { 5000 }, 3, 1, 1, 0 } };
    static const zero_unit units[] = {
        { "shared", 2, 2, 2 }, { "0", 1, 1, 0 }, { "1", 1, 1, 0 }, { "2", 1, 1, 0 }
    };
    size_t moved = 0;
    int connected = 0, wide = reduce_fp32 && (stage >= 2 || micro_batches == 1);
    zero *z;
    zero_config own = zero_defaults();
    zero_memory_line line;
    zero_traffic none = { 0 }, t;
    own.device = ZERO_CUDA;
    own.comm.nccl = 1;
    own.numbers.dtype = ZERO_BF16;
    own.stage = stage;
    own.micro_batches = micro_batches;
    own.comm.reduce_fp32 = reduce_fp32;
    own.comm.nccl_memory = nccl_memory;
    CHECK_SETTING("stage %d, %d micro-batches, fp32 on the wire %d, NCCL's memory %d", stage, micro_batches,
                  reduce_fp32, nccl_memory);
    MUST(zero_create(&z, &own, tensors, 2, units, 4));
    for (int i = 0; zero_memory(z, i, &line); i++) {
        if (line.tier != ZERO_DEVICE) continue;
        moved += nccl_memory * movers_of(line.purpose, stage, wide) * line.bytes;
        if (strcmp(line.purpose, "NCCL (measured)")) continue;
        connected++;
        CHECK(line.bytes > 2 * (size_t)(checks.ranks - 1) * (256 << 10));
    }
    CHECK(registered() == moved && connected == 1);
    zero_traffic_info(z, &t);
    for (int i = 0; i < ZERO_TRAFFIC_PURPOSES; i++)
        CHECK(t.all_gather[i] == none.all_gather[i] && t.reduce_scatter[i] == none.reduce_scatter[i]);
    zero_destroy(z);
}

static void check_stages(void) {
    set_manner("eager");
    for (int i = 0; i < 16; i++) check_stage(i % 4, 1 + i / 4 % 2, i / 8, 1);
    for (int stage = 0; stage < 4; stage++) check_stage(stage, 1, 0, 0);
}
#else
static void check_stages(void) {}
#endif

// -------- failures

#ifdef CUDA_STAND_IN
// Rank 1 gathers fewer elements. Every rank must fail and name the collective, in its wait and in every later
// call, and must not wait for the device when it closes.
static void check_different(void) {
    const comm_use use = { .purpose = ZERO_FOR_STEP, .unit = 107, .units = 1 };
    char who[32], first[1024];
    CHECK_SETTING("different collectives");
    begin(-1, 30.0);
    open_nccl();
    alloc_arrays();
    comm_piece p = { fulls, fulls, c.group.rank == 1 ? 128 : 256 };
    p.shard += c.group.rank * p.elems * 4;
    int rc = comm_all_gather(&c, use, &p, 1, 4);
    if (!rc) rc = d.f->wait(&d, GATHER);
    CHECK(rc == ZERO_ERR_COMM);
    snprintf(first, sizeof first, "%s", zero_last_error());
    snprintf(who, sizeof who, "rank %d (host ", c.group.rank);
    CHECK(!strncmp(first, who, strlen(who)) && zero_last_failure()->unit == 107);
    CHECK(strstr(first, "): the all-gather of unit 107 (collective 3)") && strstr(first, "invalid usage"));
    CHECK(comm_reduce_scatter(&c, for_unit, &p, 1, ZERO_F32, ZERO_F32, 1) == ZERO_ERR_COMM);
    CHECK(!strcmp(first, zero_last_error()));
    comm_close(&c, 1);
    CHECK(d.is_stalled);
    memory_free_all(&m);
    net_close(&ranks, 1);
    device_close(&d);
}

// Checks NCCL with another version on the victim (-1: on all ranks). All ranks must fail with `part` in their
// message; if it is NULL, they must succeed.
static void check_start(const char *what, int victim, const char *value, int cuda_device, const char *part) {
    static const char name[] = "CUDA_STAND_IN_NCCL_VERSION";
    CHECK_SETTING("start: %s", what);
    if (checks.rank == victim || victim < 0) cuda_stand_in_set(name, value);
    begin(cuda_device, 10.0);
    int rc = comm_check_nccl(&c, &config);
    const int right = part ? rc < 0 && strstr(zero_last_error(), part) : rc == 0;
    CHECK(right);
    if (!right) fprintf(stderr, "  %s\n", zero_last_error());
    if (!rc) MUST(comm_open_nccl(&c, &config, &m));
    cuda_stand_in_set(name, NULL);
    end();
}

// The driver reports the memory that all ranks use on a GPU, so each rank records an equal share. In the
// stand-in a rank sees only its own memory.
static int rehearse_nothing(void *ctx) { return 0; }
static void check_shared_memory(void) {
    CHECK_SETTING("start: one GPU, memory");
    setenv("CUDA_STAND_IN_NCCL_VERSION", "23007", 1);
    begin(0, 10.0);
    open_nccl();
    plan_opened(0);
    MUST(comm_prepare(&c, &m, rehearse_nothing, NULL));
    for (int i = 0; i < m.n_lines; i++)
        if (strstr(m.lines[i].purpose, "NCCL"))
            CHECK(m.lines[i].bytes == 2 * ((64 << 10) + RED_ZONE) / (size_t)c.group.ranks);
    end();
    unsetenv("CUDA_STAND_IN_NCCL_VERSION");
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

// Tests ranks that each have a GPU or all share one, with versions of NCCL that do or do not support sharing.
static void check_sharing(void) {
    static const char needs[] = "1 GPU, and NCCL 2.28.9 needs one for each",
                      untold[] = "is not configured to share";
    static const char variable[] = "NCCL_MULTI_RANK_GPU_ENABLE";
    static const struct {
        const char *what, *version;
        int asked, one_gpu;  // asked: 1: --comm nccl, 0: auto
        const char *multi;   // the variable's value in the environment; NULL: not set
        const char *part;
    } rows[] = {
        { "one GPU", "22809", 1, 1, NULL, needs },
        { "one GPU, with the variable", "22809", 1, 1, "1", needs },
        { "one GPU from 2.30 on", "23007", 1, 1, NULL, NULL },
        { "one GPU from 2.30 on, auto", "23007", 0, 1, NULL, untold },
        { "one GPU from 2.30 on, with the variable", "23007", 0, 1, "1", NULL },
        { "one GPU from 2.30 on, forbidden", "23007", 1, 1, "0", untold },
        { "2.30, a GPU each", "23007", 1, 0, NULL, NULL },
    };
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        const char *multi = rows[i].multi;
        if (multi) setenv(variable, multi, 1);
        config.comm.nccl = rows[i].asked ? 1 : -1;
        check_start(rows[i].what, -1, rows[i].version, rows[i].one_gpu ? 0 : -1, rows[i].part);
        // the plugin sets the variable only if needed
        const char *want = multi                              ? multi
                           : rows[i].one_gpu && !rows[i].part ? "1"
                                                              : "",
                   *now = getenv(variable);
        CHECK(!strcmp(now ? now : "", want));
        unsetenv(variable);
    }
    config.comm.nccl = 1;
}

static void check_starts(void) {
    check_sharing();
    check_start("versions differ", 1, "22907", -1, " has NCCL 2.28.9 and rank 1 on ");
    CHECK(strstr(zero_last_error(), " 2.29.7: they must be the same"));
    check_start("too old", 1, "22501", -1, "NCCL 2.25.1 is too old; 2.26 or newer is needed");
    CHECK(!strncmp(zero_last_error(), "rank 1 (host ", 13));
    check_start("older than at compile time", -1, "22602", -1, NULL);
    use_devices(1);
    check_start("fewer GPUs than ranks", -1, "22809", -1, "start at most 1 rank there, or");
    check_shared_memory();
    use_devices(8);
}
#else  // NCCL itself may not notice that ranks differ
static void check_starts(void) {}
static void check_different(void) {}
#endif

static void body(const char *asked) {
    int gpus, version = 0;
#ifdef CUDA_STAND_IN
    setenv("CUDA_STAND_IN_MEMORY", "268435456", 0);
    use_devices(8);
#endif
    gpus = zero_cuda_devices();
    config = zero_defaults();
    config.comm.nccl = 1;
    if (gpus < checks.ranks && (gpus < 1 || nccl_load() || nccl.GetVersion(&version) || version < 23000)) {
        checks.skipped = gpus < 1 ? zero_last_error() : "fewer GPUs than ranks";
        return;
    }
    check_results(0, 1, 0, 0, 0);
    check_results(0, 0, 1, 1, 0);
    check_results(0, 1, 0, 0, 2);
    check_results(0, 0, 1, 1, 2);
    check_results(1, 1, 1, 0, 2);
    check_stages();
    check_starts();
    check_different();
}

int main(int argc, char **argv) { return checks_main(argc, argv, "mpi_nccl", body); }
#endif
