// Who reaches a port of a job without knowing its secret, or lies: dropped, without the job being disturbed,
// delayed or made to print what it likes. The messages are put together here, byte by byte.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <math.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include "../llmc_zero/net/exchange.h"
#include "../llmc_zero/net/failure.h"
#include "../llmc_zero/net/rendezvous_file.h"
#include "../llmc_zero/net/secret.h"
#include "../llmc_zero/net/sockets.h"
#include "ranks.h"

static const char right_key[] = "the key of this job", wrong_key[] = "the key of another job";
static char folder[] = "/tmp/strangers.XXXXXX", path[64], server[64];
static int port;
static outcome *o;

// -------- the messages of the start

enum { CHALLENGE = 1, NO_KEY, HELLO, REPORT, NOT_MINE };
typedef struct {
    uint32_t magic, kind, bytes, protocol;
    uint64_t run;
    nonce nonce;
    secret tag;
} head;
typedef struct {
    head h;
    uint64_t job, node;
    double left_s;
    int32_t rank, ranks, pid, port;
    char host[NET_NAME], version[48];
    net_address at;
} seat;

// The key of what `from` says to `to`, after each has sent the other this head.
static secret key_of(const char *key, int from, int to, const head *its, const head *others) {
    secret s = secret_add((secret){ { 0 } }, key ? key : "", key ? strlen(key) : 0);
    const struct {
        int32_t from, to;
        nonce its, others;
    } names = { from, to, its->nonce, others->nonce };
    return secret_add(s, &names, sizeof names);
}

