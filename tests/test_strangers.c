// Tests connections to a job's port without its key, and ranks that lie. They must be dropped, and must not
// disturb or delay the job or put control codes into its output. This file seals messages with separate code.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <sys/prctl.h>
#include "../llmc_zero/net/failure.h"
#include "start_ranks.h"

static const char right_key[] = "the key of this job", wrong_key[] = "the key of another job";
static const nonce startup = { { 5 } };

// -------- the startup messages

// Returns the key for messages from rank `from` to rank `to`, given the heads they exchanged.
static secret key_of(const char *key, int from, int to, const head *its, const head *others) {
    const uint64_t job = JOB;
    secret s = secret_add((secret){ { 0 } }, key ? key : "", key ? strlen(key) : 0);
    s = secret_add(s, &job, sizeof job);
    if (from && to) s = secret_add(s, &startup, sizeof startup);
    const struct {
        int32_t from, to;
        nonce its, others;
    } names = { from, to, its->nonce, others->nonce };
    return secret_add(s, &names, sizeof names);
}
static head head_of(int kind, size_t bytes) {
    return (head){ 0x4c5a5256, (uint32_t)kind, (uint32_t)(bytes - sizeof(head)), 7, { { 0 } }, { { 0 } } };
}
static int send_all(int fd, const void *data, size_t bytes) {
    return send(fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}
static void seal(head *h, secret key) {
    h->tag = (secret){ { 0 } };
    h->tag = secret_add(key, h, sizeof *h + h->bytes);
}
static void send_sealed(int fd, const secret *c, head *h) {
    seal(h, *c);
    assert_true(send_all(fd, h, sizeof *h + h->bytes));
}
static void send_seat(int fd, const secret *c, seat s) { send_sealed(fd, c, &s.h); }
static void report(int fd, const secret *c, const char *text) {
    words w = { .h = head_of(REPORT, sizeof w) };
    strcpy(w.text, text);
    send_sealed(fd, c, &w.h);
}
static seat seat_of(int rank, int at_port) {
    seat s = {
        .h = head_of(HELLO, sizeof s), .startup = startup, .left_s = PATIENT_S, .rank = rank, .ranks = 3
    };
    s.pid = EVIL_PID;
    s.port = at_port;
    strcpy(s.host, "evil");
    strcpy(s.version, "1");
    s.at.v4 = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    s.at.v4.sin_port = htons((uint16_t)at_port);
    return s;
}

// Connects to a port and waits for the challenge.
static int approach(int at_port, head *challenge) {
    int fd = knock(at_port);
    assert_true(fd >= 0);
    assert_int_equal(recv(fd, challenge, sizeof *challenge, MSG_WAITALL), sizeof *challenge);
    assert_int_equal(challenge->kind, CHALLENGE);
    return fd;
}
// Sends HELLO to rank 0, sealed with this key, in two pieces.
static int greet(seat *s, const char *key) {
    head challenge;
    int fd = approach(port, &challenge);
    assert_int_equal(secret_draw(&s->h.nonce, sizeof s->h.nonce), 0);
    seal(&s->h, key_of(key, s->rank, 0, &s->h, &challenge));
    assert_true(send_all(fd, s, 100));
    nap(5e-3);
    assert_true(send_all(fd, (char *)s + 100, sizeof *s - 100));
    return fd;
}
// Checks that the other side reveals nothing: it sends at most CHALLENGE and NO_KEY, without a tag, and
// closes the connection.
static void is_dropped(int fd) {
    static const secret no_tag;
    head answer[3];
    ssize_t n, got = 0;
    struct timeval limit = { HANGS_AFTER_S, 0 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while ((n = recv(fd, (char *)answer + got, sizeof answer - (size_t)got, 0)) > 0) got += n;
    assert_true(n == 0 || errno == ECONNRESET);
    assert_in_range(got, 0, 2 * sizeof(head));
    assert_int_equal(got % (ssize_t)sizeof(head), 0);
    for (size_t i = 0; i < (size_t)got / sizeof(head); i++) {
        assert_true(answer[i].kind <= NO_KEY && !answer[i].bytes);
        assert_memory_equal(&answer[i].tag, &no_tag, sizeof no_tag);
    }
    close(fd);
}

static void plan_keyed(int n, const char *key, double limit) {
    plan_ranks(n, server, NULL, limit);
    for (int i = 0; i < n; i++) plans[i].s.key = key;
}
static void end_connected(int n) {
    assert_int_equal(end_children(n), 0);
    have_connected(0, n);
}

// -------- at rank 0's port

// Other programs connect, and so do ranks with no key or the wrong key, sending a variety of greetings.
static void without_the_key(void **state) {
    static const uint32_t long_message[1024] = { 0x4c5a5256, 1, 1u << 30, 7 },
                          odd_kind[4] = { 0x4c5a5256, 77, 4, 7 }, odd_magic[44] = { 0x12345678, 3, 152, 7 };
    static const struct {
        const void *bytes;
        size_t n;
    } others[] = { { "GET / HTTP/1.0\r\nHost: rank0\r\n\r\n", 31 },
                   { "V", 1 },
                   { long_message, sizeof long_message },
                   { odd_kind, sizeof odd_kind },
                   { odd_magic, sizeof odd_magic },
                   { "", 0 } };
    enum { OTHERS = sizeof others / sizeof *others };
    int fd[OTHERS];
    plan_keyed(3, right_key, PATIENT_S);
    start(0, 1);
    for (int i = 0; i < OTHERS; i++) {  // these stay connected
        assert_true((fd[i] = knock(port)) >= 0);
        assert_true(send_all(fd[i], others[i].bytes, others[i].n));
    }
    for (int i = 0; i < 8; i++) {
        seat s = seat_of(1, 80);
        if (i == 1) s.ranks = 4;
        if (i == 2) s.rank = 99;
        if (i == 3) s.left_s = 0.01;
        if (i == 4) strcpy(s.version, "\33[2J");
        if (i == 5) memset(s.host, 'A', sizeof s.host);
        is_dropped(greet(&s, i ? wrong_key : NULL));
    }
    start(1, 3);
    end_connected(3);
    for (int i = 0; i < OTHERS; i++) close(fd[i]);
}

// Without a key anyone can connect, but messages are still checked, and printed without control codes.
static void no_key(void **state) {
    seat s = seat_of(1, 80);
    plan_keyed(2, NULL, PATIENT_S);
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
    memset(s.host, 'A', sizeof s.host);  // has no terminating zero
    memcpy(s.host, "\33[2J\n\x9b", 6);
    close(greet(&s, NULL));
    assert_int_equal(end_children(1), 0);
    fails_with(0, "rank 1 (host ?[2J ?AAAA");
    fails_with(0, "AA pid 4711) was started as one of 3 ranks");
}

// A rank that connects and then stays silent.
static void silent_rank(void **state) {
    seat s = seat_of(1, 80);
    s.ranks = 2;
    plan_keyed(2, right_key, 3);
    start(0, 1);
    int fd = greet(&s, right_key);
    assert_int_equal(end_children(1), 0);
    close(fd);
    fails_with(0, "rank 1 (host evil) did not report its connections within 3 s, though all 2 ranks");
}

// A HELLO recorded on one connection is useless on another.
static void replayed(void **state) {
    head challenge;
    seat s = seat_of(1, 80), welcome;
    plan_keyed(3, right_key, 3);
    start(0, 1);
    int first = greet(&s, right_key), second = approach(port, &challenge);
    assert_int_equal(net_read(first, &welcome, sizeof welcome, now() + HANGS_AFTER_S), 0);
    assert_int_equal(welcome.h.kind, HELLO);
    assert_true(send_all(second, &s, sizeof s));
    is_dropped(second);
    assert_int_equal(end_children(1), 0);
    close(first);
    fails_with(0, "rank 2 of 3 did not connect");
    fails_with(0, "; 1 connection(s) rejected for lack of the job's key");
}

// Rank 0 reports connections without its key. A rank with another key reports at once why it cannot join.
static void ranks_with_other_keys(void **state) {
    plan_keyed(4, right_key, PATIENT_S);
    plans[0].s.timeout_s = 3;
    plans[1].s.key = wrong_key;
    plans[2].s.key = NULL;
    plans[3].s.job = JOB + 1;
    start(0, 4);
    assert_int_equal(end_children(4), 0);
    fails_with(0, "ranks 1, 2 and 3 of 4 did not connect within 3 s");
    fails_with(0, "; 3 connection(s) rejected for lack of the job's key, the last from 127.0.0.1:");
    all_fail_with(1, 4, "has a different key from this rank, or belongs to another job: give all ranks");
}

// -------- floods of connections

// Floods the port with connections until it is killed, or the test ends.
static void disturb(int kind) {
    static int held[4096];
    struct sockaddr_in a = seat_of(1, port).at.v4;
    seat s = seat_of(1, 80);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0;; i = (i + 1) % 600) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (fd >= 0) (void)!connect(fd, (struct sockaddr *)&a, sizeof a);
        struct pollfd p = { fd, POLLOUT, 0 };
        if (fd < 0) nap(1e-3);
        if (kind > 1) poll(&p, 1, 10);
        if (kind == 2) send_all(fd, &s, sizeof s);  // sends a HELLO with an empty tag
        if (kind == 3) send_all(fd, &s, 100);       // sends only the start of a HELLO
        if (kind == 1 && held[i]) close(held[i]);   // stays connected for 600 rounds and sends nothing
        if (kind == 0 || kind == 2) close(fd);      // disconnects at once
        if (kind == 3 && i == 50) pause();
        held[i] = fd;
    }
}
static pid_t start_flood(int kind) {
    pid_t pid = fork();
    if (!pid) disturb(kind);
    assert_true(pid > 0);
    nap(0.3);
    return pid;
}
static void end_flood(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
static void floods(void **state) {
    for (int kind = 0; kind < 4; kind++) {
        fresh(NULL);
        plan_keyed(3, right_key, PATIENT_S);
        // open-file limit, lower than the number of flooding connections
        plans[0].files = kind == 1 ? 40 : 0;
        start(0, 1);
        close(knock(port));
        pid_t pid = start_flood(kind);
        start(1, 3);
        int hung = end_children(3);
        end_flood(pid);
        for (int i = 0; i < 3; i++)
            if (hung || o[i].rc)
                fail_msg("flood kind %d: %d ranks hung; rank %d: %s", kind, hung, i, o[i].message);
    }
}

// Rank 0 has a loopback address, so it does not answer other machines at all.
static void from_another_machine(void **state) {
    net_address at;
    if (!own_address(&at)) skip();
    plan_keyed(2, NULL, PATIENT_S);
    start(0, 1);
    close(knock(port));
    int fd = net_connect(&at, now() + HANGS_AFTER_S);
    char any;
    assert_true(fd >= 0);
    assert_true(net_read(fd, &any, 1, now() + HANGS_AFTER_S) == -ECONNRESET);
    close(fd);
    start(1, 2);
    end_connected(2);
}

// -------- a dishonest rank 0

// Acts as rank `me` with this key until another rank has sent HELLO. Returns the connection, and sets *c to
// the key for messages on it.
static int receive_rank(int listener, const char *key, int me, seat *hello, secret *c) {
    head challenge = head_of(CHALLENGE, sizeof challenge);
    assert_int_equal(net_wait(listener, POLLIN, now() + HANGS_AFTER_S), 0);
    int fd = net_accept(listener);
    assert_true(fd >= 0);
    assert_int_equal(secret_draw(&challenge.nonce, sizeof challenge.nonce), 0);
    assert_true(send_all(fd, &challenge, sizeof challenge));
    assert_int_equal(net_read(fd, hello, sizeof *hello, now() + HANGS_AFTER_S), 0);
    *c = key_of(key, me, hello->rank, &challenge, &hello->h);
    return fd;
}

static void rogue_rank_0(void **state) {
    static const char *const words[] = {
        "rank 0 (host ????????????",  "it sent an invalid message", "it sent an invalid message",
        "it sent an invalid message", "it sent an invalid message", "it sent an invalid message",
        "an evil ?]0;owned? text",    "has a different key",        "has a different key",
    };
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++) {
        seat hello, zero = seat_of(0, 80), other = seat_of(1, 80);
        secret c;
        fresh(NULL);
        int listener = net_listen(port, 4);
        plan_keyed(3, right_key, PATIENT_S);
        start(1, 2);
        int fd = receive_rank(listener, i < 7 ? right_key : wrong_key, 0, &hello, &c);
        zero.left_s = 0;
        if (i == 0) memset(zero.host, '\33', sizeof zero.host);
        if (i != 8) send_seat(fd, &c, zero);
        other.rank = i == 5 ? -1 : 2;
        zero.left_s = PATIENT_S;
        if (i == 1) zero.left_s = NAN;
        if (i == 2) zero.left_s = INFINITY;
        if (i == 3) other.port = 0;
        if (i == 4) other.at.any.sa_family = AF_UNIX;
        if (i >= 6) report(fd, &c, "an evil \33]0;owned\a text");
        if (i > 2 && i < 6) send_seat(fd, &c, other);
        if (i < 6) send_seat(fd, &c, zero);
        if (!i) close(fd);
        assert_int_equal(end_children(2), 0);
        if (i) close(fd);
        close(listener);
        all_fail_with(1, 2, words[i]);
    }
}

