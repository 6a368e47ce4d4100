// Tests exchanges between ranks, and how they fail: mpirun -np 3 mpi_net. Other uses, of tests/ranks.sh:
// `mpi_net leaves`: rank 1 returns without zero_destroy. `mpi_net level LEVEL [OVERLAP]`: the program itself
// initialises MPI with this thread level; prints the outcome of net_start.
#include <pthread.h>
#include <string.h>
#include <unistd.h>
#include "../llmc_zero/base/clock.h"
#include "../llmc_zero/net/failure.h"
#include "check.h"
#include "toy.h"

enum { RANKS = 3, MOST_BYTES = 3 << 20 };
static char bytes_out[RANKS][MOST_BYTES + 1], bytes_in[RANKS][MOST_BYTES + 1];
static char *const out[] = { bytes_out[0], bytes_out[1], bytes_out[2] };
static char *const in[] = { bytes_in[0], bytes_in[1], bytes_in[2] };
static const net_use unit_7 = { .unit = 7, .units = 1 };
static char host[64];
static net n;

static void open_net(double timeout_s) {
    static MPI_Comm world;
    zero_config c = zero_defaults();
    world = MPI_COMM_WORLD;
    c.start.mpi_comm = &world;
    c.comm.timeout_s = timeout_s;
    MUST(net_start(&n, &c));
    CHECK(n.rank == checks.rank && n.ranks == RANKS && n.node_rank == n.rank && n.hosts == 1);
}

// After a failure, every later exchange returns the same message.
static void must_stay_failed(void) {
    char first[1024];
    snprintf(first, sizeof first, "%s", zero_last_error());
    CHECK(net_least(&n, 1) == ZERO_ERR_COMM && !strcmp(zero_last_error(), first));
}

static int barrier(void) { return net_exchange(&n, EXCHANGE_BARRIER, unit_7, 0, out, in, 0); }