static head head_of(int kind, size_t bytes) {
    return (head){ .magic = 0x4c5a5256, .kind = (uint32_t)kind, .bytes = (uint32_t)bytes, .protocol = 6 };
}
static void seal(head *h, const secret *key) {
    h->tag = (secret){ { 0 } };
    h->tag = secret_add(*key, h, sizeof *h + h->bytes);
}
static seat seat_of(int rank, int ranks) {
    seat s = { .h = head_of(HELLO, sizeof s - sizeof s.h), .job = 7, .node = 3, .left_s = 5, .rank = rank };
    s.ranks = ranks;
    s.pid = 4711;
    s.port = 4712;
    strcpy(s.host, "evil");
    strcpy(s.version, "1");
    s.at.v4 = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    s.at.v4.sin_port = htons(4712);
    return s;
}
static int send_all(int fd, const void *data, size_t bytes) {
    return send(fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

// Connects to rank 0, and greets it in two pieces as one who knows this key. Returns the connection.
static int greet(seat *s, const char *key) {
    head challenge;
    int fd = knock(port);
    assert_true(fd >= 0);
    assert_int_equal(recv(fd, &challenge, sizeof challenge, MSG_WAITALL), sizeof challenge);
    assert_int_equal(challenge.kind, CHALLENGE);
    assert_int_equal(secret_draw(&s->h.nonce, sizeof s->h.nonce), 0);
    secret c = key_of(key, s->rank, 0, &s->h, &challenge);
    seal(&s->h, &c);
    assert_true(send_all(fd, s, 100));
    nap(5e-3);
    assert_true(send_all(fd, (char *)s + 100, sizeof *s - 100));
    return fd;
}
// It is told nothing: at most CHALLENGE and NO_KEY come, with a nonce, and then the connection ends.
static void is_dropped(int fd) {
    static const secret no_tag;
    head answer[3];
    ssize_t n, got = 0;
    struct timeval limit = { 5, 0 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while ((n = recv(fd, (char *)answer + got, sizeof answer - (size_t)got, 0)) > 0) got += n;
    assert_true(n == 0 || errno == ECONNRESET);
    assert_in_range(got, 0, 2 * sizeof(head));
    assert_int_equal(got % (ssize_t)sizeof(head), 0);
    for (size_t i = 0; i < (size_t)got / sizeof(head); i++) {
        assert_true(answer[i].kind <= NO_KEY && !answer[i].bytes && !answer[i].run);
        assert_memory_equal(&answer[i].tag, &no_tag, sizeof no_tag);
    }
    close(fd);
}

// -------- ranks

typedef struct {
    rendezvous_settings s;
    double delay;
    int files;  // that it may have open; 0: as many as it likes
} plan;
static plan plans[MOST_RANKS];

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
static void plan_ranks(int n, const char *key, double limit) {
    for (int i = 0; i < n; i++) {
        plans[i] = (plan){ .files = 0 };
        plans[i].s = (rendezvous_settings){ .rank = i, .ranks = n, .server = server, .key = key };
        plans[i].s.timeout_s = limit;
        plans[i].s.job = 7;
        plans[i].s.version = "1";
    }
}
static void one_rank(int i, void *ctx) {
    const plan *p = &((plan *)ctx)[i];
    int sockets[MOST_RANKS];
    rendezvous_peer peers[MOST_RANKS];
    nap(p->delay);
    if (p->files) setrlimit(RLIMIT_NOFILE, &(struct rlimit){ (rlim_t)p->files, (rlim_t)p->files });
    double start = now();
    o[i].rc = rendezvous(&p->s, sockets, peers);
    o[i].seconds = now() - start;
    for (int r = 0; r < p->s.ranks && !o[i].rc; r++) {
        o[i].value += peers[r].pid == 4711 || !strcmp(peers[r].host, "evil");
        if (sockets[r] >= 0) close(sockets[r]);
    }
}
static void start(int from, int n) {
    for (int i = from; i < n; i++) start_child(i, one_rank, plans);
}
static void all_met(int n, double limit) {
    assert_int_equal(end_children(n, limit + 5), 0);
    for (int i = 0; i < n; i++) {
        if (o[i].rc) fail_msg("rank %d: %s", i, o[i].sentence);
        if (o[i].seconds > limit) fail_msg("rank %d took %.1f s", i, o[i].seconds);
        assert_int_equal(o[i].value, 0);
        assert_int_equal(o[i].fds, 0);
        assert_int_equal(statuses[i], 0);
    }
}
static void says(int rank, const char *words) {
    if (!o[rank].rc || !strstr(o[rank].sentence, words))
        fail_msg("rank %d returned %d (status %d), \"%s\"; expected \"%s\"", rank, o[rank].rc, statuses[rank],
                 o[rank].sentence, words);
    for (const char *c = o[rank].sentence; *c; c++) assert_in_range(*c, ' ', '~');
    assert_int_equal(o[rank].fds, 0);
    assert_int_equal(statuses[rank], 0);
}

// -------- at rank 0's port

// Greetings in which all is right but the key, of any content, disturb nobody.
static void other_keys(void **state) {
    (void)state;
    seat s[8];
    plan_ranks(3, right_key, 10);
    start(0, 1);
    for (int i = 0; i < 8; i++) s[i] = seat_of(1, 3);
    s[2].ranks = 4;
    s[3].rank = 99;
    s[4].job = 8;
    s[5].left_s = 0.01;
    strcpy(s[6].version, "\33[2J");
    memset(s[7].host, 'A', sizeof s[7].host);
    for (int i = 0; i < 8; i++) is_dropped(greet(&s[i], i ? wrong_key : NULL));
    start(1, 3);
    all_met(3, 3);
}

// Without a key nobody else is kept out, but what is said is checked, and printed as plain characters.
static void no_key(void **state) {
    (void)state;
    seat s = seat_of(1, 2);
    plan_ranks(2, NULL, 10);
    start(0, 1);
    for (int i = 0; i < 5; i++) {
        seat bad = s;
        if (i == 0) bad.left_s = NAN;
        if (i == 1) bad.left_s = INFINITY;
        if (i == 2) bad.port = 65536;
        if (i == 3) bad.pid = -1;
        if (i == 4) bad.h.bytes -= 8;
        is_dropped(greet(&bad, NULL));
    }
    s.ranks = 3;
    memset(s.host, 'A', sizeof s.host);  // and no end
    memcpy(s.host, "\33[2J\n\x9b", 6);
    close(greet(&s, NULL));
    assert_int_equal(end_children(1, 3), 0);
    says(0, "rank 1 (host ?[2J ?AAAA");
    says(0, "AA pid 4711) was started as one of 3 ranks");
}

// A rank that has come, and then says nothing any more.
static void silent_rank(void **state) {
    (void)state;
    seat s = seat_of(1, 2);
    plan_ranks(2, right_key, 0.5);
    start(0, 1);
    int fd = greet(&s, right_key);
    assert_int_equal(end_children(1, 6), 0);
    close(fd);
    says(0, "rank 1 (host evil): no word of being connected to the others within 0.5 s, though all 2 ranks");
}

// What one connection proved is of no use on another.
static void replayed(void **state) {
    (void)state;
    head challenge;
    seat s = seat_of(1, 2), welcome;
    plan_ranks(2, right_key, 10);
    start(0, 1);
    s.ranks = 3;  // so that the first one is told why it cannot be
    s.job = 8;
    int first = greet(&s, right_key), second = knock(port);
    assert_true(recv(first, &welcome, sizeof welcome, 0) > (ssize_t)sizeof(head));
    assert_int_equal(welcome.h.kind, NOT_MINE);
    close(first);
    assert_int_equal(recv(second, &challenge, sizeof challenge, MSG_WAITALL), sizeof challenge);
    assert_true(send_all(second, &s, sizeof s));
    is_dropped(second);
    start(1, 2);
    all_met(2, 3);
}

// Rank 0 says who came without the key, and a rank with another key at once why it is not let in.
static void ranks_with_other_keys(void **state) {
    (void)state;
    plan_ranks(3, right_key, 0.8);
    plans[1].s.key = wrong_key;
    plans[2].s.key = NULL;
    start(0, 3);
    assert_int_equal(end_children(3, 5), 0);
    says(0, "ranks 1 and 2 of 3 did not come within 0.8 s");
    says(0, "; 2 that came did not know the key of the job, the last from 127.0.0.1:");
    says(1, "has another key than this rank: give all ranks of a job the same ZERO_JOB_KEY");
    says(2, "has another key than this rank");
    assert_true(o[1].seconds < 0.7 && o[2].seconds < 0.7);
    plan_ranks(2, "0123456789abcde", 1);
    forget_outcomes();
    start(0, 1);
    assert_int_equal(end_children(1, 3), 0);
    says(0, "ZERO_JOB_KEY has 15 characters, which can be guessed");
}

// -------- strangers by the thousand

// A child that disturbs until it is killed, or the test has ended.
static int connect_once(void) {
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd >= 0) (void)!connect(fd, (struct sockaddr *)&a, sizeof a);
    return fd;
}
static void disturb(int kind) {
    static int held[4096];
    seat s = seat_of(1, 3);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0;; i = (i + 1) % 600) {
        int fd = connect_once();
        struct pollfd p = { fd, POLLOUT, 0 };
        if (fd < 0) nap(1e-3);
        if (kind > 1) poll(&p, 1, 10);
        if (kind == 2) send_all(fd, &s, sizeof s);  // greets with a tag that is none
        if (kind == 3) send_all(fd, &s, 100);       // begins to greet
        if (kind == 1 && held[i]) close(held[i]);   // stays and is silent
        if (kind == 0 || kind == 2) close(fd);      // comes and goes
        if (kind == 3 && i == 50) pause();
        held[i] = fd;
    }
}
static void floods(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        pid_t pid;
        fresh(NULL);
        plan_ranks(3, right_key, 20);
        plans[0].files = kind == 1 ? 40 : 0;  // fewer than the strangers would take
        start(0, 1);
        assert_true((pid = knock(port)) >= 0);
        close(pid);
        if (!(pid = fork())) disturb(kind);
        assert_true(pid > 0);
        nap(0.3);
        start(1, 3);
        int hung = end_children(3, 15);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        for (int i = 0; i < 3; i++)
            if (hung || o[i].rc)
                fail_msg("strangers of kind %d, %d hang, rank %d: %s", kind, hung, i, o[i].sentence);
    }
}

