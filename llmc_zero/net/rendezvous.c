// Each message is a `head` and what belongs to it: a seat, or words.
//
//   HELLO     rank r to rank 0, and to each lower rank: who it is. Rank 0 to rank r: who rank 0 is, so r is
//   one
//             of the job, and then to all: everybody's seat
//   REPORT    rank r to rank 0, and then rank 0 to all: everybody is connected; or, at any time, what went
//   wrong NOT_MINE  rank 0 belongs to another job
//
// Rank 0 thus learns of every failure first and tells it to all.
#include "rendezvous.h"
#include "../clock.h"
#include "../error.h"
#include "rendezvous_file.h"
#include "sockets.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x4c5a5256, PROTOCOL = 4, NAME = 160, HOST = 256, ADDRESSES = CARD_ADDRESSES + 1 };
enum { SENTENCE = sizeof((zero_failure *)NULL)->sentence };
enum { STRANGERS = 64, ANSWER_S = 5, LINGER_S = 1, GRACE_S = 2 };
enum { HELLO = 1, NOT_MINE = 3, REPORT };

typedef struct {
    uint32_t magic, kind, bytes, protocol;
    uint64_t run;
} head;
typedef struct {  // a rank, as it says HELLO; the fields up to the version are those of every protocol
    head h;
    uint64_t job, node;
    double left_s;                   // until it gives up; of rank 0's: to connect to each other, from now on
    int32_t rank, ranks, pid, port;  // port: where it listens. pid 0: nobody yet
    char host[NET_NAME], version[48];
    net_address at;  // where it listens, as rank 0 sees it
} seat;
typedef struct {
    head h;
    char text[SENTENCE + 1];
} words;

// A connection, and the message that is coming in on it.
typedef struct {
    int fd, rank;  // rank -1: not known, or it has been told of the failure; ranks: none of this job's
    size_t got;
    union {
        head h;
        seat seat;
        words words;
    } in;
} guest;

typedef struct {
    const rendezvous_settings *s;
    int *sockets;  // (ranks) from higher ranks, and to lower ones; the guests' are added at the end
    seat *seats;   // (ranks)
    char *reported, *absent;  // (ranks) absent: for whom the last wait was
    guest *guests;            // in the order in which they came
    int n, most, listener;
    int rc, told;  // the first failure, and rank 0 has told it
    uint64_t run;
    double deadline;
    card card;        // as it was at the last look
    int seen;         // there was a file
    char host[HOST];  // of rank 0, as s->server says
    int port;
    char where[320];      // rank 0 listens
    char file[PATH_MAX];  // s->file, as it was at the last look
    char why[640];        // the last attempt to reach rank 0 has failed
} meeting;

// Keeps the first failure, which is the one that all are told.
#define FAIL(m, ...) ((m)->rc = (m)->rc ? (m)->rc : zero_fail(ZERO_ERR_COMM, __VA_ARGS__))

// -------- messages

static double earlier(double a, double b) { return a < b ? a : b; }

static head head_of(const meeting *m, int kind, size_t bytes) {
    return (head){ MAGIC, (uint32_t)kind, (uint32_t)(bytes - sizeof(head)), PROTOCOL, m->run };
}

static int say(const meeting *m, int fd, int kind, const char *text) {
    words w;
    size_t bytes = sizeof w.h + (size_t)snprintf(w.text, sizeof w.text, "%s", text) + 1;
    w.h = head_of(m, kind, bytes);
    return net_write(fd, &w, bytes, clock_now() + ANSWER_S);
}

static int say_hello(const meeting *m, int fd, seat *seats, int n) {
    for (int i = 0; i < n; i++) seats[i].h = head_of(m, HELLO, sizeof *seats);
    return net_write(fd, seats, (size_t)n * sizeof *seats, clock_now() + ANSWER_S);
}

