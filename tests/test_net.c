// Tests messages over TCP between ranks, each a process: the messages' contents, and every way in which a
// rank can end while others wait for it. `test_net host RANK RANKS SERVER_OR_FILE SECONDS` runs a single rank
// for tests/net_namespaces.sh.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sys/time.h>
#include "../llmc_zero/net/failure.h"
#include "ranks.h"

static const net_use unit_7 = { .unit = 7, .units = 1 };
static int *ready;  // shared with the children; set by one of them

static int output = -1;  // a file that receives the ranks' stderr

static int fresh(void **state) {
    fresh_outcomes();
    ready = &outcomes[MOST_RANKS - 1].value;
    if (output >= 0) close(output);
    output = memfd_create("output", 0);
    return output < 0;
}

// Holds a stream's lock, like a thread blocked in a write to a hung disk.
static void *hold_stream(void *none) {
    flockfile(stdin);
    pause();
    return none;
}

// Reports the failure and ends the job, like a program, but with a hung stream.
static void end_job(net *c, int status) {
    char message[32];
    pthread_t holder;
    assert_int_equal(pthread_create(&holder, NULL, hold_stream, NULL), 0);
    while (!ftrylockfile(stdin)) funlockfile(stdin);
    snprintf(message, sizeof message, "rank %d reports", c->rank);
    dup2(output, STDERR_FILENO);
    failure_end(c, status, message);
}
// Returns the rank that reported the failure; -1 unless exactly one did.
static int reporter(void) {
    char text[512] = "", more;
    int rank = -1;
    if (pread(output, text, sizeof text - 1, 0) < 0) return -1;
    return sscanf(text, "rank %d reports\n%c", &rank, &more) == 1 && strchr(text, '\n') ? rank : -1;
}

static void all_succeeded(int n) {
    for (int i = 0; i < n; i++) {
        if (o[i].rc || o[i].value) fail_msg("rank %d: %d wrong: %s", i, o[i].value, o[i].message);
        ended_in_order(i);
    }
}
// -------- contents

enum { MOST_BYTES = 3 << 20 };
static char byte_at(int from, int to, int round, size_t i) {
    return (char)(from * 31 + to * 17 + round * 7 + (int)i + (int)(i >> 8) * 3);
}

static char bytes_out[5][MOST_BYTES + 1], bytes_in[5][MOST_BYTES + 1];
static char *const out[] = { bytes_out[0], bytes_out[1], bytes_out[2], bytes_out[3], bytes_out[4] };
static char *const in[] = { bytes_in[0], bytes_in[1], bytes_in[2], bytes_in[3], bytes_in[4] };

// Runs one exchange. Returns how many bytes, inside and after the message, differ from what point-to-point
// messages would have left there.
static int try_exchange(net *c, exchange_kind x, int root, size_t bytes, int round, int *rc) {
    int wrong = 0;
    for (int r = 0; r < c->ranks; r++) {
        int to = x == EXCHANGE_SCATTER ? r : -1;
        for (size_t i = 0; i < bytes; i++) out[r][i] = byte_at(c->rank, to, round, i);
        memset(in[r], 99, bytes + 1);
    }
    *rc = net_exchange(c, x, unit_7, root, out, in, bytes);
    for (int r = 0; r < c->ranks && !*rc; r++) {
        int from = r != c->rank &&
                   (x == EXCHANGE_SCATTER || x == EXCHANGE_GATHER || (x == EXCHANGE_ROOT && r == root));
        int to = x == EXCHANGE_SCATTER ? c->rank : -1;
        for (size_t i = 0; i < bytes; i++) wrong += in[r][i] != (from ? byte_at(r, to, round, i) : 99);
        wrong += in[r][bytes] != 99;
    }
    return wrong;
}

// A rank, with its connections.
typedef struct here here;
typedef struct {
    int (*body)(here *h);  // returns the rank's rc
    int ranks, who, seed;
    double timeout_s, silence_s;
} plan;
struct here {
    net c;
    int rank, in_order;  // in_order: the job ends normally
    const plan *p;
};