// Rank 0's address is the machine's own, so other machines are not even spoken to.
static void from_another_machine(void **state) {
    (void)state;
    struct ifaddrs *all = NULL, *i;
    net_address at = { .v6 = { 0 } };
    assert_int_equal(getifaddrs(&all), 0);
    for (i = all; i; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET) continue;
        at = net_from(i->ifa_addr, port);
        if (!net_is_loopback(&at)) break;
    }
    freeifaddrs(all);
    if (!i) skip();
    plan_ranks(2, NULL, 10);
    start(0, 1);
    close(knock(port));
    int fd = net_connect(&at, now() + 2), flags = fcntl(fd, F_GETFL);
    assert_true(fd >= 0 && !fcntl(fd, F_SETFL, flags & ~O_NONBLOCK));
    assert_true(recv(fd, &flags, 1, 0) <= 0);
    close(fd);
    start(1, 2);
    all_met(2, 3);
}

// -------- a rank 0 that lies

// Plays rank `me` with this key, until a rank has said hello. Returns the connection.
static int receive_rank(int listener, const char *key, int me, seat *hello, secret *c) {
    head challenge = head_of(CHALLENGE, 0);
    assert_int_equal(net_wait(listener, POLLIN, now() + 3), 0);
    int fd = net_accept(listener);
    assert_true(fd >= 0);
    assert_int_equal(secret_draw(&challenge.nonce, sizeof challenge.nonce), 0);
    assert_true(send_all(fd, &challenge, sizeof challenge));
    assert_int_equal(net_read(fd, hello, sizeof *hello, now() + 3), 0);
    *c = key_of(key, me, hello->rank, &challenge, &hello->h);
    return fd;
}
static void tell(int fd, const secret *c, seat s) {
    s.h.run = 5;
    seal(&s.h, c);
    assert_true(send_all(fd, &s, sizeof s));
}
static void report(int fd, const secret *c, const char *text) {
    struct {
        head h;
        char text[600];
    } words = { .h = head_of(REPORT, strlen(text) + 1) };
    strcpy(words.text, text);
    seal(&words.h, c);
    assert_true(send_all(fd, &words, sizeof words.h + words.h.bytes));
}

