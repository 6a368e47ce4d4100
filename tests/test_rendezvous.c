// Tests how ranks, each a process, find each other through an address or a file: cases that work, and
// mistakes, which must be reported within the time limit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "start_ranks.h"

// -------- cases that work

static void all_connect(void **state) {
    static const char *const hosts[] = { "127.0.0.1", "localhost", "[::1]", NULL };  // NULL: a file
    int v6 = socket(AF_INET6, SOCK_STREAM, 0);
    if (v6 >= 0) close(v6);
    for (int how = 0; how < 4; how++)
        for (int n = 1; n <= 8; n += 1 + (how == 1 || how == 2)) {
            fresh(NULL);
            if (how == 2 && v6 < 0) continue;  // a machine without IPv6
            if (hosts[how]) snprintf(server, sizeof server, "%s:%d", hosts[how], port);
            plan_ranks(n, hosts[how] ? server : NULL, hosts[how] ? NULL : path, PATIENT_S);
            run(n);
            have_connected(0, n);
        }
}

static void in_any_order(void **state) {
    for (int i = 0; i < 6; i++) {
        int late = i / 2;  // 0: rank 0 is late; 1: all others are; 2: they start one by one, rank 3 first
        fresh(NULL);
        plan_ranks(4, i % 2 ? NULL : server, i % 2 ? path : NULL, PATIENT_S);
        for (int r = 0; r < 4; r++) plans[r].delay = late == 2 ? 0.1 * (3 - r) : (r > 0) == late ? 0.3 : 0;
        run(4);
        have_connected(0, 4);
    }
}

// If a rank that uses a file gets no answer, it connects again after 5 s.
static void rank_0_is_stopped(void **state) {
    plan_ranks(3, NULL, path, PATIENT_S);
    start(0, 1);
    for (double until = now() + HANGS_AFTER_S; access(path, F_OK) && now() < until;) nap(5e-3);
    kill(children[0], SIGSTOP);
    start(1, 3);
    nap(6.5);
    kill(children[0], SIGCONT);
    assert_int_equal(end_children(3), 0);
    have_connected(0, 3);
}

// -------- mistakes and failures