// 1: g has a whole message; 0: not yet; or a negative errno: ECONNRESET where the connection has ended in
// order too, EPROTO where the other side is another program, EBADMSG where the message is too long.
static int hear(guest *g) {
    for (;;) {
        size_t want = sizeof(head) + (g->got < sizeof(head) ? 0 : g->in.h.bytes);
        if (want > sizeof(head) + SENTENCE) return -EBADMSG;
        if (g->got == want) break;
        ssize_t n = recv(g->fd, (char *)&g->in + g->got, want - g->got, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN ? 0 : -errno;
        if (!n) return -ECONNRESET;
        g->got += (size_t)n;
        if (g->got >= sizeof g->in.h.magic && g->in.h.magic != MAGIC) return -EPROTO;
    }
    g->in.words.text[g->in.h.bytes] = 0;
    g->got = 0;  // the guest may send another one
    return 1;
}

// -------- whom this rank waits for

typedef int absence(const meeting *m, int r);
static int not_welcome(const meeting *m, int r) { return r == 0 && m->n && !m->seats[0].pid; }
static int not_here(const meeting *m, int r) {
    return !m->seats[r].pid || (m->s->rank && !m->seats[0].left_s);
}
static int not_connected(const meeting *m, int r) { return r > m->s->rank && m->sockets[r] < 0; }
static int not_reported(const meeting *m, int r) { return (m->s->rank == 0) == (r > 0) && !m->reported[r]; }

static int find_absent(const meeting *m, absence *is_absent) {
    int n = 0;
    for (int r = 0; r < m->s->ranks; r++) n += m->absent[r] = (char)is_absent(m, r);
    return n;
}

static const char *absent_ranks(const meeting *m, char list[ZERO_LIST]) {
    return zero_list_ranks(list, m->s->ranks, m->absent, m->seats->host, sizeof *m->seats);
}

static const char *name_of(const seat *s, char name[NAME]) {
    snprintf(name, NAME, "rank %d (host %s pid %d)", s->rank, s->host, s->pid);
    return name;
}

// -------- connections

static int resolve_server(meeting *m, net_address at[ADDRESSES]) {
    const char *why;
    int for_good, n = net_resolve(m->host, m->port, at, ADDRESSES, &why, &for_good);
    if (!n) snprintf(m->why, sizeof m->why, "its host \"%s\" does not resolve: %s", m->host, why);
    if (!n && for_good)
        FAIL(m, "rank %d: rank 0 is at %s, but host \"%s\" does not resolve: %s", m->s->rank, m->where,
             m->host, why);
    return n;
}

static void leave(guest *g) {
    close(g->fd);
    g->fd = -1;
}

// Where there is no room left, the stranger that came first has to go.
static guest *let_in(meeting *m, int fd, int rank) {
    if (m->n == m->most) {
        int i = 0;
        while (i < m->n && m->guests[i].rank >= 0) i++;
        if (i == m->n) return NULL;
        close(m->guests[i].fd);
        m->n--;
        memmove(&m->guests[i], &m->guests[i + 1], (size_t)(m->n - i) * sizeof *m->guests);
    }
    m->guests[m->n] = (guest){ .fd = fd, .rank = rank };
    return &m->guests[m->n++];
}

// The connection has ended, or is of no use. error: a negative errno.
static void lose(meeting *m, guest *g, int error) {
    char name[NAME];
    int other = error == -EPROTO;
    if (g->rank >= 0 && g->rank < m->s->ranks && m->seats[0].pid)
        FAIL(m, "%s has ended while the ranks were connecting (%s)", name_of(&m->seats[g->rank], name),
             strerror(-error));
    else if (g->rank == 0 && other && m->s->server)
        FAIL(m, "rank %d: what answers at %s is another program, not rank 0 of this one: give another port",
             m->s->rank, m->where);
    else if (g->rank == 0)
        snprintf(m->why, sizeof m->why,
                 other ? "what answers there is another program"
                       : "it takes connections but does not answer: %s",
                 strerror(-error));
    leave(g);
}

static void take(meeting *m, guest *g);

// Waits until `until` at most for something to happen, and handles all that has. Before rank 0 has answered,
// this rank does not know whom to let in.
static void look(meeting *m, double until) {
    double left_s = until - clock_now();
    int fd = -EAGAIN, n = m->n, wait_ms = left_s < 0.5 ? (int)(left_s * 1e3) + 1 : 500, kept = 0;
    struct pollfd polls[n + 1];
    polls[n] = (struct pollfd){ m->seats[0].pid ? m->listener : -1, POLLIN, 0 };
    for (int i = 0; i < n; i++) polls[i] = (struct pollfd){ m->guests[i].fd, POLLIN, 0 };
    if (poll(polls, (nfds_t)n + 1, wait_ms < 0 ? 0 : wait_ms) < 0 && errno != EINTR)
        FAIL(m, "rank %d cannot wait for its connections: %s", m->s->rank, strerror(errno));
    for (int i = 0; i < n; i++) {
        guest *g = &m->guests[i];
        if (g->fd < 0) continue;  // closed meanwhile, by forget_earlier
        int heard = polls[i].revents ? hear(g) : 0;
        if (heard < 0)
            lose(m, g, heard);
        else if (heard)
            take(m, g);
    }
    for (int i = 0; i < n; i++)
        if (m->guests[i].fd >= 0) m->guests[kept++] = m->guests[i];
    m->n = kept;
    while (m->seats[0].pid && (fd = net_accept(m->listener)) >= 0) {
        if (net_tune(fd, m->s->silence_s) || !let_in(m, fd, -1)) close(fd);
    }
    if (fd != -EAGAIN)
        FAIL(m, "rank %d (host %s) cannot take connections: %s%s", m->s->rank, m->seats[m->s->rank].host,
             strerror(-fd), fd == -EMFILE ? ": raise ulimit -n above twice the number of ranks" : "");
}

// Returns 1 if some are still absent at *until, 0 when nobody is, or this rank has failed before. A rank that
// comes may bring m->deadline forward.
static int wait_for(meeting *m, absence *is_absent, const double *until) {
    while (!m->rc && find_absent(m, is_absent)) {
        if (clock_now() > *until) return 1;
        look(m, *until);
    }
    return 0;
}

// -------- what rank 0 hears

// Fails if a rank that says hello cannot be one of this job.
static void check_hello(meeting *m, const seat *h) {
    const seat *me = &m->seats[0], *other = &m->seats[h->rank > 0 && h->rank < m->s->ranks ? h->rank : 0];
    char who[NAME];
    name_of(h, who);
    if (h->h.protocol != PROTOCOL || strcmp(h->version, me->version))
        FAIL(
            m,
            "%s speaks protocol %u and runs version \"%s\", rank 0 (host %s) protocol %d and version \"%s\": "
            "install the same llmc_zero on all hosts",
            who, h->h.protocol, h->version, me->host, PROTOCOL, me->version);
    else if (h->ranks != m->s->ranks)
        FAIL(m,
             "%s was started as one of %d ranks, rank 0 (host %s pid %d) as one of %d: start all with the "
             "same number",
             who, h->ranks, me->host, me->pid, m->s->ranks);
    else if (h->rank < 0 || h->rank >= m->s->ranks)
        FAIL(m, "host %s pid %d says that it is rank %d: the ranks are 0 to %d", h->host, h->pid, h->rank,
             m->s->ranks - 1);
    else if (other->pid)
        FAIL(m, "two processes say that they are rank %d: host %s pid %d and host %s pid %d", h->rank,
             other->host, other->pid, h->host, h->pid);
}

// A rank that has waited ANSWER_S in vain, because rank 0 was stopped, connects again. Its last connection
// counts.
static void forget_earlier(meeting *m, const seat *h) {
    seat *s = &m->seats[h->rank];
    if (s->pid != h->pid || s->node != h->node || s->port != h->port) return;
    for (int i = 0; i < m->n; i++)
        if (m->guests[i].rank == h->rank && m->guests[i].fd >= 0) leave(&m->guests[i]);
    s->pid = 0;
}

// The rank can be reached at the address from which it came.
static void sit_down(meeting *m, guest *g) {
    seat *h = &g->in.seat;
    net_address from;
    int rc = net_other_end(g->fd, &from);
    if (!rc) h->at = net_from(&from.any, h->port);
    m->seats[h->rank] = *h;
    if (h->left_s > 0 && clock_now() + h->left_s < m->deadline) m->deadline = clock_now() + h->left_s;
    if (!rc && !m->rc) rc = say_hello(m, g->fd, m->seats, 1);
    if (rc) lose(m, g, rc);
}

static void take_hello(meeting *m, guest *g) {
    seat *h = &g->in.seat, *me = &m->seats[0];
    int has_place = h->rank > 0 && h->rank < m->s->ranks;
    char why[sizeof m->why];
    h->host[sizeof h->host - 1] = h->version[sizeof h->version - 1] = 0;
    if (h->job != me->job || h->h.run != (m->s->server ? 0 : m->run)) {
        snprintf(why, sizeof why,
                 "rank 0 at %s (host %s pid %d) belongs to another job (%" PRIx64 ", this one is %" PRIx64
                 "): give each job a port or a file of its own",
                 m->where, me->host, me->pid, me->job, h->job);
        say(m, g->fd, NOT_MINE, why);
        return leave(g);
    }
    if (has_place) forget_earlier(m, h);
    check_hello(m, h);
    g->rank = has_place ? h->rank : m->s->ranks;
    if (has_place && !m->seats[h->rank].pid) sit_down(m, g);
}

// -------- what the other ranks hear

static void take_refusal(meeting *m, guest *g) {
    snprintf(m->why, sizeof m->why, "%.639s", g->in.words.text);
    if (m->s->server) FAIL(m, "%s", m->why);
    leave(g);
}

// An address that is loopback for rank 0 is on rank 0's machine.
static void take_seat(meeting *m, guest *g) {
    seat *s = &g->in.seat;
    net_address zero;
    if (s->rank < 0 || s->rank >= m->s->ranks || net_other_end(g->fd, &zero)) return lose(m, g, -EBADMSG);
    if (net_is_loopback(&s->at)) s->at = net_from(&zero.any, s->port);
    if (s->at.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&s->at.v6.sin6_addr))
        s->at.v6.sin6_scope_id = zero.v6.sin6_scope_id;
    if (s->rank != m->s->rank) m->seats[s->rank] = *s;
    m->run = g->in.h.run;
}