static void rogue_rank_0(void **state) {
    (void)state;
    static const char *const words[] = {
        "rank 0 (host ????????????",  "it sent what no rank sends", "it sent what no rank sends",
        "it sent what no rank sends", "it sent what no rank sends", "it sent what no rank sends",
        "an evil ?]0;owned? text",    "what answers at 127.0.0.1:", "what answers at 127.0.0.1:",
    };
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++) {
        seat hello, zero = seat_of(0, 3), other = seat_of(1, 3);
        secret c;
        fresh(NULL);
        int listener = net_listen(port, 4);
        plan_ranks(3, right_key, 2);
        start(1, 2);
        int fd = receive_rank(listener, i < 7 ? right_key : wrong_key, 0, &hello, &c);
        zero.left_s = 0;
        if (i == 0) memset(zero.host, '\33', sizeof zero.host);
        if (i != 8) tell(fd, &c, zero);
        other.rank = i == 5 ? -1 : 2;
        zero.left_s = 5;
        if (i == 1) zero.left_s = NAN;
        if (i == 2) zero.left_s = INFINITY;
        if (i == 3) other.port = 0;
        if (i == 4) other.at.any.sa_family = AF_UNIX;
        if (i == 6) report(fd, &c, "an evil \33]0;owned\a text");
        if (i == 7) report(fd, &c, "an evil text");
        if (i == 8) report(fd, &c, "an evil text");
        if (i < 6) {
            if (i > 2) tell(fd, &c, other);
            tell(fd, &c, zero);
            if (!i) close(fd);
        }
        assert_int_equal(end_children(2, 6), 0);
        if (i) close(fd);
        close(listener);
        says(1, words[i]);
        assert_true(o[1].seconds < 1);
    }
}