enum { ADDRESS, BY_FILE, NO_HOST };
static void mistakes(void **state) {
    static const struct {
        int n, absent, how;  // absent: bit i: process i does not start
        struct {             // settings of the last process
            int rank, ranks;
            const char *version;
        } last;
        double first_delay, limit;
        const char *words;  // in each message
    } rows[] = {
        { 4, 0, ADDRESS, { 2, 4, "1" }, 0, PATIENT_S, "two processes claim to be rank 2: host" },
        { 3, 0, ADDRESS, { 2, 4, "1" }, 0, PATIENT_S, "was started as one of 4 ranks, rank 0 (host" },
        { 3, 0, BY_FILE, { 2, 3, "2" }, 0, PATIENT_S, "runs version \"2\", rank 0 (host" },
        { 5, 12, ADDRESS, { 4, 5, "1" }, 0, 3, "ranks 2 and 3 of 5 did not connect within 3 s" },
        { 5, 12, BY_FILE, { 4, 5, "1" }, 0, 3, "ranks 2 and 3 of 5 did not connect within 3 s" },
        // rank 0 starts late; rank 1 must still learn within its own time limit which rank is missing
        { 3, 4, ADDRESS, { 2, 3, "1" }, 1.5, 4, "rank 2 of 3 did not connect within 4 s" },
        { 3, 1, ADDRESS, { 2, 3, "1" }, 0, 0.5, "rank 0 does not answer at 127.0.0.1:" },
        { 3, 1, BY_FILE, { 2, 3, "1" }, 0, 0.5, "it does not exist: rank 0, which writes it, has" },
        { 2, 0, NO_HOST, { 1, 2, "1" }, 0, PATIENT_S, "host \"no..host\" does not resolve" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *at = rows[i].how == BY_FILE ? NULL : rows[i].how == NO_HOST ? "no..host:12345" : server;
        int n = rows[i].n;
        fresh(NULL);
        plan_ranks(n, at, at ? NULL : path, rows[i].limit);
        plans[0].delay = rows[i].first_delay;
        plans[n - 1].delay = rows[i].limit == PATIENT_S ? 0.2 : 0;  // the faulty process starts last
        plans[n - 1].s.rank = rows[i].last.rank;
        plans[n - 1].s.ranks = rows[i].last.ranks;
        plans[n - 1].s.version = rows[i].last.version;
        for (int p = 0; p < n; p++)
            if (!(rows[i].absent >> p & 1)) start_child(p, one_rank, plans);
        assert_int_equal(end_children(n), 0);
        for (int p = 0; p < n; p++)
            if (!(rows[i].absent >> p & 1)) all_fail_with(p, p + 1, rows[i].words);
        assert_int_equal(access(path, F_OK), -1);
    }
}

// Something other than rank 0 listens at rank 0's port. A rank of another version is recognised by its first
// message, which begins the same way in all versions of the protocol.
static void not_rank_0_at_the_port(void **state) {
    static const uint32_t challenge[4] = { 0x4c5a5256, 2, 32, 77 };
    static const struct {
        const void *bytes;
        size_t n;
        double limit;
        const char *words;
    } others[] = {
        { "SSH-2.0-x\r\n", 11, PATIENT_S, "is another program, not rank 0 of this job: give another port" },
        { challenge, sizeof challenge, PATIENT_S,
          "runs another version: install the same llmc_zero on all hosts" },
        { "", 0, 3, "it accepts connections but does not answer" },
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        fresh(NULL);
        int listener = net_listen(port, 4), fd;
        assert_true(listener >= 0);
        plan_ranks(2, server, NULL, others[i].limit);
        start(0, 2);
        assert_int_equal(net_wait(listener, POLLIN, now() + HANGS_AFTER_S), 0);
        assert_true((fd = net_accept(listener)) >= 0);
        assert_int_equal(net_write(fd, others[i].bytes, others[i].n, now() + HANGS_AFTER_S), 0);
        assert_int_equal(end_children(2), 0);
        close(fd);
        close(listener);
        all_fail_with(0, 1, "which is in use, perhaps by another job");
        all_fail_with(1, 2, others[i].words);
    }
}

static void a_rank_dies(void **state) {
    for (int victim = 0; victim < 3; victim += 2) {
        fresh(NULL);
        plan_ranks(4, server, NULL, PATIENT_S);
        plans[victim].die = 2;  // after it has connected
        start(0, 3);            // without rank 3
        assert_int_equal(end_children(3), 0);
        for (int r = 0; r < 3; r++)
            if (r != victim) all_fail_with(r, r + 1, "ended while the ranks were connecting");
        if (victim) fails_with(0, "rank 2 (host");
    }
}

// Rank 0 is killed and leaves its file behind. A rank that started before rank 0 reads the file after the
// kill.
static void file_of_a_killed_rank_0(void **state) {
    plan_ranks(3, NULL, path, PATIENT_S);
    plans[0].die = 1.5;
    plans[0].delay = 0.5;  // rank 2 exists before the file
    plans[2].delay = 4;
    start(0, 3);
    assert_int_equal(end_children(3), 0);
    all_fail_with(2, 3, "has ended since it wrote");
}

// Rank `victim` is stopped after it has connected, but before the last rank connects.
static void a_rank_is_stopped(void **state) {
    for (int victim = 1; victim < 3; victim++) {
        int last = 3 - victim;
        char words[160], host[NET_NAME];
        net_machine(host);
        fresh(NULL);
        plan_ranks(3, server, NULL, 4);
        plans[last].delay = 2;
        start(0, 3);
        nap(1);
        kill(children[victim], SIGSTOP);
        for (double until = now() + HANGS_AFTER_S; now() < until && !(o[0].reported && o[last].reported);)
            nap(5e-3);
        kill(children[victim], SIGKILL);
        assert_int_equal(end_children(3), 0);
        snprintf(words, sizeof words, "rank %d timed out waiting for rank %d (host %s) to connect", last,
                 victim, host);
        all_fail_with(0, 1, words);
        all_fail_with(last, last + 1, words);
    }
}

static void invalid_settings(void **state) {
    static const struct {
        int rank, ranks;
        const char *server, *file, *key;
        double limit;
        const char *words;
    } bad[] = {
        { 4, 4, "h:1", NULL, NULL, 1, "rank 4 of 4" },
        { -1, 4, "h:1", NULL, NULL, 1, "rank -1 of 4" },
        { 0, 2, NULL, NULL, NULL, 1, "a file that all 2 ranks see, is needed: one of the two" },
        { 0, 2, "h:1", "f", NULL, 1, "a file that all 2 ranks see, is needed: one of the two" },
        { 0, 2, "h:1", NULL, NULL, 0, "comm.timeout_s 0: above 0" },
        { 0, 2, "h:1", NULL, "0123456789abcde", 1, "ZERO_JOB_KEY has 15 characters, which is easy to guess" },
        { 0, 2, "host:", NULL, NULL, 1, "\"host:\" is not an address of rank 0" },
        { 1, 2, "host:0", NULL, NULL, 1, "\"host:0\" is not an address of rank 0" },
        { 1, 2, "::1:80", NULL, NULL, 1, "\"::1:80\" is not an address" },
        { 0, 2, "h:70000", NULL, NULL, 1, "\"h:70000\" is not an address" },
        { 1, 2, "h:80x", NULL, NULL, 1, "\"h:80x\" is not an address" },
        { 1, 2, ":80", NULL, NULL, 1, "\":80\" is not an address" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int sockets[4], before = open_fds();
        rendezvous_peer peers[4];
        rendezvous_settings s = { .rank = bad[i].rank, .ranks = bad[i].ranks, .server = bad[i].server };
        s.file = bad[i].file;
        s.key = bad[i].key;
        s.timeout_s = bad[i].limit;
        assert_int_equal(rendezvous(&s, sockets, peers), ZERO_ERR_ARGUMENT);
        if (!strstr(zero_last_error(), bad[i].words))
            fail_msg("\"%s\" instead of \"%s\"", zero_last_error(), bad[i].words);
        assert_int_equal(open_fds(), before);
    }
}

// -------- the start file

// The file's rank 0 was a process of this machine that ended before the ranks started.
static void stale_file(void **state) {
    char host[NET_NAME];
    pid_t dead = fork();
    if (!dead) _exit(0);
    waitpid(dead, NULL, 0);
    start_file c = start_file_of(port, (double)time(NULL) - 100);
    c.pid = dead;
    c.node = net_machine(host);
    put_file(&c, sizeof c, 0600);
    plan_ranks(3, NULL, path, 0.6);
    start(1, 3);
    assert_int_equal(end_children(3), 0);
    all_fail_with(1, 3, "meet is stale: rank 0 on host ghost (pid");
    all_fail_with(1, 3, "wrote it 10");
    all_fail_with(1, 3, "Connection refused): remove the file");
    plan_ranks(3, NULL, path, PATIENT_S);  // the same stale file, but now rank 0 starts a little later
    plans[0].delay = 0.3;
    forget_outcomes();
    run(3);
    have_connected(0, 3);
}

// The file contains the address of another job's rank 0, which process 0 imitates.
static void file_of_another_run(void **state) {
    for (int is_alone = 0; is_alone < 2; is_alone++) {
        fresh(NULL);
        start_file c = start_file_of(port, (double)time(NULL));
        put_file(&c, sizeof c, 0600);
        plan_ranks(4, NULL, path, is_alone ? 3 : PATIENT_S);
        for (int i = 1; i < 4; i++) {
            plans[i].s.rank = is_alone ? i : i - 1;
            plans[i].s.ranks = 3;
        }
        plans[0].s.server = server;
        plans[0].s.file = NULL;
        plans[0].s.timeout_s = 5;
        plans[1].delay = is_alone ? 0 : 0.4;
        run(is_alone ? 3 : 4);
        fails_with(0, "of 4 did not connect");
        if (is_alone)
            all_fail_with(1, 3,
                          "the process there has a different key from this rank, or belongs to another job");
        else
            have_connected(1, 4);
    }
}

static void no_folder(void **state) {
    char name[96];
    snprintf(name, sizeof name, "%s/no/meet", folder);
    plan_ranks(2, NULL, name, 0.5);
    run(2);
    all_fail_with(0, 1, "/no/meet: rank 0 cannot write it: No such file or directory");
    all_fail_with(1, 2, "/no/meet within 0.5 s: it does not exist");
}

// The path is a folder. In the second round it appears only after the other ranks have looked for it.
static void folders(void **state) {
    for (int late = 0; late < 2; late++) {
        fresh(NULL);
        plan_ranks(3, NULL, path, PATIENT_S);
        if (!late) assert_int_equal(mkdir(path, 0700), 0);
        start(1, 3);
        nap(0.2);
        if (late) assert_int_equal(mkdir(path, 0700), 0);
        start(0, 1);
        assert_int_equal(end_children(3), 0);
        assert_int_equal(rmdir(path), 0);  // nothing is left in it
        have_connected(0, 3);
    }
}

// All ranks refuse a path that is not a start file, or that other users can access, and leave it unchanged.
static void foreign_files(void **state) {
    static const char foreign[] = "it is not a start file", shared[] = "other users may read or write it";
    enum { PLAIN, LINK, LINK_TO_NOTHING, PIPE, OTHER_OWNER };
    static const struct {
        int kind;
        mode_t mode;
        int pid, port, n;  // in the start file
        double written;
        size_t bytes;  // the file's size; 0: it contains "precious" instead
        const char *words;
    } rows[] = {
        { PLAIN, 0644, 0, 0, 0, 0, 0, foreign },
        { LINK, 0600, 1, 9, 1, 1, sizeof(start_file), foreign },
        { LINK_TO_NOTHING, 0600, 0, 0, 0, 0, 0, foreign },
        { PIPE, 0600, 0, 0, 0, 0, 0, foreign },
        { PLAIN, 0600, 1, 9, 1, 1, sizeof(start_file) - 1, foreign },
        { PLAIN, 0600, 1, 9, 1, 1, sizeof(start_file) + 1, foreign },
        { PLAIN, 0600, -1, 9, 1, 1, sizeof(start_file), foreign },
        { PLAIN, 0600, 1, 0, 1, 1, sizeof(start_file), foreign },
        { PLAIN, 0600, 1, 65536, 1, 1, sizeof(start_file), foreign },
        { PLAIN, 0600, 1, 9, -1, 1, sizeof(start_file), foreign },
        { PLAIN, 0600, 1, 9, START_FILE_ADDRESSES + 1, 1, sizeof(start_file), foreign },
        { PLAIN, 0600, 1, 9, 1, -1, sizeof(start_file), foreign },
        { PLAIN, 0600, 1, 9, 1, NAN, sizeof(start_file), foreign },
        { PLAIN, 0644, 1, 9, 1, 1, sizeof(start_file), shared },
        { PLAIN, 0620, 1, 9, 1, 1, sizeof(start_file), shared },
        { OTHER_OWNER, 0600, 1, 9, 1, 1, sizeof(start_file), shared },
    };
    char other[96];
    snprintf(other, sizeof other, "%s/other", folder);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char bytes[sizeof(start_file) + 1] = "precious", after[sizeof bytes] = "";
        size_t n = rows[i].bytes ? rows[i].bytes : 8;
        struct stat was, is;
        start_file c = start_file_of(rows[i].port, rows[i].written);
        c.pid = rows[i].pid;
        c.n = rows[i].n;
        if (rows[i].bytes) memcpy(bytes, &c, sizeof c);
        fresh(NULL);
        put_file(bytes, n, rows[i].mode);
        if (rows[i].kind == OTHER_OWNER && chown(path, 65534, (gid_t)-1)) break;  // only root can
        if (rows[i].kind == LINK) assert_true(!rename(path, other) && !symlink(other, path));
        if (rows[i].kind == LINK_TO_NOTHING) assert_true(!unlink(path) && !symlink("/nowhere", path));
        if (rows[i].kind == PIPE) assert_true(!unlink(path) && !mkfifo(path, 0600));
        assert_int_equal(lstat(path, &was), 0);
        plan_ranks(2, NULL, path, 0.2);
        run(2);
        all_fail_with(0, 1,
                      rows[i].words == shared ? shared : "exists, is not a start file, and stays unchanged");
        all_fail_with(1, 2, rows[i].words);
        assert_true(!lstat(path, &is) && was.st_ino == is.st_ino && was.st_mode == is.st_mode);
        if (rows[i].kind == LINK_TO_NOTHING || rows[i].kind == PIPE) continue;
        int fd = open(path, O_RDONLY);
        assert_int_equal(read(fd, after, sizeof after), n);
        assert_memory_equal(bytes, after, n);
        close(fd);
        unlink(other);
    }
    start_file c = start_file_of(9, 1);
    unlink(path);
    memset(c.host, '\33', sizeof c.host);  // has no terminating zero
    put_file(&c, sizeof c, 0600);
    assert_int_equal(start_file_read(path, &c), 0);
    assert_string_equal(c.host, "???????????????????????????????????????????????????????????????");
}

// Rank 0's file is private, contains addresses and has a new key each time. No other rank 0 may remove it.
static void file_of_rank_0(void **state) {
    struct stat st;
    net_address at;
    start_file first = { .pid = 1, .port = 1 }, again = { .pid = 1, .port = 1 };
    assert_int_equal(start_file_write(path, &first), 0);
    assert_true(!stat(path, &st) && (st.st_mode & 0777) == 0600);
    assert_true(first.n > 0 || !own_address(&at));
    assert_int_equal(start_file_write(path, &again), 0);
    assert_memory_not_equal(&first.key, &again.key, sizeof first.key);
    start_file_remove(path, &first);
    assert_int_equal(access(path, F_OK), 0);
    start_file_remove(path, &again);
    assert_int_equal(access(path, F_OK), -1);
}

#define TEST(name) cmocka_unit_test_setup(name, fresh)
int main(void) {
    if (!mkdtemp(folder)) return 1;
    const struct CMUnitTest tests[] = {
        TEST(all_connect),
        TEST(in_any_order),
        TEST(rank_0_is_stopped),
        TEST(mistakes),
        TEST(not_rank_0_at_the_port),
        TEST(a_rank_dies),
        TEST(file_of_a_killed_rank_0),
        TEST(a_rank_is_stopped),
        TEST(invalid_settings),
        TEST(stale_file),
        TEST(file_of_another_run),
        TEST(no_folder),
        TEST(folders),
        TEST(foreign_files),
        TEST(file_of_rank_0),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    if (!rmdir(folder)) return failed;
    fprintf(stderr, "%s is not empty\n", folder);
    return failed + 1;
}