static void take_higher(meeting *m, guest *g) {
    int r = g->in.seat.rank;
    if (g->in.h.run != m->run || r <= m->s->rank || r >= m->s->ranks || m->sockets[r] >= 0) return leave(g);
    m->sockets[r] = g->fd;
    g->fd = -1;
}

// Rank 0 has the last word, because what another rank cannot do may follow from an earlier failure.
static void take_report(meeting *m, guest *g) {
    int from_0 = g->rank == 0, failed = *g->in.words.text != 0;
    m->reported[g->rank] = 1;
    if (from_0 && failed) m->rc = 0;
    if (failed) FAIL(m, "%s", g->in.words.text);
    m->told |= from_0 && failed;
}

// A message that is not due comes from a stranger, or from a rank that has gone wrong, and ends its
// connection. A greeting of another protocol may be short.
static void take(meeting *m, guest *g) {
    int is_0 = m->s->rank == 0, from_0 = g->rank == 0, kind = (int)g->in.h.kind;
    int is_seat = kind == HELLO && (is_0 || sizeof(head) + g->in.h.bytes >= sizeof(seat));
    if (is_seat && is_0 && g->rank < 0)
        take_hello(m, g);
    else if (is_seat && g->rank < 0)
        take_higher(m, g);
    else if (is_seat && from_0)
        take_seat(m, g);
    else if (kind == NOT_MINE && from_0)
        take_refusal(m, g);
    else if (kind == REPORT && g->rank >= 0 && g->rank < m->s->ranks)
        take_report(m, g);
    else
        lose(m, g, -EBADMSG);
}