static void one_rank(int rank, void *ctx) {
    const plan *p = ctx;
    rendezvous_settings s = {
        .rank = rank, .ranks = p->ranks, .server = server, .timeout_s = PATIENT_S, .silence_s = p->silence_s
    };
    here h = { .c = { .timeout_s = p->timeout_s }, .rank = rank, .p = p };
    int rc = net_open_tcp(&h.c, &s);
    o[rank].rc = rc ? rc : p->body(&h);
    net_close(&h.c, h.in_order);
}
static void start(plan *p) {
    for (int i = 0; i < p->ranks; i++) start_child(i, one_rank, p);
}
static void run(plan *p) {
    start(p);
    assert_int_equal(end_children(p->ranks), 0);
}
// Kills the stopped rank after the others have ended.
static void end_others(int ranks, int stopped) {
    pid_t last = children[stopped];
    children[stopped] = 0;
    assert_int_equal(end_children(ranks), 0);
    kill(last, SIGKILL);
    waitpid(last, NULL, 0);
}
static int barrier(here *h) { return net_exchange(&h->c, EXCHANGE_BARRIER, unit_7, 0, out, in, 0); }

static int all_sizes(here *h) {
    static const size_t sizes[] = { 0, 1, 4096, 65537, MOST_BYTES };
    net *c = &h->c;
    int rc = 0, round = 0, wrong = 0, n = h->p->ranks, rank = h->rank;
    wrong += c->rank != rank || c->ranks != n || c->node_rank != rank || c->ranks_on_node != n ||
             !c->on_one_node;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes && !rc; s++)
        for (int x = EXCHANGE_SCATTER; x <= EXCHANGE_BARRIER && !rc; x++) {
            if ((rank + round) % 3 == 0) nap(1e-3 * (round % 4));  // in each round different ranks are late
            size_t bytes = x == EXCHANGE_BARRIER ? 0 : sizes[s];
            wrong += try_exchange(c, (exchange_kind)x, round % n, bytes, round, &rc);
            round++;
        }
    char text[40] = "";
    if (rank == 0) strcpy(text, "from rank 0");
    if (!rc) rc = net_broadcast(c, 0, text, sizeof text);
    wrong += strcmp(text, "from rank 0") != 0;
    wrong += net_least(c, 1) != 1;
    wrong += net_least(c, rank != n - 1) != 0;
    wrong += net_least(c, (rank + 2) % n + 5) != 5;
    wrong += failure_lost(c, "") != -1;
    if (rank % 2) {
        nap(0.05);  // meanwhile the even ranks end normally
        wrong += failure_lost(c, "") != -1;
    }
    h->in_order = 1;
    o[rank].value = wrong;
    return rc;
}
static void contents(void **state) {
    for (int n = 1; n <= 5; n++) {
        fresh(NULL);
        plan p = { all_sizes, .ranks = n, .timeout_s = PATIENT_S };
        run(&p);
        all_succeeded(n);
    }
}

// Rank 0 sends and ends; rank 1 reads later.
static int slow_reader(here *h) {
    int rc = 0;
    for (int round = 0; round < 5 && !rc; round++) {
        if (h->rank) nap(0.05);
        o[h->rank].value += try_exchange(&h->c, EXCHANGE_ROOT, 0, round ? 1000 : 100000, round, &rc);
    }
    h->in_order = !h->rank;
    if (h->rank) nap(0.05);
    return h->rank && !rc ? barrier(h) : rc;  // rank 0 has ended, so another exchange must fail
}
static void orderly_end(void **state) {
    plan p = { slow_reader, .ranks = 2, .timeout_s = PATIENT_S };
    run(&p);
    all_succeeded(1);
    assert_int_equal(o[1].value, 0);
    fails_with(1, "rank 0 (host");
    fails_with(1, "it exited normally, but all ranks must make the same calls, while rank 1 (host");
    fails_with(1, "waited for it in a barrier");
}

// Rank 1 starts to read later than silence_s, the time after which a silent host counts as dead. Rank 0's
// bytes do not fit into its socket. Nevertheless rank 1 must count as late, not as gone.
static int read_late(here *h) {
    int rc = 0;
    if (h->rank) nap(3);
    o[h->rank].value = try_exchange(&h->c, EXCHANGE_GATHER, 0, MOST_BYTES, 1, &rc);
    h->in_order = !rc;
    return rc;
}
static void late_is_not_gone(void **state) {
    plan p = { read_late, .ranks = 2, .timeout_s = PATIENT_S, .silence_s = 1 };
    run(&p);
    all_succeeded(2);
}