// Ranks 1 and 2, to whom the test plays rank 0. It tells rank r that rank 1 listens at ports[r].
typedef struct {
    seat hello[3];
    secret c[3];
    int fd[3], listener;
} two_ranks;
static two_ranks start_two(void) {
    two_ranks t = { .listener = net_listen(port, 4) };
    plan_ranks(3, right_key, 20);
    for (int r = 1; r < 3; r++) {
        start_child(r, one_rank, plans);
        t.fd[r] = receive_rank(t.listener, right_key, 0, &t.hello[r], &t.c[r]);
    }
    return t;
}
static void tell_seats(const two_ranks *t, int r, int port_of_1) {
    seat seats[3] = { seat_of(0, 3), seat_of(1, 3), t->hello[2] };
    seats[1].port = port_of_1;
    seats[1].at.v4.sin_port = htons((uint16_t)port_of_1);
    seats[2].at = seats[1].at;
    for (int i = 0; i < 3; i++) tell(t->fd[r], &t->c[r], seats[i]);
}
static void end_two(two_ranks *t) {
    for (int r = 1; r < 3; r++) report(t->fd[r], &t->c[r], "");
    children[0] = 0;
    assert_int_equal(end_children(3, 5), 0);
    for (int r = 1; r < 3; r++) {
        close(t->fd[r]);
        if (o[r].rc) fail_msg("rank %d: %s", r, o[r].sentence);
    }
    close(t->listener);
}
// Both are connected, and have no more to say.
static void are_connected(const two_ranks *t) {
    for (int r = 1; r < 3; r++) {
        struct {
            head h;
            char text[1025];
        } report = { .text = "" };
        assert_int_equal(net_read(t->fd[r], &report.h, sizeof report.h, now() + 15), 0);
        assert_int_equal(net_read(t->fd[r], report.text, report.h.bytes, now() + 15), 0);
        if (*report.text) fail_msg("rank %d: %s", r, report.text);
    }
}

// Between two other ranks: who comes to rank 1 as rank 2 must know the secret too, for this connection, these
// two and this run.
static void at_another_ranks_port(void **state) {
    (void)state;
    two_ranks t = start_two();
    tell_seats(&t, 1, t.hello[1].port);
    for (int i = 0; i < 6; i++) {
        head challenge;
        seat s = t.hello[2];
        int stranger = knock(t.hello[1].port);
        assert_int_equal(recv(stranger, &challenge, sizeof challenge, MSG_WAITALL), sizeof challenge);
        s.h.run = i == 1 ? 6 : 5;
        if (i == 2) memset(&challenge.nonce, 0, sizeof challenge.nonce);
        secret c = key_of(i == 0 ? wrong_key : right_key, i == 3 ? 0 : 2, i == 4 ? 0 : 1, &s.h, &challenge);
        if (i == 5) c = key_of(right_key, 1, 2, &challenge, &s.h);  // as rank 1 would say it
        seal(&s.h, &c);
        assert_true(send_all(stranger, &s, sizeof s));
        is_dropped(stranger);
    }
    tell_seats(&t, 2, t.hello[1].port);
    are_connected(&t);
    end_two(&t);
}

// Strangers are at rank 1's port before rank 2 comes.
static void flood_at_another_rank(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        pid_t pid;
        fresh(NULL);
        two_ranks t = start_two();
        tell_seats(&t, 1, t.hello[1].port);
        port = t.hello[1].port;
        if (!(pid = fork())) disturb(kind);
        assert_true(pid > 0);
        nap(0.3);
        tell_seats(&t, 2, t.hello[1].port);
        are_connected(&t);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        end_two(&t);
    }
}