// -------- rank 0

// Tells all where they listen (HELLO), or that they are connected, or the failure, after which it has no more
// to say to them.
static void tell_all(meeting *m, int kind) {
    char name[NAME];
    for (int i = 0; i < m->n; i++) {
        guest *g = &m->guests[i];
        if (g->rank < 0 || (kind == HELLO && m->rc)) continue;
        int rc = kind == HELLO ? say_hello(m, g->fd, m->seats, m->s->ranks)
                               : say(m, g->fd, REPORT, m->rc ? zero_last_error() : "");
        if (m->rc)
            g->rank = -1;
        else if (rc)
            FAIL(m, "%s does not take what rank 0 says: %s", name_of(&m->seats[g->rank], name),
                 strerror(-rc));
    }
}

// Draws the run's number, and says in the file, if there is one, where rank 0 listens.
static void publish(meeting *m) {
    const seat *me = &m->seats[0];
    if (getrandom(&m->run, sizeof m->run, 0) != sizeof m->run) {
        m->run = 0;
        FAIL(m, "no random number: %s", strerror(errno));
        return;
    }
    m->run |= 1;  // 0 means none
    if (!m->s->file) return;
    snprintf(m->where, sizeof m->where, "%.200s:%d", me->host, me->port);
    m->card = (card){ .pid = me->pid, .port = me->port, .run = m->run, .node = me->node };
    memcpy(m->card.host, me->host, sizeof m->card.host);
    card_path(m->s->file, m->file);
    m->rc = card_write(m->file, &m->card);
}

