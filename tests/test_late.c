// What is said of ranks that have not come, and that a process that was itself stopped has not waited.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "../llmc_zero/net/late.h"
#include "../llmc_zero/error.h"

enum { RANKS = 200 };
static char hosts[RANKS][COMM_HOST];
static comm some_ranks(int ranks) {
    for (int r = 0; r < ranks; r++) snprintf(hosts[r], COMM_HOST, "node%d", r);
    return (comm){ .rank = 1, .ranks = ranks, .hosts = hosts, .timeout_s = 2.5, .unit = 7 };
}

static void says(const comm *c, comm_exchange x, const char *missing, const char *sentence) {
    assert_int_equal(comm_fail_late(c, x, missing), ZERO_ERR_COMM);
    assert_string_equal(zero_last_error(), sentence);
}

#define END "stuck, gone, or calls the hooks in another order"
static void ranks_and_collectives(void **state) {
    (void)state;
    comm c = some_ranks(3);
    static const char first[] = { 1, 0, 0 }, both[] = { 1, 0, 1 };
    says(&c, EXCHANGE_SCATTER, first,
         "rank 1 (host node1) waited 2.5 s in a reduce-scatter of unit 7 for rank 0 (host node0): " END);
    c.more_units = 2;
    says(
        &c, EXCHANGE_SCATTER, first,
        "rank 1 (host node1) waited 2.5 s in a reduce-scatter of units 7 to 9 for rank 0 (host node0): " END);
    c.more_units = 0;
    says(&c, EXCHANGE_BARRIER, both,
         "rank 1 (host node1) waited 2.5 s in a barrier for rank 0 (host node0), rank 2 (host node2): " END);
    c.part_of = "an all-gather";  // by direct reads: its last exchange is a barrier
    says(&c, EXCHANGE_BARRIER, first,
         "rank 1 (host node1) waited 2.5 s in an all-gather of unit 7 for rank 0 (host node0): " END);
    c = some_ranks(3);
    c.purpose = ZERO_FOR_SCALARS;
    says(&c, EXCHANGE_GATHER, first,
         "rank 1 (host node1) waited 2.5 s in an all-gather of scalars for rank 0 (host node0): " END);
    c.hosts = NULL;  // the exchange that tells them
    says(&c, EXCHANGE_GATHER, first,
         "rank 1 (host unknown) waited 2.5 s in an all-gather of scalars for rank 0 (host unknown): " END);
}

// A long list ends with how many more there are, and the sentence still has its end.
static void many_ranks(void **state) {
    (void)state;
    comm c = some_ranks(RANKS);
    char missing[RANKS];
    int named = 0, more = 0;
    memset(missing, 1, sizeof missing);
    missing[1] = 0;
    memset(hosts[5], 'h', COMM_HOST - 1);
    assert_int_equal(comm_fail_late(&c, EXCHANGE_GATHER, missing), ZERO_ERR_COMM);
    for (const char *p = strstr(zero_last_error(), " for "); (p = strstr(p, "rank ")); p++) named++;
    assert_true(named > 3);
    assert_int_equal(sscanf(strstr(zero_last_error(), " and "), " and %d more: stuck", &more), 1);
    assert_int_equal(named + more, RANKS - 1);
    assert_non_null(strstr(zero_last_error(), "in another order"));
}

static void nap_ms(long ms) { nanosleep(&(struct timespec){ 0, ms * 1000000 }, NULL); }

static void stopped(void **state) {
    (void)state;
    int status = 0;
    pid_t child = fork();
    if (!child) {
        comm_patience p = comm_start_waiting();
        raise(SIGSTOP);
        double waited = comm_waited(&p);
        for (int i = 0; i < 4; i++) {
            nap_ms(50);
            waited = comm_waited(&p);
        }
        _exit(waited < 0.19 ? 1 : waited > 0.55 ? 2 : 0);
    }
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    nap_ms(800);
    kill(child, SIGCONT);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(ranks_and_collectives), cmocka_unit_test(many_ranks),
                                        cmocka_unit_test(stopped) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