// Rank 0 may send its report after the time limit for connecting.
static void late_report(void **state) {
    seat hello, zero = seat_of(0, 80);
    secret c;
    int listener = net_listen(port, 4);
    plan_keyed(2, right_key, PATIENT_S);
    start(1, 2);
    int fd = receive_rank(listener, right_key, 0, &hello, &c);
    zero.ranks = 2;
    zero.left_s = 0;
    send_seat(fd, &c, zero);
    zero.left_s = 1e-3;
    send_seat(fd, &c, zero);
    assert_int_equal(net_read(fd, &hello, sizeof(head), now() + HANGS_AFTER_S), 0);  // rank 1 reports
    report(fd, &c, "rank 0 is late");
    assert_int_equal(end_children(2), 0);
    close(fd);
    close(listener);
    all_fail_with(1, 2, "rank 0 is late");
}

// Two real ranks, 1 and 2. The test acts as their rank 0.
typedef struct {
    seat hello[3];
    secret c[3];
    int fd[3], listener;
} two_ranks;
static two_ranks start_two(void) {
    two_ranks t = { .listener = net_listen(port, 4) };
    plan_keyed(3, right_key, PATIENT_S);
    for (int r = 1; r < 3; r++) {
        start_child(r, one_rank, plans);
        t.fd[r] = receive_rank(t.listener, right_key, 0, &t.hello[r], &t.c[r]);
    }
    return t;
}
static void send_seats(const two_ranks *t, int r) {
    int port_of_1 = t->hello[1].port;
    seat second = t->hello[2];
    second.at = seat_of(2, second.port).at;
    send_seat(t->fd[r], &t->c[r], seat_of(0, 80));
    send_seat(t->fd[r], &t->c[r], seat_of(1, port_of_1));
    send_seat(t->fd[r], &t->c[r], second);
}
// Receives both ranks' reports that they are connected, and answers that all ranks are.
static void end_two(two_ranks *t) {
    for (int r = 1; r < 3; r++) {
        words w;
        assert_int_equal(net_read(t->fd[r], &w, sizeof w, now() + HANGS_AFTER_S), 0);
        if (*w.text) fail_msg("rank %d: %s", r, w.text);
    }
    for (int r = 1; r < 3; r++) report(t->fd[r], &t->c[r], "");
    children[0] = 0;
    assert_int_equal(end_children(3), 0);
    for (int r = 1; r < 3; r++) {
        close(t->fd[r]);
        if (o[r].rc) fail_msg("rank %d: %s", r, o[r].message);
    }
    close(t->listener);
}