// Rank 1's part is played here too. First it drops rank 2 once, as a flood of strangers might; then another
// program has taken its port.
static void called_again(void **state) {
    (void)state;
    for (int is_program = 0; is_program < 2; is_program++) {
        seat hello[2], one = seat_of(1, 3);
        secret c[2];
        fresh(NULL);
        int port_of_1 = free_port(), listener = net_listen(port, 4), listener_1 = net_listen(port_of_1, 4);
        plan_ranks(3, right_key, 3);
        start(2, 3);
        int fd = receive_rank(listener, right_key, 0, &hello[0], &c[0]);
        one.port = port_of_1;
        one.at.v4.sin_port = htons((uint16_t)port_of_1);
        tell(fd, &c[0], one);
        tell(fd, &c[0], seat_of(0, 3));
        assert_int_equal(net_wait(listener_1, POLLIN, now() + 3), 0);
        int at_1 = net_accept(listener_1);
        assert_true(at_1 >= 0);
        if (is_program) {
            assert_true(send_all(at_1, "SSH-2.0-x\r\n", 11));
        } else {
            close(at_1);
            at_1 = receive_rank(listener_1, right_key, 1, &hello[1], &c[1]);
            tell(at_1, &c[1], one);
            report(fd, &c[0], "");
        }
        assert_int_equal(net_read(fd, &hello[0], sizeof(head), now() + 2), 0);  // rank 2 reports
        close(fd);
        assert_int_equal(end_children(3, 5), 0);
        if (is_program)
            says(2, "rank 1 (host evil pid 4711) has ended while the ranks were connecting (it sent what no");
        else if (o[2].rc)
            fail_msg("rank 2: %s", o[2].sentence);
        close(at_1);
        close(listener);
        close(listener_1);
    }
}

// Who overhears how rank 2 greets rank 1, at an address that rank 2 takes for rank 1's, cannot use a copy at
// rank 1, even first.
static void overheard(void **state) {
    (void)state;
    head challenge = head_of(CHALLENGE, 0);
    seat copy;
    int false_port = free_port(), false_1 = net_listen(false_port, 4);
    two_ranks t = start_two();
    tell_seats(&t, 1, t.hello[1].port);
    tell_seats(&t, 2, false_port);
    assert_int_equal(net_wait(false_1, POLLIN, now() + 3), 0);
    int from_2 = net_accept(false_1), copier = knock(t.hello[1].port);
    assert_true(from_2 >= 0);
    assert_int_equal(secret_draw(&challenge.nonce, sizeof challenge.nonce), 0);
    assert_true(send_all(from_2, &challenge, sizeof challenge));
    assert_int_equal(net_read(from_2, &copy, sizeof copy, now() + 3), 0);
    assert_int_equal(copy.rank, 2);
    assert_true(send_all(copier, &copy, sizeof copy));
    is_dropped(copier);
    for (int r = 1; r < 3; r++) close(t.fd[r]);
    close(from_2);
    close(false_1);
    close(t.listener);
    children[0] = 0;
    assert_int_equal(end_children(3, 5), 0);
}

// A rank does not take its own words, sent back to it, for rank 0's.
static void sent_back(void **state) {
    (void)state;
    char mine[sizeof(head) + 1];
    seat hello, zero = seat_of(0, 2);
    secret c;
    int listener = net_listen(port, 4);
    plan_ranks(2, right_key, 3);
    start(1, 2);
    int fd = receive_rank(listener, right_key, 0, &hello, &c);
    tell(fd, &c, zero);
    assert_int_equal(net_read(fd, mine, sizeof mine, now() + 3), 0);  // it is connected
    assert_true(send_all(fd, mine, sizeof mine));
    assert_int_equal(end_children(2, 5), 0);
    close(fd);
    close(listener);
    says(1, "it sent what no rank sends");
}

// -------- a rank that lies later

typedef struct {
    uint32_t magic, kind;
    uint64_t number;
    int32_t what, root;
    uint64_t bytes;
} frame;

