// Tests collectives without staging: mpirun -np N mpi_direct, for any N. Ranks read each other's memory
// directly, or send messages from array to array. Bits and traffic must equal those of the definition and of
// staged collectives. A rank may change its memory right after a collective that read it. An error about
// unreadable memory names the rank. (mpi_zero checks the bits at every stage.)
//   mpi_direct killed      with mpirun --enable-recovery: a rank is killed, and the others report it in time
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "../llmc_zero/comm/host.h"
#include "../llmc_zero/net/start.h"
#include "toy.h"

enum { PIECES = 4, LARGE = 8 << 20 };  // LARGE: copies of this many bytes bypass the caches
static const int64_t lengths[PIECES] = { 33333, 1, 5 * 128, 70007 };

static net ranks;
static comm c;
static const comm_use for_unit = { .purpose = ZERO_FOR_STEP, .unit = 0, .units = 1 };
static memory m = { .device = &device_host }, staging = { .device = &device_host };

static int messages;  // 1: ranks exchange messages instead of using the shared window

static void direct_from(size_t least) {
    host_direct_least[COMM_ALL_GATHER] = host_direct_least[COMM_REDUCE_SCATTER] = host_unstaged_least = least;
}

static memory_request planned[COMM_MEMORIES];

static void open_comm(double timeout_s, int64_t window_bytes) {
    static MPI_Comm world;
    zero_config config = zero_defaults();
    world = MPI_COMM_WORLD;
    config.start.mpi_comm = &world;
    config.comm.timeout_s = timeout_s;
    config.comm.window_bytes = window_bytes;
    config.comm.shared_window = !messages;
    MUST(net_start(&ranks, &config));
    comm_way way = { ranks.ranks, !messages, 0 };
    MUST(comm_plan(planned, &config, &way, 0));
    MUST(comm_open(&c, &ranks, &config, &device_host, &staging, planned));
}

static void close_comm(int clean) {
    comm_close(&c, clean);
    net_close(&ranks, clean);
    memory_free_all(&m);
    memory_free_all(&staging);
    m.device = staging.device = &device_host;
}

static int reads_directly(void) { return c.host && c.host->direct; }

static void *room(size_t bytes) {
    void *p = memory_alloc(&m,
                           &(memory_request){ .class_ = ZERO_WORKING, .purpose = "test", .bytes = bytes });
    MUST(!p);
    return p;
}

// -------- against the definition

// Returns values of very different magnitudes, so that the order of summation matters.
static float value(int rank, int piece, int64_t i) {
    uint32_t x = (uint32_t)(i * 2654435761u + (uint32_t)rank * 40503u + (uint32_t)piece * 7919u);
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return ((x & 1) ? 1.0f : -1.0f) * (float)((x >> 1 & 1023) + 1) * exp2f((float)(x >> 24 & 15) - 8);
}
typedef struct {
    comm_piece pieces[PIECES];
    int n;
} buffers;

static buffers new_buffers(int n, const int64_t *elems, zero_dtype full, zero_dtype shard, int in_place) {
    buffers b = { .n = n };
    for (int i = 0; i < n; i++) {
        char *whole = room(elems[i] * checks.ranks * dtype_bytes(full));
        char *part = in_place ? whole + checks.rank * elems[i] * dtype_bytes(full)
                              : room(elems[i] * dtype_bytes(shard));
        b.pieces[i] = (comm_piece){ whole, part, elems[i] };
    }
    return b;
}

static int64_t gather(const buffers *b, zero_dtype t) {
    int64_t wrong = 0;
    for (int k = 0; k < b->n; k++) {
        const comm_piece *p = &b->pieces[k];
        memset(p->full, 0xff, p->elems * checks.ranks * dtype_bytes(t));
        for (int64_t i = 0; i < p->elems; i++) toy_store(t, p->shard, i, value(checks.rank, k, i));
    }
    MUST(comm_all_gather(&c, for_unit, b->pieces, b->n, dtype_bytes(t)));
    for (int k = 0; k < b->n; k++)
        for (int64_t i = 0; i < b->pieces[k].elems * checks.ranks; i++) {
            int64_t n = b->pieces[k].elems;
            wrong += toy_load(t, b->pieces[k].full, i) != toy_rounded(t, value((int)(i / n), k, i % n));
        }
    return wrong;
}

static float mean(zero_dtype t, int piece, int64_t i) {
    float sum = 0;
    for (int r = 0; r < checks.ranks; r++) sum += toy_rounded(t, value(r, piece, i));
    return sum * (1.0f / checks.ranks);
}