static int different_calls(here *h) {
    int rc;
    try_exchange(&h->c, h->rank == 1 ? EXCHANGE_GATHER : EXCHANGE_SCATTER, 0,
                 h->rank == 2 && h->p->who ? 900000 : 1000, 1, &rc);
    return rc;
}
static void disagreement(void **state) {
    for (int who = 0; who < 2; who++) {
        fresh(NULL);
        plan p = { different_calls, .ranks = 3, .who = who, .timeout_s = PATIENT_S };
        run(&p);
        for (int r = 0; r < 3; r++) fails_with(r, "are in different collectives");
    }
}

// -------- failures

// Runs random exchanges until one fails, like a training run.
static int train(here *h) {
    int rc = 0;
    unsigned seed = (unsigned)h->p->seed;
    for (int r = 0; r < h->p->ranks; r++) memset(out[r], h->rank, MOST_BYTES);
    for (int round = 0; !rc; round++) {
        seed = seed * 1664525u + 1013904223u;
        int x = (seed >> 24) % 4, root = (int)((seed >> 16) % (unsigned)h->p->ranks);
        size_t bytes = x == EXCHANGE_BARRIER ? 0 : (seed >> 8) % (seed % 5 ? 20000u : 600000u);
        rc = net_exchange(&h->c, (exchange_kind)x, unit_7, root, out, in, bytes);
        if (h->rank == 0 && round == 3) *ready = 1;
    }
    return rc;
}
static int becomes_ready(void) {
    for (double until = now() + HANGS_AFTER_S; !*ready && now() < until;) nap(1e-3);
    return *ready;
}

static void killed_at_any_moment(void **state) {
    for (int round = 0; round < 30; round++) {
        char words[40];
        fresh(NULL);
        plan p = { train, .ranks = 2 + round % 4, .seed = round, .timeout_s = PATIENT_S };
        p.who = (round * 7 + 3) % p.ranks;
        start(&p);
        assert_true(becomes_ready());
        nap((round * 7919 % 1000) * 50e-6);
        kill(children[p.who], SIGKILL);
        assert_int_equal(end_children(p.ranks), 0);
        snprintf(words, sizeof words, "rank %d (host", p.who);
        for (int r = 0; r < p.ranks; r++) {
            if (r == p.who) continue;
            all_fail_with(r, r + 1, words);
            all_fail_with(r, r + 1, "is gone: its connection closed while rank");
            // A rank that was notified by another must repeat what that rank saw.
            int sender, seer;
            const char *seen = strstr(o[r].message, "while rank ");
            if (sscanf(o[r].message, "rank %d ended the job", &sender) == 1 &&
                strstr(o[r].message, "ended the job"))
                assert_true(sscanf(seen, "while rank %d", &seer) == 1 && seer == sender);
        }
    }
}

