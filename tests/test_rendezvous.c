// How ranks find each other by an address or a file, each rank a process: what works, and the sentence of
// each mistake, within its time limit.
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <poll.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <cmocka.h>
#include "../llmc_zero/net/launch.h"
#include "../llmc_zero/net/rendezvous_file.h"
#include "../llmc_zero/net/sockets.h"
#include "ranks.h"

static char folder[] = "/tmp/rendezvous.XXXXXX", path[64], server[64];
static int port;

typedef struct {
    rendezvous_settings s;
    double delay;
    int die;
} plan;
static plan plans[MOST_RANKS];
static outcome *o;

static int fresh(void **state) {
    (void)state;
    forget_outcomes();
    o = outcomes;
    port = free_port();
    snprintf(server, sizeof server, "127.0.0.1:%d", port);
    snprintf(path, sizeof path, "%s/meet", folder);
    unlink(path);
    return 0;
}

// Every rank sends every other a number that both can compute.
static int talk(int rank, int ranks, const int *sockets) {
    double until = now() + 5;
    for (int r = 0; r < ranks; r++) {
        int word = rank * 100 + r;
        if (r != rank && net_write(sockets[r], &word, sizeof word, until)) return 0;
    }
    for (int r = 0; r < ranks; r++) {
        int word = -1;
        if (r != rank && (net_wait(sockets[r], POLLIN, until) ||
                          recv(sockets[r], &word, sizeof word, 0) != sizeof word || word != r * 100 + rank))
            return 0;
    }
    return sockets[rank] == -1;
}

static void one_rank(int i, void *ctx) {
    const plan *p = &((plan *)ctx)[i];
    int sockets[MOST_RANKS], same_node = 1;
    rendezvous_peer peers[MOST_RANKS];
    nap(p->delay);
    double start = now();
    if (p->die)
        setitimer(ITIMER_REAL, &(struct itimerval){ .it_value = { 0, 300000 } },
                  NULL);  // its end in the middle
    o[i].rc = rendezvous(&p->s, sockets, peers);
    o[i].seconds = now() - start;
    for (int r = 0; r < p->s.ranks && !o[i].rc; r++)
        same_node &= peers[r].node == peers[0].node && peers[r].pid > 0 && *peers[r].host;
    if (!o[i].rc)
        o[i].value = talk(p->s.rank, p->s.ranks, sockets) && same_node && peers[p->s.rank].pid == getpid();
    for (int r = 0; r < p->s.ranks && !o[i].rc; r++)
        if (sockets[r] >= 0) close(sockets[r]);
}

static void plan_ranks(int n, const char *at, const char *file, double limit) {
    for (int i = 0; i < n; i++)
        plans[i] = (plan){ .s = { .rank = i,
                                  .ranks = n,
                                  .server = at,
                                  .file = file,
                                  .timeout_s = limit,
                                  .job = 7,
                                  .version = "1" } };
}
static void start(int from, int n) {
    for (int i = from; i < n; i++) start_child(i, one_rank, plans);
}
static void run(int n, double limit) {
    start(0, n);
    assert_int_equal(end_children(n, limit), 0);
}

