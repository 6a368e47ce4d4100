// Tests collectives without staging: mpirun -np N mpi_direct, for any N. Ranks read each other's memory
// directly, or send messages from array to array. A rank may change its memory right after a collective that
// read it. An error about unreadable memory names the rank. (mpi_bits compares the bits with staged ones.)
//   mpi_direct killed      with mpirun --enable-recovery: a rank is killed, and the others report it in time
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "../llmc_zero/comm/host.h"
#include "../llmc_zero/net/failure.h"
#include "../llmc_zero/net/start.h"

enum { LARGE = 8 << 20 };  // copies of this many bytes bypass the caches

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

// Separate buffers of all ranks' elements and of this rank's.
static comm_piece new_piece(int64_t elems) {
    const size_t bytes = (size_t)elems * sizeof(float);
    return (comm_piece){ room(bytes * (size_t)checks.ranks), room(bytes), elems };
}

// -------- memory that changes afterwards

// An integer that differs between ranks, rounds and elements; sums over ranks are exact.
static float value(int rank, int round, int64_t i) {
    return (float)((i * 7 + rank * 31 + round * 13) % 1021);
}

static float mean(int round, int64_t i) {
    float sum = 0;
    for (int r = 0; r < checks.ranks; r++) sum += value(r, round, i);
    return sum * (1.0f / checks.ranks);
}

// Rank 0 reads slowly, because its target pages are not allocated yet. The other ranks overwrite their
// sources, last element first, as soon as they return from the collective. Pieces are so large that copies
// bypass the caches.
static void check_sources_may_change(void) {
    const int64_t elems = LARGE / sizeof(float);
    int64_t wrong = 0;
    CHECK_SETTING("sources change right after a collective, %s", messages ? "messages" : "direct reads");
    direct_from(0);
    open_comm(20, 4 << 20);
    for (comm_kind kind = 0; c.host && kind < COMM_OTHER; kind++) {
        const comm_call call = { .kind = kind, .n = 1, .total = 1 };
        CHECK(host_goes_direct(&c, &call) == !messages && host_goes_unstaged(&c, &call) == messages);
    }
    for (int round = 0; round < 8; round++) {
        const comm_piece p = new_piece(elems);
        const int reduces = round % 2;
        const int64_t sent = reduces ? elems * checks.ranks : elems;
        const int64_t received = reduces ? elems : elems * checks.ranks;
        float *source = (float *)(reduces ? p.full : p.shard),
              *target = (float *)(reduces ? p.shard : p.full);
        for (int64_t i = 0; i < sent; i++) source[i] = value(checks.rank, round, i);
        if (checks.rank == 0) MUST(madvise(target, received * sizeof(float), MADV_DONTNEED));
        MUST(reduces ? comm_reduce_scatter(&c, for_unit, &p, 1, ZERO_F32, ZERO_F32, 0)
                     : comm_all_gather(&c, for_unit, &p, 1, sizeof(float)));
        for (int64_t i = sent - 1; i >= 0; i--) source[i] = -1;
        for (int64_t i = 0; i < received; i++)
            wrong += target[i] != (reduces ? mean(round, checks.rank * elems + i)
                                           : value((int)(i / elems), round, i % elems));
        MUST(comm_barrier(&c));
        memory_free_all(&m);
        m.device = &device_host;
    }
    CHECK(wrong == 0);
    CHECK(c.traffic.all_gather[ZERO_FOR_STEP] == 4 * LARGE * (checks.ranks - 1) &&
          c.traffic.reduce_scatter[ZERO_FOR_STEP] == 4 * LARGE * (checks.ranks - 1));
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
        const comm_piece p = new_piece(elems);
        if (checks.rank < last && f == AWAY_REDUCE)
            rc = comm_reduce_scatter(&c, for_unit, &p, 1, ZERO_F32, ZERO_F32, 0);
        else if (checks.rank < last)
            rc = comm_all_gather(&c, for_unit, &p, 1, sizeof(float));
        else if (f == OTHER_KIND)
            rc = comm_reduce_scatter(&c, for_unit, &p, 1, ZERO_F32, ZERO_F32, 0);
        else if (f < AWAY && last) {
            char *unmapped = room(1 << 20);
            MUST(mprotect(unmapped, 1 << 20, PROT_NONE));
            int64_t mine[2] = { f == GONE ? ended_process() : getpid(),
                                (intptr_t)(f == GONE ? p.shard : unmapped) };
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
    const comm_piece p = new_piece(elems);
    int rc = 0, victim = checks.ranks / 2, direct = reads_directly();
    const struct itimerval timer = { .it_value = { 0, 30000 } };
    signal(SIGALRM, SIG_DFL);
    double start = MPI_Wtime(), begun = start;
    for (; !rc && begun - start < 30; done++) {
        begun = MPI_Wtime();
        if (checks.rank == victim && done == 4) MUST(setitimer(ITIMER_REAL, &timer, NULL));
        rc = done % 2 ? comm_reduce_scatter(&c, for_unit, &p, 1, ZERO_F32, ZERO_F32, 0)
                      : comm_all_gather(&c, for_unit, &p, 1, sizeof(float));
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
    for (messages = !can_read; messages < 2; messages++) {
        check_sources_may_change();
        check_failures();
    }
    int status = checks_end("mpi_direct");
    MPI_Finalize();
    return status;
}