// Rank 2 ends the job while rank 0 waits for it and rank 1 computes. Both must learn of it from rank 2's
// message. Before rank 2 reports, it gives lower ranks 0.4 s to do so.
static int end_it(here *h) {
    int rc = barrier(h);
    if (h->rank == 2 && !rc) {
        nap(0.1);
        zero_fail(ZERO_ERR_IO, "the disk of rank 2 is full");
        end_job(&h->c, 7);
    }
    if (h->rank == 1) nap(0.5);
    if (!rc) rc = net_exchange(&h->c, EXCHANGE_ROOT, unit_7, 2, out, in, MOST_BYTES);
    o[h->rank].value = failure_lost(&h->c, "") != 2;
    return rc;
}
// Rank 1 fails in the middle of a message that rank 0 has not begun to read. Rank 0 must not mistake the
// bytes that follow for data.
static int half_a_message(here *h) {
    enum { BIG = 24 << 20 };
    static char big[BIG], room[BIG];
    char *const send[2] = { big, big }, *const receive[2] = { room, room };
    memset(big, 1, BIG);
    if (h->rank == 0) {
        becomes_ready();
        nap(1);
    } else {
        h->c.timeout_s = 0.3;
        *ready = 1;
    }
    int rc = net_exchange(&h->c, EXCHANGE_GATHER, unit_7, 0, send, receive, BIG);
    o[h->rank].value = !strstr(zero_last_error(), "waited 0.3 s in an all-gather of unit 7 for rank 0 (host");
    return rc;
}
// Rank 0 ends the job while another of its threads waits in an exchange that rank 1 has not joined.
static void *wait_in_vain(void *net) {
    o[0].value = net_least(net, 1) >= 0;
    return NULL;
}
static int end_during_exchange(here *h) {
    int rc = 0;
    if (h->rank == 0) {
        pthread_t thread;
        rc = pthread_create(&thread, NULL, wait_in_vain, &h->c);
        nap(0.3);  // until the thread is in the exchange
        if (!rc) rc = failure_reports(&h->c, 1) != 1;
        if (!rc) rc = pthread_join(thread, NULL);
        o[0].value |= rc;
        return 0;
    }
    nap(1);
    // Messages that rank 0 sent before its end still arrive.
    for (int i = 0; i < 2 && rc >= 0; i++) rc = net_least(&h->c, 1);
    return rc;
}
// Rank 0 sends messages, and ends the job before rank 1 reads them. Rank 1 then fails too. It must find END
// after the messages, and report nothing.
static int end_after_messages(here *h) {
    int rc = 0;
    for (int i = 0; !rc && h->rank == 0 && i < 3; i++)
        rc = net_exchange(&h->c, EXCHANGE_ROOT, unit_7, 0, out, in, 1000);
    if (rc) return rc;
    if (h->rank == 0) end_job(&h->c, 7);
    for (double until = now() + HANGS_AFTER_S; !kill(children[0], 0) && now() < until;) nap(1e-3);
    end_job(&h->c, 9);
    return 0;
}
// Rank 1 fails while rank 0 is one exchange ahead. It must no longer write into its receive buffer, which
// belongs to the caller again.
static int fail_one_exchange_late(here *h) {
    enum { FEW = 64, MANY = 200000 };
    int rc = net_exchange(&h->c, EXCHANGE_GATHER, unit_7, 0, out, in, FEW);
    memset(in[!h->rank], 0x55, MANY);
    memset(out[!h->rank], 0x41, MANY);
    if (h->rank == 0) return net_exchange(&h->c, EXCHANGE_GATHER, unit_7, 0, out, in, MANY);
    nap(0.3);  // until rank 0's bytes have arrived
    zero_fail(ZERO_ERR_MEMORY, "no memory for activations");
    o[1].value = rc;
    if (!rc && failure_reports(&h->c, 3))
        for (int i = 0; i < MANY; i++) o[1].value += in[0][i] != 0x55;
    _exit(3);
}
// The time limit for reporting must not include time during which the rank was stopped.
static void pause_long(int signal) { nap(1.3); }
static int report_slowly(here *h) {
    int rc = net_least(&h->c, 5) == 5 ? 0 : -1;
    if (h->rank == 1) {
        struct itimerval timer = { .it_value = { 0, 100 } };
        signal(SIGALRM, pause_long);
        zero_fail(ZERO_ERR_IO, "the disk of rank 1 is full");
        h->c.reports = 1;  // this rank reports, as after a timeout
        if (rc || setitimer(ITIMER_REAL, &timer, NULL)) exit(4);
        end_job(&h->c, 7);
    }
    return rc ? rc : net_least(&h->c, 5);
}
// Rank 2 hangs, and rank 0 is one exchange ahead of rank 1 when both time out. Rank 1 began to wait first, so
// it must report.
static int first_wait_reports(here *h) {
    h->c.timeout_s = 2;
    if (h->rank == 2) {
        for (double until = now() + HANGS_AFTER_S; reporter() < 0 && now() < until;) nap(1e-3);
        _exit(9);
    }
    int rc = net_exchange(&h->c, EXCHANGE_ROOT, unit_7, h->rank ? 2 : 0, out, in, 10);
    if (!rc) barrier(h);
    end_job(&h->c, 9);
    return 0;
}
// One rank ends the job. The others fail with its message, or, if `words` is NULL, end silently with its
// status.
static void endings(void **state) {
    static const struct {
        int (*body)(here *h);
        int ranks, who, status;
        const char *words;
    } rows[] = {
        { end_it, 3, 2, 7, "rank 2 ended the job: the disk of rank 2 is full" },
        { half_a_message, 2, 1, 0, "rank 1 ended the job: rank 1 (host" },
        { end_during_exchange, 2, 0, 0, "rank 0 ended the job" },
        { end_after_messages, 2, 0, 7, NULL },
        { first_wait_reports, 3, 1, 9, NULL },
        { fail_one_exchange_late, 2, 1, 3, "rank 1 ended the job: no memory for activations" },
        { report_slowly, 2, 1, 7, "rank 1 ended the job: the disk of rank 1 is full" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        plan p = { rows[i].body, .ranks = rows[i].ranks, .timeout_s = PATIENT_S };
        fresh(NULL);
        run(&p);
        if (!rows[i].words) assert_int_equal(reporter(), rows[i].who);
        for (int r = 0; r < p.ranks; r++) {
            if (o[r].value) fail_msg("row %zu: rank %d: %s", i, r, o[r].message);
            if (r == rows[i].who || !rows[i].words)
                assert_int_equal(statuses[r], rows[i].status);
            else
                fails_with(r, rows[i].words);
        }
    }
}

// All other ranks fail because rank 3 is stopped. Exactly one of them must report it.
static int one_reports(here *h) {
    o[h->rank].rc = train(h);
    snprintf(o[h->rank].message, sizeof o->message, "%s", zero_last_error());
    end_job(&h->c, 9);
    return 0;
}
static void stopped(void **state) {
    plan p = { one_reports, .ranks = 4, .who = 3, .seed = 3, .timeout_s = 3 };
    start(&p);
    assert_true(becomes_ready());
    kill(children[p.who], SIGSTOP);
    end_others(p.ranks, p.who);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(statuses[r], 9);
        statuses[r] = 0;
        all_fail_with(r, r + 1, "rank 3 (host");
        all_fail_with(r, r + 1, "waited 3 s in ");
    }
    assert_true(reporter() >= 0 && reporter() < 3);
}