static void least(int rank, void *ctx) {
    (void)ctx;
    rendezvous_settings s = { .rank = rank, .ranks = 2, .server = server, .timeout_s = 10 };
    net c = { .timeout_s = 5 };
    double begin = now();
    o[rank].rc = net_open_tcp(&c, &s);
    if (!o[rank].rc) o[rank].rc = net_least(&c, 1) < 0 ? ZERO_ERR_COMM : 0;
    snprintf(o[rank].sentence, sizeof o[rank].sentence, "%s", zero_last_error());
    o[rank].seconds = now() - begin;
    net_close(&c, 0);
}
static void frames(void **state) {
    (void)state;
    static const struct {
        uint32_t kind;
        uint64_t bytes;
        int root;
        const char *words;
    } bad[] = {
        { NOTES, 1ull << 63, 0, "is gone: it has sent what no rank sends, while rank 1" },
        { NOTES, UINT64_MAX - 3, 0, "it has sent what no rank sends" },
        { NOTES, 1ull << 62, 0, "are in different collectives" },
        { NOTES + 1, 8, 0, "it has sent what no rank sends" },
        { NOTE_END, sizeof(net_note), -7, "it has sent what no rank sends" },
        { NOTE_END, sizeof(net_note), 2, "it has sent what no rank sends" },
        { NOTE_LATE, sizeof(net_note), 2, "it has sent what no rank sends" },  // an END inside
        { NOTE_END, sizeof(net_note), 0, "rank 0 ended the job: ?]0;owned?AAAAAAA" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct {
            frame f;
            net_note note;
            uint32_t tail;
        } message = { .f = { 0x4c5a4652, bad[i].kind, 1, EXCHANGE_GATHER, 0, bad[i].bytes } };
        seat hello, zero = seat_of(0, 2);
        secret c;
        fresh(NULL);
        int listener = net_listen(port, 4);
        start_child(1, least, NULL);
        int fd = receive_rank(listener, NULL, 0, &hello, &c);
        tell(fd, &c, zero);
        report(fd, &c, "");
        message.note.kind = NOTE_END;
        message.note.root = bad[i].root;
        message.note.status = 1;
        memset(message.note.words, 'A', sizeof message.note.words);
        memcpy(message.note.words, "\33]0;owned\a", 10);
        message.tail = 0x600d600d;
        assert_true(send_all(fd, &message, sizeof message));
        children[0] = 0;
        assert_int_equal(end_children(2, 6), 0);
        close(fd);
        close(listener);
        says(1, bad[i].words);
        assert_true(o[1].seconds < 3);
    }
}

// -------- the start file

static void by_file(int n, double limit) {
    plan_ranks(n, NULL, limit);
    for (int i = 0; i < n; i++) {
        plans[i].s.server = NULL;
        plans[i].s.file = path;
    }
}
static void put(const char *text, mode_t mode) {
    FILE *f = fopen(path, "w");
    assert_true(f && !fchmod(fileno(f), mode) && fputs(text, f) >= 0 && !fclose(f));
}
#define KEY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define CARD(host, pid, port, run, time, key)                                                        \
    "llmc_zero rendezvous 2\nhost " host " pid " pid " port " port "\nrun " run " node 0 time " time \
    "\nkey " key "\naddress 127.0.0.1:9\n"

// Rank 0's own can be read by this user alone, and has a key of its own.
static void private_file(void **state) {
    (void)state;
    struct stat st;
    card c, again;
    by_file(2, 10);
    start(0, 1);
    for (double until = now() + 3; now() < until && card_read(path, &c);) nap(5e-3);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(strspn(c.key, "0123456789abcdef"), SECRET_TEXT - 1);
    seat s = seat_of(1, 2);
    port = c.port;
    is_dropped(greet(&s, NULL));  // who has not read the file is not let in
    start(1, 2);
    all_met(2, 3);
    fresh(NULL);
    start(0, 1);
    for (double until = now() + 3; now() < until && card_read(path, &again);) nap(5e-3);
    start(1, 2);
    all_met(2, 3);
    assert_string_not_equal(c.key, again.key);
}

// A card that others can read or write, or have written, is not used and stays as it is.
static void planted(void **state) {
    (void)state;
    static const char text[] = CARD("ghost", "4711", "9", "1", "1", KEY);
    for (int i = 0; i < 3; i++) {
        struct stat st;
        fresh(NULL);
        put(text, i == 0 ? 0644 : i == 1 ? 0620 : 0600);
        if (i == 2 && chown(path, 65534, (gid_t)-1)) break;  // only root can
        by_file(2, 0.5);
        start(0, 2);
        assert_int_equal(end_children(2, 3), 0);
        says(0, "rank 0 cannot write it: it is another user's, or other users may read or write it");
        says(1, "it is another user's, or other users may read or write it: name another in start.file");
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, sizeof text - 1);
    }
}