// The ranks have at least a second to connect to each other. Rank 0 listens a little longer for the ranks
// that they have waited for in vain. A rank that has not reported by then is the one that is stuck. For a
// second rank 0 tells a failure to those who come late too, since nobody would answer them afterwards.
static void be_rank_0(meeting *m) {
    const rendezvous_settings *s = m->s;
    seat *me = &m->seats[0];
    char list[ZERO_LIST];
    publish(m);
    if (m->rc) return;
    if (wait_for(m, not_here, &m->deadline))
        FAIL(m, "%s of %d did not come within %.3g s: rank 0 waited at %s (host %s)", absent_ranks(m, list),
             s->ranks, s->timeout_s, m->where, me->host);
    me->left_s = m->deadline - clock_now() > 1 ? m->deadline - clock_now() : 1;
    double until = clock_now() + me->left_s + GRACE_S, late = earlier(m->deadline, clock_now() + LINGER_S);
    tell_all(m, HELLO);
    if (wait_for(m, not_reported, &until))
        FAIL(m,
             "%s: no word of being connected to the others within %.3g s, though all %d ranks were there: "
             "stopped, or a host without answer",
             absent_ranks(m, list), s->timeout_s, s->ranks);
    tell_all(m, REPORT);
    while (m->rc && find_absent(m, not_here) && clock_now() < late) {
        look(m, late);
        tell_all(m, REPORT);
    }
}

// -------- the other ranks

// Connects to where a rank listens, and says hello. Returns the socket, or a negative errno.
static int introduce(meeting *m, const net_address *to, double until) {
    seat *me = &m->seats[m->s->rank];
    double limit = earlier(until, clock_now() + ANSWER_S);
    int fd = net_connect(to, limit), rc = fd < 0 ? fd : net_tune(fd, m->s->silence_s);
    me->left_s = m->deadline - clock_now();
    if (!rc) rc = say_hello(m, fd, me, 1);
    if (rc && fd >= 0) close(fd);
    return rc ? rc : fd;
}

// Finds the addresses of rank 0 that are known by now, and returns how many.
static int candidates(meeting *m, net_address *found) {
    const char *why;
    int n = 0, for_good;
    card *c = &m->card;
    if (m->s->server) return resolve_server(m, found);
    card_path(m->s->file, m->file);
    int rc = card_read(m->file, c);
    m->seen = rc != -ENOENT;
    if (rc)
        snprintf(m->why, sizeof m->why, "%s", rc == -EBADMSG ? "it is no rendezvous file" : strerror(-rc));
    if (!rc && c->node == m->seats[m->s->rank].node)
        n = net_resolve("127.0.0.1", c->port, found, 1, &why, &for_good);
    for (int i = 0; i < c->n; i++) found[n++] = c->at[i];
    return n;
}

// Waits ANSWER_S for an answer, because a file's address may belong to another program by now. A rank 0 that
// was only stopped takes the last of this rank's connections.
static void try_address(meeting *m, const net_address *to) {
    char text[NET_NAME];
    double until = earlier(m->deadline, clock_now() + ANSWER_S);
    m->run = m->s->server ? 0 : m->card.run;
    int fd = introduce(m, to, until);
    if (fd < 0) {
        snprintf(m->why, sizeof m->why, "%s: %s", net_text(to, text), strerror(-fd));
        return;
    }
    m->n = 0;  // an earlier attempt has failed
    guest *zero = let_in(m, fd, 0);
    if (wait_for(m, not_welcome, &until)) lose(m, zero, -ETIMEDOUT);
}