static int create(zero **z, int rank, const plan *p, const char *at, const char *file, double timeout_s) {
    zero_tensor tensor = { .name = "w", .unit = 0, .layers = 1, .n_dims = 1, .dims = { 128 } };
    zero_unit unit = { .name = "all", .forward_uses = 1, .backward_uses = 1 };
    zero_config config = zero_defaults();
    config.start.server = at;
    config.start.file = file;
    config.start.rank = rank;
    config.start.ranks = p->ranks;
    config.comm.timeout_s = timeout_s;
    return zero_create(z, &config, &tensor, 1, &unit, 1);
}

// A rank dies or hangs during zero_create. No plugin exists yet to choose the rank that reports it, so the
// lowest remaining rank must do so, and the others end.
static void create_with_one_gone(int rank, void *ctx) {
    const plan *p = ctx;
    rendezvous_settings s = {
        .rank = rank, .ranks = p->ranks, .server = server, .timeout_s = PATIENT_S, .version = ZERO_VERSION
    };
    net c = { .timeout_s = PATIENT_S };
    zero *z;
    if (rank == p->who) {
        if (net_open_tcp(&c, &s)) exit(3);
        kill(getpid(), p->seed);
    }
    o[rank].rc = create(&z, rank, p, server, NULL, p->seed == SIGSTOP ? 5 : PATIENT_S);
    snprintf(o[rank].message, sizeof o[rank].message, "%s", zero_last_error());
    if (!o[rank].rc) return;
    char message[32];
    snprintf(message, sizeof message, "rank %d reports", rank);
    dup2(output, STDERR_FILENO);
    zero_end_job(NULL, 1, message);
}
static void one_reports_during_create(void **state) {
    for (int i = 0; i < 4; i++) {
        int who = i % 2 * 3;
        plan p = { .ranks = 4, .who = who, .seed = i < 2 ? SIGKILL : SIGSTOP };
        char name[32];
        snprintf(name, sizeof name, "rank %d (host", who);
        fresh(NULL);
        for (int r = 0; r < p.ranks; r++) start_child(r, create_with_one_gone, &p);
        end_others(p.ranks, who);
        if (reporter() != !who) fail_msg("rank %d is gone: rank %d reports", who, reporter());
        for (int r = 0; r < p.ranks; r++) {
            if (r == who) continue;
            assert_true(o[r].rc == ZERO_ERR_COMM && statuses[r] == 1);
            assert_non_null(strstr(o[r].message, name));
        }
    }
}