// Connecting to rank 1 as rank 2 also requires the secret, and a key derived for this connection, these two
// ranks and this startup.
static void at_another_ranks_port(void **state) {
    two_ranks t = start_two();
    send_seats(&t, 1);
    for (int i = 0; i < 5; i++) {
        head challenge, other = { .kind = 0 };
        int stranger = approach(t.hello[1].port, &challenge);
        seat s = t.hello[2];
        secret c = key_of(i == 0 ? wrong_key : right_key, 2, 1, &s.h, i == 1 ? &other : &challenge);
        if (i == 2) c = key_of(right_key, 2, 0, &s.h, &challenge);  // for rank 0, without the startup's nonce
        if (i == 3) c = key_of(right_key, 1, 2, &challenge, &s.h);  // for messages from rank 1
        if (i == 4) c = key_of(right_key, 3, 1, &s.h, &challenge);
        send_seat(stranger, &c, s);
        is_dropped(stranger);
    }
    send_seats(&t, 2);
    end_two(&t);
}

// Strangers flood rank 1's port before rank 2 connects to it.
static void flood_at_another_rank(void **state) {
    for (int kind = 0; kind < 4; kind++) {
        fresh(NULL);
        two_ranks t = start_two();
        send_seats(&t, 1);
        port = t.hello[1].port;
        pid_t pid = start_flood(kind);
        send_seats(&t, 2);
        end_two(&t);
        end_flood(pid);
    }
}

