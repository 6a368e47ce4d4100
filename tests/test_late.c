// Tests messages about late ranks and about a rank that exits without zero_destroy, and the fields of a
// failure. Time during which the process is stopped must not count as waiting.
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include "unit.h"
#include "../llmc_zero/net/failure.h"
#include "../llmc_zero/base/error.h"
#include "ranks.h"
#include "toy.h"

enum { RANKS = 200 };
static rendezvous_peer who[RANKS];

// A network in which no other rank ever answers.
static void do_nothing(net *n) { (void)n; }
static void tell_nobody(net *n, const net_note *note) {}
static const net_functions silence = { .abandon = do_nothing, .tell = tell_nobody, .look = do_nothing };

static net some_ranks(int ranks) {
    static net_peer peers[RANKS];
    for (int r = 0; r < ranks; r++) {
        snprintf(who[r].host, sizeof who[r].host, "node%d", r);
        peers[r] = (net_peer){ .gone = 1 };  // spares this rank the wait for an answer
    }
    return (net){ .rank = 1,
                  .ranks = ranks,
                  .who = who,
                  .peers = peers,
                  .f = &silence,
                  .timeout_s = 2.5,
                  .ended = { .root = -1 },
                  .lock = PTHREAD_MUTEX_INITIALIZER };
}

static void says(net *n, net_use use, exchange_kind x, const char *missing, const char *message) {
    assert_int_equal(failure_late(n, use, x, missing), ZERO_ERR_COMM);
    assert_string_equal(zero_last_error(), message);
}

#define END "stuck, dead, or calling the hooks in a different order"
static void ranks_and_collectives(void **state) {
    net n = some_ranks(3);
    net_use one = { .unit = 7, .units = 1 }, three = { .unit = 7, .units = 3 }, scalars = { .units = 0 };
    net_use direct = { .name = "an all-gather", .unit = 7, .units = 1 };  // waits in its final barrier
    static const char first[] = { 1, 0, 0 }, both[] = { 1, 0, 1 };
    says(&n, one, EXCHANGE_SCATTER, first,
         "rank 1 (host node1) waited 2.5 s in a reduce-scatter of unit 7 for rank 0 (host node0): " END);
    says(
        &n, three, EXCHANGE_SCATTER, first,
        "rank 1 (host node1) waited 2.5 s in a reduce-scatter of units 7 to 9 for rank 0 (host node0): " END);
    says(&n, one, EXCHANGE_BARRIER, both,
         "rank 1 (host node1) waited 2.5 s in a barrier for ranks 0 (host node0) and 2 (host node2): " END);
    says(&n, direct, EXCHANGE_BARRIER, first,
         "rank 1 (host node1) waited 2.5 s in an all-gather of unit 7 for rank 0 (host node0): " END);
    says(&n, scalars, EXCHANGE_GATHER, first,
         "rank 1 (host node1) waited 2.5 s in an all-gather of scalars for rank 0 (host node0): " END);
    for (int i = 0; i < 2; i++) {  // rank 0 has reported that it is waiting too, or is in a later exchange
        n = some_ranks(3);
        n.peers[0] = i ? (net_peer){ .ahead = 1 } : (net_peer){ .late = 1 };
        says(&n, one, EXCHANGE_SCATTER, both,
             "rank 1 (host node1) waited 2.5 s in a reduce-scatter of unit 7 for rank 2 (host node2): " END);
    }
    n.who = NULL;  // as in the exchange of the hosts' names
    says(&n, scalars, EXCHANGE_GATHER, first,
         "rank 1 (host unknown) waited 2.5 s in an all-gather of scalars for rank 0 (host unknown): " END);
}

// A long list of ranks ends with the number of ranks left out. The message is not truncated.
static void many_ranks(void **state) {
    net n = some_ranks(RANKS);
    char missing[RANKS];
    int named = 0, more = 0;
    memset(missing, 1, sizeof missing);
    missing[1] = 0;
    memset(who[5].host, 'h', sizeof who[5].host - 1);
    assert_int_equal(failure_late(&n, (net_use){ .unit = 7, .units = 1 }, EXCHANGE_GATHER, missing),
                     ZERO_ERR_COMM);
    for (const char *p = strstr(zero_last_error(), " for "); (p = strstr(p, " (host")); p++) named++;
    assert_true(named > 3);
    assert_int_equal(sscanf(strstr(zero_last_error(), " and "), " and %d more: stuck", &more), 1);
    assert_int_equal(named + more, RANKS - 1);
    assert_non_null(strstr(zero_last_error(), "in a different order"));
}