// A program sets its rank and lets the plugin connect.
static void create_by_itself(int rank, void *ctx) {
    const plan *p = ctx;
    char file[96];
    zero *z = NULL;
    snprintf(file, sizeof file, "/tmp/test_net.%s", server);
    o[rank].rc = create(&z, rank, p, p->who == 1 ? server : NULL, p->who == 2 ? file : NULL, PATIENT_S);
    if (!o[rank].rc) o[rank].value = zero_rank(z) != rank || zero_ranks(z) != p->ranks;
    zero_destroy(z);
}
static void started_by_its_settings(void **state) {
    for (int how = 0; how < 3; how++) {
        plan p = { .ranks = 2, .who = how };
        fresh(NULL);
        for (int i = 0; i < p.ranks; i++) start_child(i, create_by_itself, &p);
        assert_int_equal(end_children(p.ranks), 0);
        if (how)
            all_succeeded(2);
        else
            fails_with(1, "start.ranks 2, but nothing defines how they find each other");
    }
}

static void too_many(void **state) {
    net c = { .timeout_s = 1 };
    rendezvous_settings s = { .rank = 0, .ranks = 3000000, .server = server, .timeout_s = 1 };
    assert_int_equal(net_open_tcp(&c, &s), ZERO_ERR_ARGUMENT);
    assert_non_null(strstr(zero_last_error(), "start.ranks 3000000: must be 1 to 65536"));
}

// With NCCL a rank does not wait for messages, so it must poll for lost ranks, as these ranks do.
static int ask(here *h) {
    int rc = net_least(&h->c, 1) != 1, lost = -1;
    if (!rc) o[h->rank].reported = 1;
    for (double until = now() + HANGS_AFTER_S; !rc && lost < 0 && now() < until;) {
        lost = failure_lost(&h->c, "");
        nap(1e-3);
    }
    o[h->rank].value = lost;
    return lost < 0 ? 0 : ZERO_ERR_COMM;
}
static void polling_finds_lost_ranks(void **state) {
    plan p = { ask, .ranks = 3, .who = 1, .timeout_s = PATIENT_S };
    start(&p);
    for (double until = now() + HANGS_AFTER_S; now() < until;) {
        if (o[0].reported && o[1].reported && o[2].reported) break;
        nap(1e-3);
    }
    kill(children[p.who], SIGKILL);
    assert_int_equal(end_children(p.ranks), 0);
    int first = o[0].value == 1 || o[2].value == 1;  // the other rank may learn it from this one
    assert_true(first && o[0].value > -1 && o[2].value > -1);
    fails_with(o[0].value == 1 ? 0 : 2, "rank 1 (host");
    fails_with(o[0].value == 1 ? 0 : 2, "is gone: its connection closed");
}

// -------- a single rank for a script

// Runs exchanges for args[3] seconds; 0: until one fails; negative: only polls for lost ranks. Prints the
// rank's place on its node, and the outcome.
static int one_host(char **args) {
    net c = { .timeout_s = 60 };
    double seconds = atof(args[3]);
    rendezvous_settings s = {
        .rank = atoi(args[0]), .ranks = atoi(args[1]), .timeout_s = 15, .silence_s = 3
    };
    *(*args[2] == '/' ? &s.file : &s.server) = args[2];
    int rc = net_open_tcp(&c, &s), wrong = 0;
    if (!rc)
        printf("rank %d: node_rank %d of %d, all here %d\n", s.rank, c.node_rank, c.ranks_on_node,
               c.on_one_node);
    fflush(stdout);
    double until = now() + seconds;
    while (!rc && seconds < 0) {
        if (failure_lost(&c, "") >= 0)
            rc = ZERO_ERR_COMM;
        else
            nap(0.05);
    }
    for (int round = 0, go = 1; !rc && go; round++) {
        wrong += try_exchange(&c, (exchange_kind)(round % 3), round % s.ranks, 100000, round, &rc);
        if (!rc && (go = net_least(&c, !seconds || now() < until)) < 0) rc = go;
    }
    printf("rank %d: %s, %d bytes wrong\n", s.rank, rc ? zero_last_error() : "done", wrong);
    net_close(&c, !rc);
    return rc || wrong;
}

#define TEST(name) cmocka_unit_test_setup(name, fresh)
int main(int argc, char **argv) {
    if (argc == 6 && !strcmp(argv[1], "host")) return one_host(argv + 2);
    const struct CMUnitTest tests[] = {
        TEST(contents),
        TEST(started_by_its_settings),
        TEST(too_many),
        TEST(orderly_end),
        TEST(late_is_not_gone),
        TEST(disagreement),
        TEST(killed_at_any_moment),
        TEST(stopped),
        TEST(endings),
        TEST(one_reports_during_create),
        TEST(polling_finds_lost_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
