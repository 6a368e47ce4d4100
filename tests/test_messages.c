// Tests the messages about ranks: lists of ranks, and the fields of a failure. Time during which the process
// is stopped does not count as waiting.
#include <signal.h>
#include <sys/wait.h>
#include "unit.h"
#include "../llmc_zero/base/clock.h"
#include "../llmc_zero/net/net.h"

// A long list of ranks ends with the number of those left out.
static void many_ranks(void **state) {
    enum { RANKS = 200 };
    static net_peer peers[RANKS];
    char chosen[RANKS], list[ZERO_LIST];
    net n = { .ranks = RANKS, .peers = peers };
    int named = 0, more = 0;
    for (int r = 0; r < RANKS; r++) snprintf(peers[r].host, sizeof peers[r].host, "node%d", r);
    memset(chosen, 0, sizeof chosen);
    chosen[1] = 1;
    assert_string_equal(net_list(&n, chosen, list), "rank 1 (host node1)");
    chosen[0] = chosen[2] = 1;
    assert_string_equal(net_list(&n, chosen, list),
                        "ranks 0 (host node0), 1 (host node1) and 2 (host node2)");
    memset(chosen, 1, sizeof chosen);
    memset(peers[5].host, 'h', sizeof peers[5].host - 1);
    net_list(&n, chosen, list);
    for (const char *p = list; (p = strstr(p, "(host")); p++) named++;
    assert_true(named > 3);
    assert_int_equal(sscanf(strstr(list, " and "), " and %d more", &more), 1);
    assert_int_equal(named + more, RANKS);
    n.peers = NULL;  // as in the exchange that distributes the hosts' names
    memset(chosen + 1, 0, sizeof chosen - 1);
    assert_string_equal(net_list(&n, chosen, list), "rank 0 (host unknown)");
}

static void stopped(void **state) {
    int status = 0;
    pid_t child = fork();
    if (!child) {
        patience p = patience_start();
        const double begin = p.last;
        raise(SIGSTOP);
        double waited = patience_waited(&p);
        for (int i = 0; i < 4; i++) {
            clock_nap(0.05);
            waited = patience_waited(&p);
        }
        _exit(waited < 0.19 ? 1 : waited > p.last - begin - 0.8 + 0.25 ? 2 : 0);
    }
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    clock_nap(0.8);  // of which at most 0.2 s count
    kill(child, SIGCONT);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

// A failure sets its fields. Details added later do not change the reason.
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
    const struct CMUnitTest tests[] = { cmocka_unit_test(many_ranks), cmocka_unit_test(stopped),
                                        cmocka_unit_test(fields) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