static void crafted(void **state) {
    (void)state;
    static const char *const bad[] = {
        CARD("ghost", "-1", "9", "1", "1", KEY),
        CARD("ghost", "1", "0", "1", "1", KEY),
        CARD("ghost", "1", "65536", "1", "1", KEY),
        CARD("ghost", "1", "4294967305", "0", "1", KEY),
        CARD("ghost", "1", "9", "1", "-9223372036854775808", KEY),
        CARD("ghost", "1", "9", "1", "9223372036854775807", KEY),
        CARD("ghost", "1", "9", "1", "1", "0123"),
        CARD("ghost", "1", "9", "1", "1", KEY "0"),
        CARD("ghost", "1", "9", "1", "1", "x"),
    };
    card c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(bad[i], 0600);
        if (card_read(path, &c) != -EBADMSG) fail_msg("taken for a card:\n%s", bad[i]);
    }
    put(CARD("\33[2J", "1", "9", "1", "1", KEY), 0600);
    assert_int_equal(card_read(path, &c), 0);
    assert_string_equal(c.host, "?[2J");
    assert_int_equal(symlink(path, server), 0);
    assert_int_equal(card_read(server, &c), -EBADMSG);
    unlink(server);
}

// -------- plain characters

static void plain(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        { "rank 1: /home/j\xc3\xbcrgen", "rank 1: /home/j\xc3\xbcrgen" },
        { "\33]0;x\a\r\b\177", "?]0;x????" },
        { "a\nb\tc", "a b c" },
        { "\xc2\x9b"
          "2J \x9b"
          "2J",
          "??2J ?2J" },                                   // a terminal's code of one byte, and in UTF-8
        { "\xe0\x80\x9b \xf0\x80\x80\x9b", "??? ????" },  // longer than it need be
        { "\xe2\x82\xac \xf0\x9f\x98\x80 \xf5", "\xe2\x82\xac \xf0\x9f\x98\x80 ?" },
        { "\xe2\x82", "??" },
        // what changes the order of characters, or is not seen: U+202E, U+2066, U+200B, U+061C, U+FEFF, a tag
        { "a\xe2\x80\xaetxt.exe", "a???txt.exe" },
        { "\xe2\x81\xa6x\xe2\x81\xa9", "???x???" },
        { "a\xe2\x80\x8b"
          "b\xd8\x9c"
          "c\xef\xbb\xbf",
          "a???b??c???" },
        { "\xf3\xa0\x81\x81", "????" },
        { "\xe2\x80\x90\xe2\x80\xa7\xe2\x80\xaf",
          "\xe2\x80\x90\xe2\x80\xa7\xe2\x80\xaf" },       // their neighbours
        { "\xed\xa0\x80 \xf4\x90\x80\x80", "??? ????" },  // a surrogate, and a number that is too large
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32] = "";
        snprintf(text, sizeof text, "%s", cases[i][0]);
        zero_plain(text, sizeof text);
        assert_string_equal(text, cases[i][1]);
    }
    char *no_end = malloc(8);  // of a size that a sanitizer watches
    assert_non_null(no_end);
    memset(no_end, 0xe2, 8);
    zero_plain(no_end, 8);
    assert_string_equal(no_end, "???????");
    free(no_end);
}

#define TEST(name) cmocka_unit_test_setup(name, fresh)
int main(void) {
    unsigned char any;
    if (!mkdtemp(folder) || secret_draw(&any, 1)) return 1;
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        TEST(other_keys),
        TEST(no_key),
        TEST(silent_rank),
        TEST(replayed),
        TEST(ranks_with_other_keys),
        TEST(floods),
        TEST(from_another_machine),
        TEST(rogue_rank_0),
        TEST(at_another_ranks_port),
        TEST(flood_at_another_rank),
        TEST(called_again),
        TEST(overheard),
        TEST(sent_back),
        TEST(frames),
        TEST(private_file),
        TEST(planted),
        TEST(crafted),
        TEST(plain),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed + (rmdir(folder) != 0);
}