// Checks that every rank failed in this time, with these words in its sentence, and left nothing open.
static void all_say(int from, int n, const char *words, double limit) {
    for (int i = from; i < n; i++) {
        if (!o[i].rc || !strstr(o[i].sentence, words))
            fail_msg("process %d: returned %d, \"%s\"; expected \"%s\"", i, o[i].rc, o[i].sentence, words);
        if (o[i].seconds > limit) fail_msg("process %d took %.2f s: \"%s\"", i, o[i].seconds, o[i].sentence);
        assert_int_equal(o[i].fds, 0);
        assert_int_equal(statuses[i], 0);
    }
}
static void all_met(int n) {
    for (int i = 0; i < n; i++) {
        if (o[i].rc || !o[i].value)
            fail_msg("process %d of %d: %s", i, n,
                     o[i].rc ? o[i].sentence : "the ranks do not hear each other");
        assert_int_equal(o[i].fds, 0);
        assert_int_equal(statuses[i], 0);
    }
    assert_int_equal(access(path, F_OK), -1);
}
static void put_file(const char *name, const char *text) {
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    assert_int_equal(fchmod(fileno(f), 0600), 0);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

// -------- what works

static void by_address(void **state) {
    (void)state;
    for (int n = 1; n <= 8; n++) {
        fresh(NULL);
        plan_ranks(n, server, NULL, 10);
        run(n, 12);
        all_met(n);
    }
}
static void by_file(void **state) {
    (void)state;
    for (int n = 1; n <= 8; n++) {
        fresh(NULL);
        plan_ranks(n, NULL, path, 10);
        run(n, 12);
        all_met(n);
    }
}
static void by_name_and_ipv6(void **state) {
    (void)state;
    snprintf(server, sizeof server, "localhost:%d", port);
    plan_ranks(3, server, NULL, 10);
    run(3, 12);
    all_met(3);
    fresh(NULL);
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (fd < 0) return;  // a machine without IPv6
    close(fd);
    snprintf(server, sizeof server, "[::1]:%d", port);
    plan_ranks(3, server, NULL, 10);
    run(3, 12);
    all_met(3);
}
static void in_any_order(void **state) {
    (void)state;
    for (int file = 0; file < 2; file++)
        for (int late = 0; late < 3; late++) {
            fresh(NULL);
            plan_ranks(4, file ? NULL : server, file ? path : NULL, 10);
            for (int i = 0; i < 4; i++)
                plans[i].delay = late == 2 ? 0.1 * (3 - i) : (i > 0) == late ? 0.3 : 0;
            run(4, 12);
            all_met(4);
        }
}

// Hosts are told apart by their names, as network namespaces have them.
static void named_rank(int i, void *ctx) {
    const plan *p = &((plan *)ctx)[i];
    int sockets[MOST_RANKS];
    rendezvous_peer peers[MOST_RANKS];
    if (unshare(CLONE_NEWUTS) || sethostname(i == 2 ? "beta" : "alpha", i == 2 ? 4 : 5)) exit(77);
    o[i].rc = rendezvous(&p->s, sockets, peers);
    for (int r = 0; r < p->s.ranks && !o[i].rc; r++) {
        o[i].value |= (peers[r].node == peers[i].node) << r;
        if (strcmp(peers[r].host, r == 2 ? "beta" : "alpha")) o[i].value |= 1 << 8;
        if (sockets[r] >= 0) close(sockets[r]);
    }
}
static void two_hosts(void **state) {
    (void)state;
    plan_ranks(3, server, NULL, 10);
    for (int i = 0; i < 3; i++) start_child(i, named_rank, plans);
    assert_int_equal(end_children(3, 12), 0);
    if (statuses[0] == 77) skip();  // only root can set a host's name
    for (int i = 0; i < 3; i++) {
        assert_int_equal(o[i].rc, 0);
        assert_int_equal(o[i].value, i == 2 ? 4 : 3);
    }
}

// -------- ranks in error

static void twice_the_same_rank(void **state) {
    (void)state;
    char first[32], second[32];
    plan_ranks(4, server, NULL, 5);
    plans[3].s.rank = 2;
    for (int i = 0; i < 4; i++)
        plans[i].delay = i == 3 ? 0.2 : i == 1 ? 0.4 : 0;  // rank 1 comes when the mistake is known already
    start(0, 4);
    snprintf(first, sizeof first, "pid %d", children[2]);
    snprintf(second, sizeof second, "pid %d", children[3]);
    assert_int_equal(end_children(4, 8), 0);
    all_say(0, 4, "two processes say that they are rank 2: host", 2);
    all_say(0, 4, first, 2);
    all_say(0, 4, second, 2);
}
static void missing(void **state) {
    (void)state;
    for (int file = 0; file < 2; file++) {
        fresh(NULL);
        plan_ranks(5, file ? NULL : server, file ? path : NULL, 0.6);
        start_child(0, one_rank, plans);
        start_child(1, one_rank, plans);
        start_child(4, one_rank, plans);
        assert_int_equal(end_children(5, 4), 0);
        all_say(0, 2, "ranks 2 and 3 of 5 did not come within 0.6 s: rank 0 waited at", 1.5);
        all_say(4, 5, "ranks 2 and 3 of 5 did not come within 0.6 s: rank 0 waited at", 1.5);
        assert_int_equal(access(path, F_OK), -1);
    }
}
static void earliest_limit(void **state) {
    (void)state;
    plan_ranks(3, server, NULL, 1.5);
    plans[0].delay = 0.8;  // and rank 1 still learns within its own time which rank is missing
    start(0, 2);
    assert_int_equal(end_children(2, 5), 0);
    all_say(0, 2, "rank 2 of 3 did not come within 1.5 s", 1.9);
}
static void no_rank_0(void **state) {
    (void)state;
    char words[160];
    plan_ranks(3, server, NULL, 0.5);
    start(1, 3);
    assert_int_equal(end_children(3, 3), 0);
    snprintf(words, sizeof words, "rank 0 does not answer at %s within", server);
    all_say(1, 3, words, 1.5);
    fresh(NULL);
    plan_ranks(3, NULL, path, 0.5);
    start(1, 3);
    assert_int_equal(end_children(3, 3), 0);
    snprintf(words, sizeof words, "there was no file %s within", path);
    all_say(1, 3, words, 1.5);
}
static void other_number_of_ranks(void **state) {
    (void)state;
    plan_ranks(3, server, NULL, 5);
    plans[2].s.ranks = 4;
    run(3, 8);
    all_say(0, 3, "was started as one of 4 ranks, rank 0 (host", 2);
}
static void other_version(void **state) {
    (void)state;
    plan_ranks(3, NULL, path, 5);
    plans[1].s.version = "2";
    run(3, 8);
    all_say(0, 3, "runs version \"2\", rank 0 (host", 2);
    assert_int_equal(access(path, F_OK), -1);
}
// A rank 0 of another protocol says so in its first words, which begin alike in all of them.
static void other_protocol(void **state) {
    (void)state;
    const uint32_t challenge[4] = { 0x4c5a5256, 2, 32, 77 };
    int listener = net_listen(port, 4), fd;
    assert_true(listener >= 0);
    plan_ranks(2, server, NULL, 5);
    start(1, 2);
    assert_int_equal(net_wait(listener, POLLIN, now() + 3), 0);
    assert_true((fd = net_accept(listener)) >= 0);
    assert_int_equal(net_write(fd, challenge, sizeof challenge, now() + 1), 0);
    assert_int_equal(end_children(2, 4), 0);
    close(fd);
    close(listener);
    all_say(1, 2, "is of another version: install the same llmc_zero on all hosts", 1);
}
static void other_job(void **state) {
    (void)state;
    plan_ranks(3, server, NULL, 5);
    plans[3] = plans[1];
    plans[3].s.job = 8;
    plans[2].delay = 0.3;
    run(4, 8);
    all_say(3, 4, "belongs to another job (7, this one is 8)", 1);  // and the other ranks are not affected
    all_met(3);
}
static void a_rank_that_ends(void **state) {
    (void)state;
    plan_ranks(4, server, NULL, 8);
    plans[2].die = 1;
    start(0, 3);  // rank 3 never comes
    assert_int_equal(end_children(3, 6), 0);
    all_say(0, 2, "rank 2 (host", 3);
    all_say(0, 2, "has ended while the ranks were connecting", 3);
    fresh(NULL);
    plan_ranks(4, server, NULL, 8);
    plans[0].die = 1;
    start(0, 3);
    assert_int_equal(end_children(3, 6), 0);
    all_say(1, 3, "has ended while the ranks were connecting", 3);
}
// The card of a rank 0 that was killed is left to a rank that comes later, but began earlier.
static void rank_0_of_before(void **state) {
    (void)state;
    plan_ranks(3, NULL, path, 12);
    plans[0].die = 1;
    plans[0].delay = 0.5;  // rank 2 is there before the card is written
    plans[2].delay = 2.5;
    start(0, 3);
    assert_int_equal(end_children(3, 6), 0);
    all_say(2, 3, "has ended since it wrote", 0.5);
}
// Rank `victim` of three is stopped after it has come and before the last one comes.
static void stop_one(int victim, int last) {
    fresh(NULL);
    plan_ranks(3, server, NULL, 1.5);
    plans[last].delay = 0.6;
    start(0, 3);
    nap(0.3);
    kill(children[victim], SIGSTOP);
    for (double until = now() + 10; now() < until && !(o[0].reported && o[last].reported); nap(5e-3)) {}
    kill(children[victim], SIGKILL);
    assert_int_equal(end_children(3, 1), 0);
}
static void a_rank_that_is_stopped(void **state) {
    (void)state;
    char host[NET_NAME], words[160];
    net_machine(host);
    stop_one(1, 2);
    snprintf(words, sizeof words, "rank 2 waited in vain for rank 1 (host %s) to connect", host);
    all_say(0, 1, words, 8);
    all_say(2, 3, words, 8);
    stop_one(2, 1);
    snprintf(words, sizeof words, "rank 1 waited in vain for rank 2 (host %s) to connect", host);
    all_say(0, 2, words, 8);
}
// By a file a rank asks again after 5 s.
static void rank_0_sleeps(void **state) {
    (void)state;
    plan_ranks(3, NULL, path, 20);
    start(0, 1);
    for (double until = now() + 5; access(path, F_OK) && now() < until;) nap(5e-3);
    kill(children[0], SIGSTOP);
    start(1, 3);
    nap(6.5);
    kill(children[0], SIGCONT);
    assert_int_equal(end_children(3, 10), 0);
    all_met(3);
}
static void settings_that_cannot_be(void **state) {
    (void)state;
    static const struct {
        int rank, ranks;
        const char *server, *file, *words;
        double limit;
    } bad[] = {
        { 4, 4, "h:1", NULL, "rank 4 of 4", 1 },
        { -1, 4, "h:1", NULL, "rank -1 of 4", 1 },
        { 0, 2, NULL, NULL, "a file that all 2 ranks see, is needed: one of the two", 1 },
        { 0, 2, "h:1", "f", "a file that all 2 ranks see, is needed: one of the two", 1 },
        { 0, 2, "h:1", NULL, "comm.timeout_s 0: above 0", 0 },
        { 0, 2, "host:", NULL, "\"host:\" is no address of rank 0", 1 },
        { 1, 2, "host:0", NULL, "\"host:0\" is no address of rank 0", 1 },
        { 1, 2, "::1:80", NULL, "\"::1:80\" is no address", 1 },
        { 0, 2, "h:70000", NULL, "\"h:70000\" is no address", 1 },
        { 1, 2, "h:80x", NULL, "\"h:80x\" is no address", 1 },
        { 1, 2, ":80", NULL, "\":80\" is no address", 1 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int sockets[4], before = open_fds();
        rendezvous_peer peers[4];
        rendezvous_settings s = { .rank = bad[i].rank,
                                  .ranks = bad[i].ranks,
                                  .server = bad[i].server,
                                  .file = bad[i].file,
                                  .timeout_s = bad[i].limit };
        double begin = now();
        assert_int_equal(rendezvous(&s, sockets, peers), ZERO_ERR_ARGUMENT);
        if (!strstr(zero_last_error(), bad[i].words))
            fail_msg("\"%s\" instead of \"%s\"", zero_last_error(), bad[i].words);
        assert_true(now() - begin < 0.5);
        assert_int_equal(open_fds(), before);
    }
}

// -------- strangers

static void strangers(void **state) {
    (void)state;
    static const uint32_t long_message[1024] = { 0x4c5a5256, 1, 1u << 30, 1 },
                          odd_message[7] = { 0x4c5a5256, 77, 4, 1 };
    static const uint32_t other_magic[44] = {
        0x12345678, 1, 152, 1, 0, 0, 7
    };  // otherwise like a hello of this job
    plan_ranks(3, server, NULL, 8);
    plans[1].delay = plans[2].delay = 1;
    start(0, 3);
    int fd[90], knocked = 0;
    for (int i = 0; i < 90; i++) {  // more than are listened to at once; the silent ones stay
        if ((fd[i] = knock(port)) < 0) break;
        knocked++;
        if (i == 0) (void)!write(fd[i], "GET / HTTP/1.0\r\nHost: rank0\r\n\r\n", 31);
        if (i == 1) (void)!write(fd[i], "V", 1);
        if (i == 2) (void)!write(fd[i], long_message, sizeof long_message);
        if (i == 3) (void)!write(fd[i], odd_message, sizeof odd_message);
        if (i == 4) (void)!write(fd[i], other_magic, sizeof other_magic);
        if (i == 5) shutdown(fd[i], SHUT_RDWR);
    }
    assert_int_equal(end_children(3, 10), 0);
    for (int i = 0; i < knocked; i++) close(fd[i]);
    assert_true(knocked > 5);
    all_met(3);
    assert_true(o[1].seconds < 2);
}
static void port_in_use(void **state) {
    (void)state;
    char words[96];
    int fd = net_listen(port, 4);
    assert_true(fd >= 0);
    plan_ranks(2, server, NULL, 1);
    run(2, 4);
    close(fd);
    snprintf(words, sizeof words, "cannot listen at port %d, which is in use", port);
    all_say(0, 1, words, 0.5);
    all_say(1, 2, "it takes connections but does not answer", 2);
}
static void another_program(void **state) {
    (void)state;
    int fd = net_listen(port, 4), guest;
    assert_true(fd >= 0);
    plan_ranks(2, server, NULL, 5);
    start(1, 2);
    assert_int_equal(net_wait(fd, POLLIN, now() + 3), 0);
    assert_true((guest = net_accept(fd)) >= 0);
    assert_int_equal(net_write(guest, "SSH-2.0-x\r\n", 11, now() + 1), 0);
    assert_int_equal(end_children(2, 4), 0);
    close(guest);
    close(fd);
    all_say(1, 2, "is another program, not rank 0 of this one: give another port", 1);
}
static void unknown_host(void **state) {
    (void)state;
    plan_ranks(2, "no..host:12345", NULL, 3);  // no name server is asked for a name like this
    run(2, 5);
    all_say(0, 2, "host \"no..host\" does not resolve", 1);
}

// -------- files

#define CARD                                                                                  \
    "llmc_zero rendezvous 2\nhost ghost pid 4711 port %d\nrun 1234567 node 0 time %lld\nkey " \
    "0123456789abcdef0123456789abcdef"                                                        \
    "0123456789abcdef0123456789abcdef\naddress 127.0.0.1:%d\n"

static void stale_file(void **state) {
    (void)state;
    char text[320];
    snprintf(text, sizeof text, CARD, port, (long long)time(NULL) - 100, port);
    put_file(path, text);
    plan_ranks(3, NULL, path, 0.6);
    start(1, 3);
    assert_int_equal(end_children(3, 4), 0);
    snprintf(text, sizeof text, "file %s is stale: rank 0 on host ghost (pid 4711) wrote it 10", path);
    all_say(1, 3, text, 1.6);
    all_say(1, 3, "Connection refused): remove the file", 1.6);
    plan_ranks(3, NULL, path, 5);  // the same file, but now rank 0 comes after a while
    plans[0].delay = 0.3;
    forget_outcomes();
    run(3, 8);
    all_met(3);
}
static void file_of_another_run(void **state) {
    (void)state;
    char text[320];
    plan_ranks(4, server, NULL, 1.5);  // process 0: rank 0 of another job, at the address in the file
    snprintf(text, sizeof text, CARD, port, (long long)time(NULL), port);
    put_file(path, text);
    for (int i = 1; i < 4; i++)
        plans[i].s = (rendezvous_settings){
            .rank = i - 1, .ranks = 3, .file = path, .timeout_s = 5, .job = 7, .version = "1"
        };
    plans[1].delay = 0.4;
    run(4, 8);
    for (int i = 1; i < 4; i++)
        if (o[i].rc || !o[i].value) fail_msg("process %d: %s", i, o[i].sentence);
    all_say(0, 1, "ranks 1, 2 and 3 of 4 did not come", 4);
    fresh(NULL);
    plan_ranks(2, server, NULL, 1.2);
    snprintf(text, sizeof text, CARD, port, (long long)time(NULL), port);
    put_file(path, text);
    plans[1].s = (rendezvous_settings){
        .rank = 1, .ranks = 3, .file = path, .timeout_s = 0.8, .job = 7, .version = "1"
    };
    run(2, 4);
    all_say(1, 2, "what answers there has another key than this rank", 1.6);
}
static void bad_files(void **state) {
    (void)state;
    char name[96], words[256];
    snprintf(name, sizeof name, "%s/no/meet", folder);
    plan_ranks(2, NULL, name, 0.5);
    run(2, 3);
    snprintf(words, sizeof words, "start.file %s: rank 0 cannot write it: No such file or directory", name);
    all_say(0, 1, words, 0.5);
    snprintf(words, sizeof words, "there was no file %s within", name);
    all_say(1, 2, words, 1.5);
    put_file(path, "milk, eggs\n");
    forget_outcomes();
    plan_ranks(2, NULL, path, 0.5);
    start(1, 2);
    assert_int_equal(end_children(2, 3), 0);
    snprintf(words, sizeof words,
             "cannot use the rendezvous file %s: it is no rendezvous file: name another in start.file", path);
    all_say(1, 2, words, 1.5);
}

// In a folder, also one that appears when a rank has looked already.
static void folders(void **state) {
    (void)state;
    for (int late = 0; late < 2; late++) {
        fresh(NULL);
        plan_ranks(3, NULL, path, 5);
        if (!late) assert_int_equal(mkdir(path, 0700), 0);
        start(1, 3);
        nap(0.2);
        if (late) assert_int_equal(mkdir(path, 0700), 0);
        start(0, 1);
        assert_int_equal(end_children(3, 8), 0);
        assert_int_equal(rmdir(path), 0);  // nothing is left in it
        all_met(3);
    }
}

// A file of the user's under that name does not change, and nothing is left beside it.
static void check_kept(const char *name, const char *text, int n) {
    struct stat before, after;
    char got[512] = "";
    assert_int_equal(lstat(name, &before), 0);
    forget_outcomes();
    plan_ranks(2, NULL, name, 0.4);
    run(n, 8);
    all_say(0, 1, "something is there that is no rendezvous file, and stays as it is", 6);
    all_say(1, n, name, 1.5);
    assert_int_equal(lstat(name, &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_mode == after.st_mode &&
                before.st_size == after.st_size);
    if (!text) return;
    FILE *f = fopen(name, "r");
    assert_non_null(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    fclose(f);
    assert_string_equal(got, text);
}
static void files_of_the_user(void **state) {
    (void)state;
    char almost[640], other[96];
    snprintf(almost, sizeof almost, CARD "and what I noted\n", port, 1LL, port);
    const char *texts[] = { "precious data\n", "", "llmc_zero rendezvous 2\nhost ghost",
                            "llmc_zero rendezvous 9\n", almost };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put_file(path, texts[i]);
        check_kept(path, texts[i], i ? 1 : 2);
        unlink(path);
    }
    snprintf(other, sizeof other, "%s/other", folder);
    put_file(other, texts[0]);
    assert_int_equal(symlink(other, path), 0);
    check_kept(path, texts[0], 1);
    unlink(other);
    check_kept(path, NULL, 1);  // a link to nothing
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    check_kept(path, NULL, 2);
    unlink(path);
}

// A foreign file takes the place of rank 0's card while rank 0 replaces or removes it.
static char mine[64];
static double put_after;
static void *put_mine(void *ctx) {
    (void)ctx;
    for (double until = now() + put_after; now() < until;) {}
    return rename(mine, path) ? mine : NULL;
}
static void file_that_appears(void **state) {
    (void)state;
    char text[320], got[64], shm[] = "/dev/shm/rendezvous.XXXXXX";
    struct stat st;
    assert_non_null(mkdtemp(shm));
    snprintf(path, sizeof path, "%s/meet", shm);
    snprintf(mine, sizeof mine, "%s/mine", shm);
    snprintf(text, sizeof text, CARD, port, 1LL, port);
    for (int i = 0; i < 3000; i++) {
        pthread_t thread;
        void *failed = NULL;
        card c = { .host = "h", .pid = 1, .port = 80, .run = (uint64_t)i + 1 };
        assert_int_equal(secret_draw_text(c.key), 0);
        put_file(path, text);
        put_file(mine, "precious");
        put_after = i % 300 * 1e-6;
        assert_int_equal(pthread_create(&thread, NULL, put_mine, NULL), 0);
        card_write(path, &c);
        card_remove(path, c.run);
        assert_int_equal(pthread_join(thread, &failed), 0);
        assert_null(failed);
        if (stat(path, &st) || st.st_size != 8) fail_msg("after %d rounds the file is gone", i);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        assert_non_null(fgets(got, sizeof got, f));
        fclose(f);
        assert_string_equal(got, "precious");
        unlink(path);
    }
    assert_int_equal(rmdir(shm), 0);
}

// -------- environment

static void set_only(const char *const *pairs) {
    static const char *const all[] = { "RANK",
                                       "WORLD_SIZE",
                                       "MASTER_ADDR",
                                       "MASTER_PORT",
                                       "OMPI_COMM_WORLD_RANK",
                                       "OMPI_COMM_WORLD_SIZE",
                                       "SLURM_PROCID",
                                       "SLURM_NTASKS",
                                       "SLURM_STEP_NUM_TASKS",
                                       "SLURM_STEP_ID",
                                       "SLURM_JOB_ID",
                                       "SLURM_NODELIST",
                                       "SLURM_JOB_NODELIST",
                                       "SLURM_STEP_NODELIST",
                                       "SLURM_LAUNCH_NODE_IPADDR",
                                       "TORCHELASTIC_RUN_ID",
                                       "PMIX_NAMESPACE",
                                       "OMPI_MCA_ess_base_jobid",
                                       "OMPI_MCA_orte_precondition_transports",
                                       "TORCHELASTIC_USE_AGENT_STORE",
                                       "PMI_RANK",
                                       "PMI_SIZE",
                                       "PMIX_RANK",
                                       "OMPI_COMM_WORLD_LOCAL_SIZE",
                                       "MPI_LOCALNRANKS",
                                       "LOCAL_WORLD_SIZE",
                                       "SLURM_STEP_TASKS_PER_NODE",
                                       "SLURM_NTASKS_PER_NODE" };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) unsetenv(all[i]);
    for (; *pairs; pairs += 2) setenv(pairs[0], pairs[1], 1);
}
#define ENV(...) set_only((const char *const[]){ __VA_ARGS__, NULL })

static int port_of(const char *text) { return atoi(strrchr(text, ':') + 1); }

static void from_environment(void **state) {
    (void)state;
    rendezvous_settings s = { .rank = 9 }, again = { 0 };
    ENV(NULL);
    assert_int_equal(launched_read(&s), 0);
    assert_int_equal(s.rank, 9);
    ENV("RANK", "3", "WORLD_SIZE", "8", "MASTER_ADDR", "big", "MASTER_PORT", "29500");
    assert_int_equal(launched_read(&s), 1);
    assert_int_equal(s.rank, 3);
    assert_int_equal(s.ranks, 8);
    assert_string_equal(s.server, "big:29500");
    ENV("RANK", "3", "WORLD_SIZE", "8", "MASTER_ADDR", "fe::1", "MASTER_PORT", "29500");
    s.server = NULL;
    assert_int_equal(launched_read(&s), 1);
    assert_string_equal(s.server, "[fe::1]:29500");
    ENV("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2");
    s = (rendezvous_settings){ 0 };
    assert_int_equal(launched_read(&s), ZERO_ERR_ARGUMENT);
    assert_non_null(
        strstr(zero_last_error(), "the launcher has started 2 ranks, but does not say where rank 0 is"));
    s.server = "here:1";
    assert_int_equal(launched_read(&s), 1);
    assert_string_equal(s.server, "here:1");
    assert_int_equal(s.rank, 1);
    assert_null(s.key);
    setenv("OMPI_MCA_orte_precondition_transports", "random", 1);
    assert_int_equal(launched_read(&s), 1);
    assert_string_equal(s.key, "random");
    s.key = "the user's";
    assert_int_equal(launched_read(&s), 1);
    assert_string_equal(s.key, "the user's");
    ENV("SLURM_PROCID", "5", "SLURM_NTASKS", "6", "SLURM_JOB_ID", "123", "SLURM_JOB_NODELIST", "a",
        "SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1");
    s.server = NULL;
    assert_int_equal(launched_read(&s), 1);
    assert_int_equal(s.ranks, 6);
    assert_memory_equal(s.server, "a:", 2);
    assert_in_range(port_of(s.server), 10000, 29999);
    int one = port_of(s.server);
    setenv("SLURM_STEP_ID", "1", 1);
    assert_int_equal(launched_read(&again), 1);
    assert_int_not_equal(port_of(again.server), one);  // two steps of one job have different ports
    assert_true(again.job != s.job && again.job && s.job);
    ENV("SLURM_PROCID", "0", "SLURM_NTASKS", "2", "SLURM_JOB_ID", "123", "SLURM_LAUNCH_NODE_IPADDR",
        "10.1.1.1");
    again.server = NULL;
    assert_int_equal(launched_read(&again), 1);
    assert_memory_equal(again.server, "10.1.1.1:", 9);
}

static void slurm_lists(void **state) {
    (void)state;
    static const char *const lists[][2] = {
        { "node7", "node7:" },        { "node7,node8", "node7:" },   { "node[01-03,7]", "node01:" },
        { "node[7],x", "node7:" },    { "n[3,5-9]-ib,m", "n3-ib:" }, { "r[01-02]n[10-20]", "r01n10:" },
        { "a.b-c,d[1-2]", "a.b-c:" },
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        rendezvous_settings s = { 0 };
        ENV("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "SLURM_JOB_ID", "9", "SLURM_NODELIST", lists[i][0]);
        assert_int_equal(launched_read(&s), 1);
        if (strncmp(s.server, lists[i][1], strlen(lists[i][1])))
            fail_msg("%s gives %s", lists[i][0], s.server);
    }
}

// torchrun's agent listens at MASTER_PORT itself, unless its settings say otherwise.
static void torchrun(void **state) {
    (void)state;
    char ports[3][320];
    for (int i = 0; i < 3; i++) {
        rendezvous_settings s = { 0 };
        ENV("RANK", i == 1 ? "1" : "0", "WORLD_SIZE", "2", "MASTER_ADDR", "big", "MASTER_PORT", "29500",
            "TORCHELASTIC_RUN_ID", i == 2 ? "other" : "none", "TORCHELASTIC_USE_AGENT_STORE", "True");
        assert_int_equal(launched_read(&s), 1);
        assert_memory_equal(s.server, "big:", 4);
        assert_in_range(port_of(s.server), 10000, 30000);
        assert_int_not_equal(port_of(s.server), 29500);
        snprintf(ports[i], sizeof ports[i], "%s", s.server);
    }
    assert_string_equal(ports[0], ports[1]);
    assert_string_not_equal(ports[0], ports[2]);
    rendezvous_settings s = { 0 };
    setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
    assert_int_equal(launched_read(&s), 1);
    assert_string_equal(s.server, "big:29500");
    int of_step[2];
    for (int step = 0; step < 2; step++) {  // one srun starts an agent on each host
        ENV("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "MASTER_PORT", "29500", "TORCHELASTIC_RUN_ID",
            "run", "TORCHELASTIC_USE_AGENT_STORE", "True", "SLURM_JOB_ID", "7", "SLURM_STEP_ID",
            step ? "1" : "0");
        rendezvous_settings found = { .rank = 9 };
        assert_int_equal(launched_read(&found), 1);
        of_step[step] = port_of(found.server);
    }
    assert_int_equal(of_step[0], of_step[1]);
    ENV("WORLD_SIZE", "16", "SLURM_PROCID", "0", "SLURM_NTASKS", "16", "SLURM_JOB_ID",
        "77");  // of a batch script: one process
    assert_int_equal(zero_launched().ranks, 1);
}

static void variables_of_a_script(void **state) {
    (void)state;
    rendezvous_settings s = { 0 };
    ENV("RANK", "0", "WORLD_SIZE", "1", "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2");
    assert_int_equal(launched_read(&s), ZERO_ERR_ARGUMENT);
    assert_non_null(strstr(zero_last_error(),
                           "RANK=0 and WORLD_SIZE=1, but mpirun started this as task 1 of 2: unset both"));
    setenv("TORCHELASTIC_RUN_ID", "1", 1);
    assert_int_equal(launched_read(&s), 1);
}

static void variables_that_cannot_be(void **state) {
    (void)state;
    static const struct {
        const char *words, *pairs[6];
    } wrong[] = {
        { "RANK=5 and WORLD_SIZE=2: of 2 ranks the last is 1", { "RANK", "5", "WORLD_SIZE", "2" } },
        { "RANK=1 and WORLD_SIZE=1: of 1 ranks the last is 0", { "RANK", "1", "WORLD_SIZE", "1" } },
        { "RANK=-1 is not a number from 0 on", { "RANK", "-1", "WORLD_SIZE", "2" } },
        { "RANK=x is not a number from 0 on", { "RANK", "x", "WORLD_SIZE", "8" } },
        { "WORLD_SIZE=0 is not a number from 1 on", { "RANK", "0", "WORLD_SIZE", "0" } },
        { "WORLD_SIZE=2x is not a number from 1 on", { "RANK", "0", "WORLD_SIZE", "2x" } },
        { "RANK=gold, but no WORLD_SIZE: set it in each process", { "RANK", "gold" } },
        { "WORLD_SIZE=1, but no RANK: set it in each process", { "WORLD_SIZE", "1" } },
        { "OMPI_COMM_WORLD_RANK=2 and OMPI_COMM_WORLD_SIZE=2: of 2",
          { "OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_SIZE", "2" } },
        { "OMPI_COMM_WORLD_RANK=1, but no OMPI_COMM_WORLD_SIZE", { "OMPI_COMM_WORLD_RANK", "1" } },
        { "OMPI_COMM_WORLD_SIZE=2, but no OMPI_COMM_WORLD_RANK", { "OMPI_COMM_WORLD_SIZE", "2" } },
        { "PMI_RANK=2 and PMI_SIZE=2: of 2", { "PMI_RANK", "2", "PMI_SIZE", "2" } },
        { "SLURM_PROCID=2 and SLURM_STEP_NUM_TASKS=2: of 2",
          { "SLURM_PROCID", "2", "SLURM_STEP_NUM_TASKS", "2" } },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        set_only(wrong[i].pairs);
        if (zero_launched().ranks || strncmp(zero_last_error(), wrong[i].words, strlen(wrong[i].words)))
            fail_msg("row %zu: %d ranks, \"%s\"", i, zero_launched().ranks, zero_last_error());
    }
}

// Whether MPI starts the ranks, and which rank this is then: both have the same answer.
static void launchers(void **state) {
    (void)state;
    static const struct {
        int mpi, rank, ranks, on_node;
        const char *pairs[20];
    } known[] = {
        { 0, 0, 1, 1, { NULL } },
        { 1, 0, 1, 1, { "PMIX_RANK", "0" } },  // MPI has been initialised without a launcher
        { 1,
          1,
          4,
          2,
          { "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_SIZE", "2" } },
        // srun --mpi=pmix, =pmi2, =none
        { 1,
          3,
          4,
          2,
          { "PMIX_RANK", "3", "SLURM_PROCID", "3", "SLURM_STEP_NUM_TASKS", "4", "SLURM_JOB_ID", "7",
            "SLURM_NTASKS", "8", "SLURM_STEP_TASKS_PER_NODE", "2(x2)" } },
        { 0,
          3,
          4,
          2,
          { "PMI_RANK", "3", "PMI_SIZE", "4", "SLURM_PROCID", "3", "SLURM_STEP_NUM_TASKS", "4",
            "SLURM_JOB_ID", "7", "SLURM_STEP_TASKS_PER_NODE", "2(x2)" } },
        { 0,
          3,
          4,
          4,
          { "SLURM_PROCID", "3", "SLURM_STEP_NUM_TASKS", "4", "SLURM_JOB_ID", "7",
            "SLURM_STEP_TASKS_PER_NODE", "4" } },
        // one task of srun's, pmi2
        { 0,
          0,
          1,
          1,
          { "PMI_RANK", "0", "PMI_SIZE", "1", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1",
            "SLURM_JOB_ID", "7" } },
        // mpirun in an allocation, whose daemon is a task of srun's
        { 1,
          1,
          8,
          4,
          { "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "8", "OMPI_COMM_WORLD_LOCAL_SIZE", "4",
            "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "2", "SLURM_JOB_ID", "7" } },
        // another MPI's mpiexec there, and by itself
        { 1,
          5,
          8,
          4,
          { "PMI_RANK", "5", "PMI_SIZE", "8", "MPI_LOCALNRANKS", "4", "SLURM_PROCID", "1",
            "SLURM_STEP_NUM_TASKS", "2", "SLURM_JOB_ID", "7" } },
        { 1, 1, 2, 2, { "PMI_RANK", "1", "PMI_SIZE", "2" } },
        // torchrun by srun --mpi=pmix
        { 0,
          3,
          4,
          2,
          { "RANK", "3", "WORLD_SIZE", "4", "LOCAL_WORLD_SIZE", "2", "TORCHELASTIC_RUN_ID", "x", "PMIX_RANK",
            "1", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2" } },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        set_only(known[i].pairs);
        zero_launch found = zero_launched();
        int mpi = launched_by_mpi();
        if (mpi != known[i].mpi || found.rank != known[i].rank || found.ranks != known[i].ranks ||
            found.ranks_on_node != known[i].on_node)
            fail_msg("row %zu: MPI %d, rank %d of %d, %d on the node", i, mpi, found.rank, found.ranks,
                     found.ranks_on_node);
    }
}

#define TEST(name) cmocka_unit_test_setup(name, fresh)
int main(void) {
    if (!mkdtemp(folder)) return 1;
    const struct CMUnitTest tests[] = {
        TEST(by_address),
        TEST(by_file),
        TEST(by_name_and_ipv6),
        TEST(in_any_order),
        TEST(two_hosts),
        TEST(twice_the_same_rank),
        TEST(missing),
        TEST(earliest_limit),
        TEST(no_rank_0),
        TEST(other_number_of_ranks),
        TEST(other_version),
        TEST(other_protocol),
        TEST(other_job),
        TEST(a_rank_that_ends),
        TEST(rank_0_of_before),
        TEST(a_rank_that_is_stopped),
        TEST(rank_0_sleeps),
        TEST(settings_that_cannot_be),
        TEST(strangers),
        TEST(port_in_use),
        TEST(another_program),
        TEST(unknown_host),
        TEST(stale_file),
        TEST(file_of_another_run),
        TEST(bad_files),
        TEST(folders),
        TEST(files_of_the_user),
        TEST(file_that_appears),
        TEST(from_environment),
        TEST(slurm_lists),
        TEST(torchrun),
        TEST(variables_of_a_script),
        TEST(variables_that_cannot_be),
        TEST(launchers),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    if (rmdir(folder)) {
        fprintf(stderr, "%s is not empty\n", folder);
        failed++;
    }
    return failed;
}