static void not_found(meeting *m) {
    const rendezvous_settings *s = m->s;
    const card *c = &m->card;
    if (s->server)
        FAIL(m,
             "rank %d: rank 0 does not answer at %s within %.3g s (%s): is it running there, and is the port "
             "open?",
             s->rank, m->where, s->timeout_s, m->why);
    else if (!m->seen)
        FAIL(m,
             "rank %d: there was no file %s within %.3g s: rank 0, which writes it, has not started, or its "
             "host sees another folder",
             s->rank, m->file, s->timeout_s);
    else if (!c->run)
        FAIL(m, "rank %d cannot use the rendezvous file %s: %s: name another in start.file", s->rank, m->file,
             m->why);
    else
        FAIL(m,
             "rank %d: the rendezvous file %s is stale: rank 0 on host %s (pid %d) wrote it %lld s ago and "
             "does not answer any more (%s): remove the file, and see why rank 0 of this run wrote no other",
             s->rank, m->file, c->host, c->pid, (long long)time(NULL) - c->written, m->why);
}

// Tries until rank 0 welcomes this rank. Rank 0 may start later, and until then its file may be an old one.
static void find_rank_0(meeting *m) {
    for (double pause = 0.02; !m->rc; pause = pause < 0.3 ? pause * 1.5 : pause) {
        net_address at[ADDRESSES];
        int n = candidates(m, at);
        for (int i = 0; i < n && !m->rc && !m->seats[0].pid; i++) try_address(m, &at[i]);
        if (m->seats[0].pid) return;
        if (clock_now() + pause > m->deadline)
            not_found(m);
        else
            clock_nap(pause);
    }
}

static void connect_to_lower(meeting *m, double until) {
    int me = m->s->rank;
    for (int r = 1; r < me && !m->rc; r++) {
        char text[NET_NAME];
        const net_address *to = &m->seats[r].at;
        m->sockets[r] = introduce(m, to, until);
        if (m->sockets[r] < 0)
            FAIL(m, "rank %d (host %s) cannot connect to rank %d (host %s) at %s: %s", me, m->seats[me].host,
                 r, m->seats[r].host, net_text(to, text), strerror(-m->sockets[r]));
    }
}

static int hears_0(const meeting *m) { return m->n && m->guests[0].rank == 0 && !m->told; }

static void be_another(meeting *m) {
    char list[ZERO_LIST];
    int me = m->s->rank;
    find_rank_0(m);
    double until = m->deadline + GRACE_S;
    if (wait_for(m, not_here, &until))
        FAIL(m, "rank %d: rank 0 at %s has not let the ranks begin within %.3g s", me, m->where,
             m->s->timeout_s);
    if (m->rc) return;
    until = clock_now() + m->seats[0].left_s;
    connect_to_lower(m, until);
    if (wait_for(m, not_connected, &until))
        FAIL(m, "rank %d waited in vain for %s to connect: stopped, or a host without answer", me,
             absent_ranks(m, list));
    if (hears_0(m)) say(m, m->guests[0].fd, REPORT, m->rc ? zero_last_error() : "");
    until += GRACE_S + 1;
    while (hears_0(m) && !m->reported[0] && clock_now() < until) look(m, until);
    if (!m->reported[0])
        FAIL(m, "rank %d: rank 0 at %s does not say whether all are connected", me, m->where);
}

// -------- all ranks