// The test acts as rank 1 too. In the first round it drops rank 2 once, as could happen in a flood of
// strangers, and rank 2 must connect again. In the second round another program has taken rank 1's port.
static void connects_again(void **state) {
    for (int is_program = 0; is_program < 2; is_program++) {
        seat hello[2];
        secret c[2];
        fresh(NULL);
        int port_of_1 = free_port(), listener = net_listen(port, 4), listener_1 = net_listen(port_of_1, 4);
        seat one = seat_of(1, port_of_1);
        plan_keyed(3, right_key, PATIENT_S);
        start(2, 3);
        int fd = receive_rank(listener, right_key, 0, &hello[0], &c[0]);
        send_seat(fd, &c[0], seat_of(0, 80));
        send_seat(fd, &c[0], one);
        assert_int_equal(net_wait(listener_1, POLLIN, now() + HANGS_AFTER_S), 0);
        int at_1 = net_accept(listener_1);
        assert_true(at_1 >= 0);
        if (is_program) {
            assert_true(send_all(at_1, "SSH-2.0-x\r\n", 11));
        } else {
            close(at_1);
            at_1 = receive_rank(listener_1, right_key, 1, &hello[1], &c[1]);
            send_seat(at_1, &c[1], one);
            report(fd, &c[0], "");
        }
        assert_int_equal(net_read(fd, &hello[0], sizeof(head), now() + HANGS_AFTER_S), 0);  // rank 2 reports
        close(fd);
        assert_int_equal(end_children(3), 0);
        if (is_program)
            fails_with(
                2, "rank 1 (host evil pid 4711) ended while the ranks were connecting (it sent an invalid");
        else if (o[2].rc)
            fail_msg("rank 2: %s", o[2].message);
        close(at_1);
        close(listener);
        close(listener_1);
    }
}