// Returns the number of ranks that report a failure; all call it.
static int count_reports(int *mine) {
    int all = 0;
    *mine = failure_reports(&n, 1);
    checks_meet();
    MPI_Allreduce(mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

// -------- contents

static char byte_at(int from, int to, int round, size_t i) {
    return (char)(from * 31 + to * 17 + round * 7 + (int)i + (int)(i >> 8) * 3);
}

// Returns how many bytes, inside and after the messages, differ from what point-to-point messages would have
// left there.
static int try_exchange(exchange_kind x, int root, size_t bytes, int round) {
    int wrong = 0;
    for (int r = 0; r < n.ranks; r++) {
        int to = x == EXCHANGE_SCATTER ? r : -1;
        for (size_t i = 0; i < bytes; i++) out[r][i] = byte_at(n.rank, to, round, i);
        memset(in[r], 99, bytes + 1);
    }
    MUST(net_exchange(&n, x, unit_7, root, out, in, bytes));
    for (int r = 0; r < n.ranks; r++) {
        int from = r != n.rank &&
                   (x == EXCHANGE_SCATTER || x == EXCHANGE_GATHER || (x == EXCHANGE_ROOT && r == root));
        int to = x == EXCHANGE_SCATTER ? n.rank : -1;
        for (size_t i = 0; i < bytes; i++) wrong += in[r][i] != (from ? byte_at(r, to, round, i) : 99);
        wrong += in[r][bytes] != 99;
    }
    return wrong;
}

static void check_contents(void) {
    static const size_t sizes[] = { 0, 1, 4096, 65537, MOST_BYTES };
    int round = 0;
    char text[40] = "";
    open_net(60);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int x = EXCHANGE_SCATTER; x <= EXCHANGE_BARRIER; x++, round++) {
            CHECK_SETTING("an exchange of kind %d, %zu bytes", x, sizes[s]);
            if ((checks.rank + round) % 3 == 0) clock_nap(1e-3 * (round % 4));  // different ranks are late
            CHECK(
                !try_exchange((exchange_kind)x, round % RANKS, x == EXCHANGE_BARRIER ? 0 : sizes[s], round));
        }
    CHECK_SETTING("values");
    if (checks.rank == 0) strcpy(text, "from rank 0");
    MUST(net_broadcast(&n, 0, text, sizeof text));
    CHECK(!strcmp(text, "from rank 0"));
    CHECK(net_least(&n, checks.rank != RANKS - 1) == 0 && net_least(&n, (checks.rank + 2) % RANKS + 5) == 5);
    net_close(&n, 1);
}

// -------- a rank that misses an exchange

static void check_late(void) {
    static const struct {
        net_use use;
        exchange_kind x;
        const char *where;
    } rows[] = {
        { { .unit = 7, .units = 1 }, EXCHANGE_SCATTER, "a reduce-scatter of unit 7" },
        { { .unit = 7, .units = 3 }, EXCHANGE_GATHER, "an all-gather of units 7 to 9" },
        { { .unit = 7, .units = 1 }, EXCHANGE_BARRIER, "a barrier" },
        { { .units = 0 }, EXCHANGE_GATHER, "an all-gather of scalars" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char expected[512];
        int mine;
        CHECK_SETTING("the last rank misses %s", rows[i].where);
        open_net(1.5);
        snprintf(expected, sizeof expected,
                 "rank %d (host %s) waited 1.5 s in %s for rank 2 (host %s): stuck, dead, or calling the "
                 "hooks in a different order",
                 checks.rank, host, rows[i].where, host);
        if (checks.rank < RANKS - 1) {
            CHECK(net_exchange(&n, rows[i].x, rows[i].use, 0, out, in, 1000) == ZERO_ERR_COMM);
            CHECK(!strcmp(zero_last_error(), expected));
        }
        checks_meet();
        CHECK(count_reports(&mine) == 1 && mine == (checks.rank == 0));
        net_close(&n, 0);
    }
}

// One rank hangs, and the next one (in a ring) is an exchange ahead of the third when both time out. It waits
// for both others, but names only the one that hangs. The third rank began to wait first, so it must report.
static void check_first_wait_reports(int hangs) {
    const int ahead = (hangs + 1) % RANKS, behind = (hangs + 2) % RANKS;
    const int root = checks.rank == ahead ? ahead : hangs;
    char expected[120];
    int mine, rc = 0;
    CHECK_SETTING("the rank that began to wait first reports that rank %d hangs", hangs);
    open_net(1.5);
    snprintf(expected, sizeof expected, " for rank %d (host %s): stuck", hangs, host);
    if (checks.rank != hangs) rc = net_exchange(&n, EXCHANGE_ROOT, unit_7, root, out, in, 10);
    if (checks.rank == ahead) rc = barrier();
    CHECK(rc == (checks.rank == hangs ? 0 : ZERO_ERR_COMM));
    CHECK(!rc || strstr(zero_last_error(), expected));
    checks_meet();
    if (checks.rank == hangs) checks_meet();  // until the others have ended
    mine = failure_reports(&n, 1);
    if (checks.rank != hangs) checks_meet();
    CHECK(mine == (checks.rank == behind));
    net_close(&n, 0);
}

// A receive that has timed out is cancelled: what the other rank sends later leaves its memory unchanged.
static void check_cancelled(void) {
    static const size_t sizes[] = { 64, MOST_BYTES };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK_SETTING("a message of %zu bytes for a cancelled receive", sizes[i]);
        open_net(1);
        memset(out[0], 0x41, MOST_BYTES);
        memset(in[1], 0x55, MOST_BYTES);
        memset(in[2], 0x55, MOST_BYTES);
        if (checks.rank == 0) CHECK(net_exchange(&n, EXCHANGE_GATHER, unit_7, 0, out, in, sizes[i]) < 0);
        checks_meet();
        // MPI has taken rank 0's short messages before it gave up, and buffers those to it.
        if (checks.rank) CHECK(net_exchange(&n, EXCHANGE_GATHER, unit_7, 0, out, in, sizes[i]) < 0 || !i);
        checks_meet();
        for (size_t k = 0; k < sizes[i] && !checks.rank; k++)
            if (in[1][k] != 0x55 || in[2][k] != 0x55) {
                CHECK(!"the memory has changed");
                break;
            }
        if (checks.rank == 0 || i) must_stay_failed();
        checks_meet();
        net_close(&n, 0);
    }
}

// -------- ranks that end the job

// The ranks from `first` on fail and end the job. The others wait in a barrier, and fail with the words of
// the lowest one, which reports.
static void check_ends(int first) {
    char expected[80];
    int mine = 0, all, later;
    CHECK_SETTING("ranks from %d on end the job", first);
    open_net(60);
    snprintf(expected, sizeof expected, "rank %d ended the job: the disk of rank %d is full", first, first);
    if (checks.rank >= first) {
        zero_fail(ZERO_ERR_IO, "the disk of rank %d is full", checks.rank);
        mine = failure_reports(&n, 7);
    } else {
        CHECK(barrier() == ZERO_ERR_COMM);
        // A higher rank may have been heard first.
        CHECK(!strcmp(zero_last_error(), expected) ||
              (first < RANKS - 1 && strstr(zero_last_error(), "ended the job: the disk of rank 2 is full")));
        mine = failure_reports(&n, 1);
    }
    // On a busy machine rank 1 may be so late that it has heard rank 2.
    later = checks.rank == first && n.ended.root > first;
    MPI_Allreduce(MPI_IN_PLACE, &later, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(all == 1 && (later || mine == (checks.rank == first)));
    net_close(&n, 0);
}

// Rank 0 ends the job while another of its threads waits in an exchange that the others have not joined.
static void *wait_in_vain(void *failed) {
    *(int *)failed = barrier() == ZERO_ERR_COMM;
    return NULL;
}
static void check_end_during_exchange(void) {
    CHECK_SETTING("the end of a job, with a thread in an exchange");
    open_net(60);
    if (checks.rank == 0) {
        pthread_t thread;
        int failed = 0;
        CHECK(!pthread_create(&thread, NULL, wait_in_vain, &failed));
        clock_nap(0.3);  // until the thread is in the exchange
        zero_fail(ZERO_ERR_IO, "the disk is full");
        CHECK(failure_reports(&n, 1) == 1);
        CHECK(!pthread_join(thread, NULL) && failed);
        checks_meet();
    } else {
        checks_meet();
        int rc = barrier();  // what rank 0 has sent before its end still arrives
        if (!rc) rc = barrier();
        CHECK(rc == ZERO_ERR_COMM);
        CHECK(!strcmp(zero_last_error(), "rank 0 ended the job: the disk is full"));
    }
    checks_meet();
    net_close(&n, 0);
}

// All, some or none of the ranks fail.
static void check_agree(void) {
    open_net(60);
    for (int first = 0; first <= RANKS; first++) {
        int rc = checks.rank >= first ? zero_fail(ZERO_ERR_IO, "disk %d", checks.rank) : 0;
        char expected[160];
        CHECK_SETTING("ranks from %d on fail, and all agree", first);
        snprintf(expected, sizeof expected, first ? "rank %d (host %s): disk %d" : "disk 0", first, host,
                 first);
        CHECK(net_agree(&n, rc) == (first < RANKS ? ZERO_ERR_IO : 0));
        if (first == RANKS) continue;
        CHECK(!strcmp(zero_last_error(), first ? expected : "disk 0") && zero_failed()->lower == checks.rank);
    }
    net_close(&n, 1);
}

static void run(const char *asked) {
    if (checks.ranks != RANKS) {
        fprintf(stderr, "mpi_net needs 3 ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    gethostname(host, sizeof host - 1);
    check_contents();
    check_agree();
    check_late();
    check_first_wait_reports(2);
    check_first_wait_reports(0);
    check_cancelled();
    for (int first = 0; first < RANKS; first++) check_ends(first);
    check_end_during_exchange();
}

static int leave(void) {
    toy t;
    zero_config c = zero_defaults();
    if (toy_create(&t, &c, NULL)) return 2;
    if (zero_rank(t.z) == 1) return 0;
    zero_barrier(t.z);
    zero_end_job(t.z, 1, zero_last_error());
}

static int try_level(int level, int overlap) {
    int provided;
    zero_config c = zero_defaults();
    c.overlap = overlap;
    MPI_Init_thread(NULL, NULL, level, &provided);
    int rc = net_start(&n, &c);
    printf("%s\n", rc ? zero_last_error() : "accepted");
    net_close(&n, !rc);
    return MPI_Finalize();
}

int main(int argc, char **argv) {
    static const int levels[] = { MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED };
    if (argc == 2 && !strcmp(argv[1], "leaves")) return leave();
    if (argc == 4 && !strcmp(argv[1], "level")) return try_level(levels[atoi(argv[2])], atoi(argv[3]));
    return checks_main(argc, argv, "mpi_net", run);
}