// Of the late ranks, one reports: the lowest of those in the earliest exchange. Here that is rank 1, in
// exchange 5.
static void who_reports(void **state) {
    static const char both[] = { 1, 0, 1 };
    static const struct {
        net_peer lower, higher;
        int reports;
    } rows[] = {
        { { .late = 1, .exchange = 5 }, { .gone = 1 }, 0 },
        { { .gone = 1 }, { .late = 1, .exchange = 5 }, 1 },
        { { .gone = 1 }, { .late = 1, .exchange = 4 }, 0 },
        { { .late = 1, .exchange = 6 }, { .late = 1, .exchange = 6 }, 1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        net n = some_ranks(3);
        n.exchanges = 5;
        n.peers[0] = rows[i].lower;
        n.peers[2] = rows[i].higher;
        assert_int_equal(failure_late(&n, (net_use){ .unit = 7, .units = 1 }, EXCHANGE_GATHER, both),
                         ZERO_ERR_COMM);
        assert_int_equal(n.reports, rows[i].reports);
    }
}

static void nap_ms(long ms) { nanosleep(&(struct timespec){ 0, ms * 1000000 }, NULL); }

static void stopped(void **state) {
    int status = 0;
    pid_t child = fork();
    if (!child) {
        patience p = patience_start();
        const double begin = p.last;
        raise(SIGSTOP);
        double waited = patience_waited(&p);
        for (int i = 0; i < 4; i++) {
            nap_ms(50);
            waited = patience_waited(&p);
        }
        _exit(waited < 0.19 ? 1 : waited > p.last - begin - 0.8 + 0.25 ? 2 : 0);
    }
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    nap_ms(800);  // of which at most 0.2 s count
    kill(child, SIGCONT);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

// Rank 1 returns from its program while rank 0 is waiting for it. Both end, and only rank 1 prints.
static void one_leaves(int rank, void *path) {
    toy t;
    zero_config c = zero_defaults();
    c.start = (zero_start_config){ ZERO_START_TCP, rank, 2, .server = server };
    if (!freopen(path, "a", stderr)) return;
    o[rank].rc = toy_create(&t, &c, NULL);
    if (o[rank].rc || rank) return;  // start_child then exits
    o[rank].rc = zero_barrier(t.z);
    zero_destroy(t.z);
}
static void exits_without_destroy(void **state) {
    char path[] = "/tmp/llmc_zero_late.XXXXXX", printed[1024] = "";
    const char *sentence = " exited without zero_destroy: call it on every rank before the program ends, or "
                           "zero_end_job after an error";
    const int file = mkstemp(path);
    fresh_outcomes();
    for (int rank = 0; rank < 2; rank++) start_child(rank, one_leaves, path);
    assert_int_equal(end_children(2), 0);
    assert_true(read(file, printed, sizeof printed - 1) > 0);
    unlink(path);
    close(file);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 1);
    assert_int_equal(o[0].rc, ZERO_ERR_COMM);
    assert_true(!strncmp(o[0].message, "rank 1 ended the job: rank 1 (host ", 35));
    assert_non_null(strstr(o[0].message, sentence));
    assert_true(!strncmp(printed, "rank 1 (host ", 13));
    assert_string_equal(strchr(printed, ')') + 1 + strlen(sentence), "\n");
}

// A failure sets its fields. Details added later must not change the reason.
static void fields(void **state) {
    const zero_failure *f = zero_last_failure();
    const failure_record *kept = zero_failed();
    assert_int_equal(zero_fail(ZERO_ERR_IO, "the disk is full"), ZERO_ERR_IO);
    assert_true(f->rank == -1 && f->unit == -1 && kept->lower == -1 && !*f->setting);
    assert_int_equal(zero_failed_advice("remove %d files", 3), ZERO_ERR_IO);
    assert_int_equal(zero_failed_on(2, "node2"), ZERO_ERR_IO);
    assert_string_equal(f->sentence, "rank 2 (host node2): the disk is full; remove 3 files");
    assert_int_equal(kept->reason, strlen("rank 2 (host node2): the disk is full"));
    assert_int_equal(f->rank, 2);
    zero_failed_on(1, "node1");  // has no effect, because the message already names a rank
    assert_string_equal(f->sentence, "rank 2 (host node2): the disk is full; remove 3 files");
    assert_int_equal(zero_fail_setting(ZERO_ERR_ARGUMENT, "start.rank start.ranks", " %d: below %d", -3, 0),
                     ZERO_ERR_ARGUMENT);
    assert_string_equal(f->sentence, "start.rank -3: below 0");
    assert_string_equal(f->setting, "start.rank start.ranks");
    zero_fail(ZERO_ERR_IO, "%s, again", zero_last_error());  // the new message may contain the old one
    assert_string_equal(f->sentence, "start.rank -3: below 0, again");
    assert_string_equal(f->setting, "");
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(ranks_and_collectives), cmocka_unit_test(many_ranks),
                                        cmocka_unit_test(who_reports),           cmocka_unit_test(stopped),
                                        cmocka_unit_test(exits_without_destroy), cmocka_unit_test(fields) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