static int64_t reduce(const buffers *b, zero_dtype full, zero_dtype shard, int add) {
    int64_t wrong = 0;
    for (int k = 0; k < b->n; k++) {
        const comm_piece *p = &b->pieces[k];
        for (int64_t i = 0; i < p->elems; i++) toy_store(shard, p->shard, i, 3);
        for (int64_t i = 0; i < p->elems * checks.ranks; i++)
            toy_store(full, p->full, i, value(checks.rank, k, i));
    }
    MUST(comm_reduce_scatter(&c, for_unit, b->pieces, b->n, full, shard, add));
    for (int k = 0; k < b->n; k++)
        for (int64_t i = 0, n = b->pieces[k].elems; i < n; i++) {
            float want = toy_rounded(shard, mean(full, k, checks.rank * n + i));
            wrong += toy_load(shard, b->pieces[k].shard, i) != (add ? 3 + want : want);
        }
    return wrong;
}

static void check_values(int n, const int64_t *elems, int64_t window_bytes, int n_cases) {
    static const struct {
        zero_dtype full, shard;
        int add, in_place;
    } cases[] = {
        { ZERO_BF16, ZERO_BF16, 0, 0 },
        { ZERO_F32, ZERO_F32, 0, 0 },
        { ZERO_BF16, ZERO_F32, 1, 0 },
        { ZERO_F32, ZERO_F32, 0, 1 },
    };
    for (int k = 0; k < n_cases; k++)
        for (int direct = 0; direct < 2; direct++) {
            zero_dtype full = cases[k].full, shard = cases[k].shard;
            int64_t sent = 0;
            CHECK_SETTING("%d pieces, the first of %lld, case %d, %s of %lld KiB, direct %d", n,
                          (long long)elems[0], k, messages ? "messages" : "window",
                          (long long)window_bytes >> 10, direct);
            direct_from(direct ? 0 : SIZE_MAX);
            open_comm(20, window_bytes);
            int unstaged = direct && c.host;
            for (comm_kind kind = 0; c.host && kind < COMM_OTHER; kind++) {
                const comm_call call = { .kind = kind, .n = n, .total = 1 };
                CHECK(host_goes_direct(&c, &call) == (unstaged && !messages));
                CHECK(host_goes_unstaged(&c, &call) == (unstaged && messages));
            }
            for (int i = 0; i < n; i++) sent += elems[i] * (c.group.ranks - 1) * (int64_t)dtype_bytes(full);
            buffers b = new_buffers(n, elems, full, shard, cases[k].in_place);
            CHECK(reduce(&b, full, shard, cases[k].add) == 0);
            CHECK(c.traffic.reduce_scatter[ZERO_FOR_STEP] == sent);
            if (full == shard) CHECK(gather(&b, full) == 0);
            CHECK(c.traffic.all_gather[ZERO_FOR_STEP] == (full == shard ? sent : 0));
            close_comm(1);
        }
}

// -------- memory that changes afterwards

// Rank 0 reads slowly, because its target pages are not allocated yet. The other ranks overwrite their
// sources, last element first, as soon as they return from the collective.
static void check_sources_may_change(void) {
    CHECK_SETTING("sources change right after a collective");
    direct_from(0);
    open_comm(20, 4 << 20);
    int64_t wrong = 0, elems = 1 << 20;
    size_t bytes = elems * sizeof(float);
    for (int round = 0; round < 20; round++) {
        buffers b = new_buffers(1, &elems, ZERO_F32, ZERO_F32, 0);
        comm_piece *p = &b.pieces[0];
        int reduces = round % 2, value_now = round + 1;
        float *source = (float *)(reduces ? p->full : p->shard);
        int64_t n = reduces ? elems * checks.ranks : elems;
        for (int64_t i = 0; i < n; i++) source[i] = (float)value_now;
        char *target = reduces ? p->shard : p->full;
        if (checks.rank == 0)
            MUST(madvise(target, (reduces ? 1 : checks.ranks) * bytes, MADV_DONTNEED));
        else
            memset(target, 0, (reduces ? 1 : checks.ranks) * bytes);
        MUST(reduces ? comm_reduce_scatter(&c, for_unit, p, 1, ZERO_F32, ZERO_F32, 0)
                     : comm_all_gather(&c, for_unit, p, 1, sizeof(float)));
        for (int64_t i = n - 1; i >= 0; i--) source[i] = -1;
        const float *got = (const float *)target;
        for (int64_t i = 0; i < (reduces ? elems : elems * checks.ranks); i++)
            wrong += got[i] != (float)value_now;
        MUST(comm_barrier(&c));
        memory_free_all(&m);
        m.device = &device_host;
    }
    CHECK(wrong == 0);
    close_comm(1);
}

// -------- unreadable memory, mismatches

static pid_t ended_process(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    MUST(child < 0 || waitpid(child, NULL, 0) != child);
    return child;
}