// Opens the port at which this rank listens: rank 0's is the given one, any other is free.
static void open_listener(meeting *m) {
    seat *me = &m->seats[m->s->rank];
    int server = m->s->server && !m->s->rank, port = server ? m->port : 0;
    net_address at[ADDRESSES];
    if (server) resolve_server(m, at);  // the others could not find it
    m->listener = net_listen(port, m->s->ranks + STRANGERS);
    me->port = m->listener < 0 ? m->listener : net_port(m->listener);
    if (m->listener == -EADDRINUSE)
        FAIL(m,
             "rank 0 (host %s) cannot listen at port %d, which is in use, perhaps by another job (ss -ltnp "
             "shows it): give another port, in start.server or MASTER_PORT",
             me->host, port);
    else if (me->port < 0)
        FAIL(m, "rank %d (host %s) cannot listen at port %d: %s", m->s->rank, me->host, port,
             strerror(-me->port));
}

static int check_settings(meeting *m) {
    const rendezvous_settings *s = m->s;
    if (s->rank < 0 || s->rank >= s->ranks)
        return zero_refuse("", "rank %d of %d: the ranks are 0 to the number of ranks less 1", s->rank,
                           s->ranks);
    if (s->ranks > 1 && !s->server == !s->file)
        return zero_refuse(
            "start.server start.file",
            ", the address of rank 0 as host:port, or start.file, a file that all %d ranks see, is "
            "needed: one of the two",
            s->ranks);
    if (s->file && strlen(s->file) > PATH_MAX - 2 * CARD_ROOM)
        return zero_refuse("start.file", " %.60s...: too long a name", s->file);
    if (!(s->timeout_s > 0)) return zero_refuse("comm.timeout_s", " %g: above 0", s->timeout_s);
    return s->ranks > 1 && s->server ? net_split(s->server, m->host, HOST, &m->port) : 0;
}

static void meet(meeting *m) {
    const rendezvous_settings *s = m->s;
    seat *me = &m->seats[s->rank];
    *me = (seat){ .job = s->job, .rank = s->rank, .ranks = s->ranks, .pid = (int32_t)getpid() };
    me->node = net_machine(me->host);
    snprintf(me->version, sizeof me->version, "%s", s->version ? s->version : "");
    snprintf(m->where, sizeof m->where, "%.300s", s->server ? s->server : s->file ? s->file : "");
    if (s->ranks == 1) return;
    open_listener(m);
    if (m->rc) return;
    if (s->rank)
        be_another(m);
    else
        be_rank_0(m);
}

int rendezvous(const rendezvous_settings *settings, int *sockets, rendezvous_peer *peers) {
    rendezvous_settings s = *settings;
    meeting m = { .s = &s, .sockets = sockets, .listener = -1, .why = "no attempt" };
    ZERO_TRY(check_settings(&m));
    if (s.silence_s <= 0) s.silence_s = RENDEZVOUS_SILENCE_S;
    m.deadline = clock_now() + s.timeout_s;
    m.most = s.ranks + STRANGERS;
    m.seats = calloc((size_t)s.ranks, sizeof *m.seats);
    m.guests = calloc((size_t)m.most, sizeof *m.guests);
    m.reported = calloc((size_t)s.ranks, 2);
    m.absent = m.reported + s.ranks;
    for (int r = 0; r < s.ranks; r++) sockets[r] = -1;
    if (m.seats && m.guests && m.reported)
        meet(&m);
    else
        m.rc = zero_fail(ZERO_ERR_MEMORY, "out of memory for the start-up of %d ranks", s.ranks);
    zero_failure f = *zero_last_failure();
    for (int i = 0; i < m.n; i++) {
        const guest *g = &m.guests[i];
        if (!m.rc && g->rank >= 0)
            sockets[g->rank] = g->fd;
        else if (g->fd >= 0)
            close(g->fd);
    }
    for (int r = 0; r < s.ranks; r++) {
        if (m.rc && sockets[r] >= 0) close(sockets[r]);
        if (m.rc) sockets[r] = -1;
        if (m.rc) continue;
        peers[r] = (rendezvous_peer){ .node = m.seats[r].node, .pid = m.seats[r].pid };
        memcpy(peers[r].host, m.seats[r].host, sizeof peers[r].host);
    }
    if (m.listener >= 0) close(m.listener);
    if (m.run && s.file && !s.rank) card_remove(m.file, m.run);
    free(m.seats);
    free(m.guests);
    free(m.reported);
    f.rank = s.rank;
    f.lower = m.told ? s.rank : -1;
    return m.rc ? zero_fail_again(&f) : 0;
}