// -------- a rank that lies after startup

typedef struct {
    uint32_t magic, kind;
    uint64_t number;
    int32_t what, root;
    uint64_t bytes;
} frame;

static void least(int rank, void *ctx) {
    rendezvous_settings s = {
        .rank = rank, .ranks = 2, .server = server, .timeout_s = PATIENT_S, .job = JOB
    };
    net c = { .timeout_s = PATIENT_S };
    o[rank].rc = net_open_tcp(&c, &s);
    if (!o[rank].rc) o[rank].rc = net_least(&c, 1) < 0 ? ZERO_ERR_COMM : 0;
    net_close(&c, 0);
}
static void frames(void **state) {
    static const struct {
        uint32_t kind;
        uint64_t bytes;
        int root;
        const char *words;
    } bad[] = {
        { NOTES, 1ull << 63, 0, "is gone: it sent an invalid message, while rank 1" },
        { NOTES, UINT64_MAX - 3, 0, "it sent an invalid message" },
        { NOTES, 1ull << 62, 0, "are in different collectives" },
        { NOTES + 1, 8, 0, "it sent an invalid message" },
        { NOTE_END, sizeof(net_note), -7, "it sent an invalid message" },
        { NOTE_END, sizeof(net_note), 2, "it sent an invalid message" },
        { NOTE_LATE, sizeof(net_note), 2, "it sent an invalid message" },  // but it contains an END
        { NOTE_END, sizeof(net_note), 0, "rank 0 ended the job: ?]0;owned?AAAAAAA" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct {
            frame f;
            net_note note;
            uint32_t tail;
        } message = { .f = { 0x4c5a4652, bad[i].kind, 1, EXCHANGE_GATHER, 0, bad[i].bytes } };
        seat hello;
        secret c;
        fresh(NULL);
        int listener = net_listen(port, 4);
        start_child(1, least, NULL);
        int fd = receive_rank(listener, NULL, 0, &hello, &c);
        send_seat(fd, &c, seat_of(0, 80));
        report(fd, &c, "");
        message.note.kind = NOTE_END;
        message.note.root = bad[i].root;
        message.note.status = 1;
        memset(message.note.words, 'A', sizeof message.note.words);
        memcpy(message.note.words, "\33]0;owned\a", 10);
        message.tail = 0x600d600d;
        assert_true(send_all(fd, &message, sizeof message));
        children[0] = 0;
        assert_int_equal(end_children(2), 0);
        close(fd);
        close(listener);
        all_fail_with(1, 2, bad[i].words);
    }
}

// -------- the start file's key

static void key_in_the_file(void **state) {
    start_file c = { .pid = 0 };
    seat s = seat_of(1, 80);
    plan_ranks(2, NULL, path, PATIENT_S);
    start(0, 1);
    for (double until = now() + HANGS_AFTER_S; now() < until && start_file_read(path, &c);) nap(5e-3);
    port = c.port;
    is_dropped(greet(&s, NULL));  // without the file's key
    start(1, 2);
    end_connected(2);
}

// -------- text that is safe to print

static void plain(void **state) {
    static const char *const cases[][2] = {
        { "rank 1: /home/j\xc3\xbcrgen", "rank 1: /home/j\xc3\xbcrgen" },
        { "\33]0;x\a\r\b\177", "?]0;x????" },
        { "a\nb\tc", "a b c" },
        { "\xc2\x9b"
          "2J \x9b"
          "2J",
          "??2J ?2J" },  // a terminal's control code in UTF-8, and as one byte
        { "\xe0\x80\x9b \xf0\x80\x80\x9b", "??? ????" },  // overlong encodings
        { "\xe2\x82\xac \xf0\x9f\x98\x80 \xf5", "\xe2\x82\xac \xf0\x9f\x98\x80 ?" },
        { "\xe2\x82", "??" },
        // characters that are invisible or change the order of others: U+202E, U+2066, U+200B, U+061C, U+FEFF
        // and a tag
        { "a\xe2\x80\xaetxt.exe", "a???txt.exe" },
        { "\xe2\x81\xa6x\xe2\x81\xa9", "???x???" },
        { "a\xe2\x80\x8b"
          "b\xd8\x9c"
          "c\xef\xbb\xbf",
          "a???b??c???" },
        { "\xf3\xa0\x81\x81", "????" },
        { "\xe2\x80\x90\xe2\x80\xa7\xe2\x80\xaf",
          "\xe2\x80\x90\xe2\x80\xa7\xe2\x80\xaf" },       // neighbouring code points are kept
        { "\xed\xa0\x80 \xf4\x90\x80\x80", "??? ????" },  // a surrogate, and a code point that is too large
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32] = "";
        snprintf(text, sizeof text, "%s", cases[i][0]);
        zero_plain(text, sizeof text);
        assert_string_equal(text, cases[i][1]);
    }
    char *no_end = malloc(8);  // on the heap, so that a sanitizer checks its bounds
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
        TEST(without_the_key),
        TEST(no_key),
        TEST(silent_rank),
        TEST(replayed),
        TEST(ranks_with_other_keys),
        TEST(floods),
        TEST(from_another_machine),
        TEST(rogue_rank_0),
        TEST(late_report),
        TEST(at_another_ranks_port),
        TEST(flood_at_another_rank),
        TEST(connects_again),
        TEST(frames),
        TEST(key_in_the_file),
        TEST(plain),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed + (rmdir(folder) != 0);
}