// The last rank announces unreadable memory, misses the collective, or calls a different one. The others must
// fail, after the time limit only if a rank is away, and name the rank whose memory they could not read.
static void check_failures(void) {
    enum { GONE, UNMAPPED, AWAY, AWAY_REDUCE, OTHER_KIND, FAILURES };
    static const char *const words[] = { "it is gone", "Bad address", "waited 3 s in an all-gather",
                                         "waited 3 s in a reduce-scatter", "different collectives" };
    direct_from(0);
    for (int f = messages ? AWAY : GONE; f < FAILURES; f++) {
        CHECK_SETTING("%s, %s", messages ? "messages" : "direct reads", words[f]);
        open_comm(f == AWAY || f == AWAY_REDUCE ? 3 : 100, 4 << 20);
        int64_t elems = 5000;
        int last = checks.ranks - 1, rc = 0;
        size_t total = elems * c.group.ranks * sizeof(float);
        buffers b = new_buffers(1, &elems, ZERO_F32, ZERO_F32, 0);
        if (checks.rank < last && f == AWAY_REDUCE)
            rc = comm_reduce_scatter(&c, for_unit, b.pieces, 1, ZERO_F32, ZERO_F32, 0);
        else if (checks.rank < last)
            rc = comm_all_gather(&c, for_unit, b.pieces, 1, sizeof(float));
        else if (f == OTHER_KIND)
            rc = comm_reduce_scatter(&c, for_unit, b.pieces, 1, ZERO_F32, ZERO_F32, 0);
        else if (f < AWAY && last) {
            char *unmapped = room(1 << 20);
            MUST(mprotect(unmapped, 1 << 20, PROT_NONE));
            int64_t mine[2] = { f == GONE ? ended_process() : getpid(),
                                (intptr_t)(f == GONE ? b.pieces[0].shard : unmapped) };
            const int64_t *all[c.group.ranks];
            const comm_call call = { .use = for_unit, .kind = COMM_ALL_GATHER, .total = total };
            MUST(host_announce(&c, &call, mine, 2, all));
        }
        CHECK(rc == (last && (checks.rank < last || f == OTHER_KIND) ? ZERO_ERR_COMM : 0));
        if (rc) {
            char pair[32];
            snprintf(pair, sizeof pair, "the memory of rank %d", last);
            CHECK(strstr(zero_last_error(), words[f]));
            if (f == GONE || f == UNMAPPED) CHECK(strstr(zero_last_error(), pair));
        }
        MPI_Barrier(MPI_COMM_WORLD);
        close_comm(0);
    }
}

// A timer kills the middle rank during collectives. Without that rank MPI cannot combine the results, so each
// rank checks only its own.
static int run_killed(void) {
    CHECK_SETTING("a rank is killed");
    direct_from(0);
    open_comm(10, 4 << 20);
    int64_t elems = LARGE / 4, done = 0;
    buffers b = new_buffers(1, &elems, ZERO_F32, ZERO_F32, 0);
    int rc = 0, victim = checks.ranks / 2, direct = reads_directly();
    const struct itimerval timer = { .it_value = { 0, 30000 } };
    signal(SIGALRM, SIG_DFL);
    double start = MPI_Wtime(), begun = start;
    for (; !rc && begun - start < 30; done++) {
        begun = MPI_Wtime();
        if (checks.rank == victim && done == 4) MUST(setitimer(ITIMER_REAL, &timer, NULL));
        rc = done % 2 ? comm_reduce_scatter(&c, for_unit, b.pieces, 1, ZERO_F32, ZERO_F32, 0)
                      : comm_all_gather(&c, for_unit, b.pieces, 1, sizeof(float));
    }
    CHECK(direct && done > 2 && rc == ZERO_ERR_COMM);
    CHECK(strstr(zero_last_error(), "it is gone") || strstr(zero_last_error(), "waited 10 s"));
    CHECK(zero_last_failure()->rank == checks.rank);  // so that a trainer prefixes the message with the step
    if (checks.rank == 0)
        printf("after %lld collectives: %s\nmpi_direct killed np=%d: settings: %d passed, %d failed\n",
               (long long)done, zero_last_error(), checks.ranks, !checks.failed, checks.failed);
    fflush(stdout);
    _exit(checks.failed);
}

int main(int argc, char **argv) {
    int provided;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return 1;
    checks_begin();
    open_comm(20, 4 << 20);
    int can_read = reads_directly() || checks.ranks == 1;
    close_comm(1);
    if (!can_read && !checks.rank)
        printf(
            "skip mpi_direct: ranks cannot read each other's memory here, or large pages are unavailable\n");
    if (argc > 1 && !strcmp(argv[1], "killed")) return can_read ? run_killed() : MPI_Finalize();
    static const int64_t large = LARGE / sizeof(uint16_t);
    for (messages = !can_read; messages < 2; messages++) {
        check_values(PIECES, lengths, 4 << 20, 4);
        check_values(PIECES, lengths, 64 << 10, 4);
        check_values(1, &large, 4 << 20, 1);
        check_sources_may_change();
        check_failures();
    }
    int status = checks_end("mpi_direct");
    MPI_Finalize();
    return status;
}
