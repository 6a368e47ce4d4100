// Each message is a `head` and what belongs to it.
//
//   HELLO     rank r to rank 0      who it is
//   WELCOME   rank 0 to rank r      it is one of the job; NOT_MINE or FAILED say why not
//   ROSTER    rank 0 to all         where everybody listens
//   MESH      rank r to the lower   it is rank r
//   REPORT    rank r to rank 0      nothing, or what went wrong
//   GO        rank 0 to all         everybody is connected; or FAILED
//
// Rank 0 thus learns of every failure first and tells it to all.
#include "rendezvous.h"
#include "../clock.h"
#include "../error.h"
#include "rendezvous_file.h"
#include "sockets.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MAGIC = 0x4c5a5256,
    PROTOCOL = 2,
    TEXT = 640,
    HOST = 256,
    ADDRESSES = CARD_ADDRESSES + 1,
    STRANGERS = 64
};
enum { STRANGER_S = 10, ANSWER_S = 5, LINGER_S = 1, GRACE_S = 2, CONNECT_S = 5 };
enum { HELLO = 1, WELCOME, NOT_MINE, FAILED, ROSTER, MESH, REPORT, GO };

typedef struct {
    uint32_t magic, kind, bytes, protocol;
    uint64_t run;
} head;
typedef struct {
    uint64_t job, node;
    double left_s;                   // until the sender gives up
    int32_t rank, ranks, pid, port;  // port: where it listens for the higher ranks
    char host[64], version[48];
} hello;
typedef struct {
    uint64_t node;
    int32_t pid, port;
    struct in6_addr address;
    char host[64];
} seat;
typedef struct {
    double left_s;
    seat seats[];
} roster;  // left_s: the ranks have so long to connect to each other

// A connection, and the message that is coming in on it.
typedef struct {
    int fd, rank;  // rank -1: not known
    int told;      // it has got the verdict
    double since;
    size_t got;
    head h;
    roster *large;      // NULL: the message goes into body, else here
    size_t most_bytes;  // of large
    union {
        hello hello;
        char text[TEXT];
    } body;
} guest;

typedef struct {
    const rendezvous_settings *s;
    int *sockets;
    roster *roster;
    seat *seats;        // (ranks), the roster's; pid 0: nobody yet
    char *reported;     // (ranks)
    int verdict, told;  // rank 0's verdict has come; the failure is known to rank 0
    uint64_t run;
    double deadline;
    int listener, port;
    guest *guests;
    struct pollfd *polls;
    int n, most;
    char where[320];      // rank 0 listens
    char file[PATH_MAX];  // s->file, as it was at the last look
    char failure[TEXT];
} meeting;

// -------- helpers

// Keeps the first failure, which is the one that all are told.
static void fail(meeting *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fail(meeting *m, const char *fmt, ...) {
    if (*m->failure) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(m->failure, sizeof m->failure, fmt, args);
    va_end(args);
}

static int say(const meeting *m, int fd, int kind, const void *data, size_t bytes) {
    head h = { MAGIC, (uint32_t)kind, (uint32_t)bytes, PROTOCOL, m->run };
    double until = clock_now() + ANSWER_S;
    int rc = net_write(fd, &h, sizeof h, until);
    return rc ? rc : net_write(fd, data, bytes, until);
}

static int say_text(const meeting *m, int fd, int kind, const char *text) {
    return say(m, fd, kind, text, strlen(text) + 1);
}

// 1: g has a whole message; 0: not yet; or a negative errno: ECONNRESET where the connection has ended in
// order too, EPROTO where the other side is another program, EBADMSG where the message is too long.
static int hear(guest *g) {
    char *body = g->large ? (char *)g->large : g->body.text;
    size_t most = g->large ? g->most_bytes : sizeof g->body;
    for (;;) {
        int in_head = g->got < sizeof g->h;
        size_t want = in_head ? sizeof g->h - g->got : sizeof g->h + g->h.bytes - g->got;
        if (!want) return 1;
        ssize_t n = recv(g->fd, in_head ? (char *)&g->h + g->got : body + (g->got - sizeof g->h), want, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN ? 0 : -errno;
        if (!n) return -ECONNRESET;
        g->got += (size_t)n;
        if (g->got >= sizeof g->h.magic && g->h.magic != MAGIC) return -EPROTO;
        if (g->got == sizeof g->h && g->h.bytes > most) return -EBADMSG;
    }
}

// Waits for a whole message. 0, or a negative errno.
static int hear_until(guest *g, double until) {
    for (;;) {
        int rc = hear(g);
        if (rc) return rc < 0 ? rc : 0;
        ZERO_TRY(net_wait(g->fd, POLLIN, until));
    }
}

// Returns the text of a message, which ends there. The guest may send another one.
static const char *text_of(guest *g) {
    char *text = g->large ? (char *)g->large : g->body.text;
    size_t most = g->large ? g->most_bytes : sizeof g->body;
    text[g->h.bytes < most ? g->h.bytes : most - 1] = 0;
    g->got = 0;
    return text;
}

// Rank 0 has said why the job does not start, so it need not be told.
static void take_failure(meeting *m, guest *g) {
    fail(m, "%s", text_of(g));
    m->told = 1;
}

// Whom this rank waits for.
typedef int absence(const meeting *m, int r);
static int not_here(const meeting *m, int r) { return !m->seats[r].pid; }
static int not_reported(const meeting *m, int r) { return r > 0 && !m->reported[r]; }
static int not_connected(const meeting *m, int r) { return r > m->s->rank && m->sockets[r] < 0; }
static int no_verdict(const meeting *m, int r) { return r == 0 && !m->verdict; }

static int count(const meeting *m, absence *is_absent) {
    int n = 0;
    for (int r = 0; r < m->s->ranks; r++) n += is_absent(m, r);
    return n;
}

// "rank 1", or "ranks 1 (host a), 2 (host b) and more": those who are absent.
static const char *name_ranks(const meeting *m, absence *is_absent, char list[400]) {
    enum { MOST_NAMED = 12, MOST_USED = 280 };
    int all = count(m, is_absent), named = 0;
    int used = snprintf(list, 400, all > 1 ? "ranks " : "rank ");
    for (int r = 0; r < m->s->ranks; r++) {
        if (!is_absent(m, r)) continue;
        const char *host = m->seats[r].host;
        if (named == MOST_NAMED || used > MOST_USED) {
            snprintf(list + used, 400 - (size_t)used, " and more");
            break;
        }
        if (named++) used += snprintf(list + used, 400 - (size_t)used, named == all ? " and " : ", ");
        used += snprintf(list + used, 400 - (size_t)used, *host ? "%d (host %s)" : "%d", r, host);
    }
    return list;
}

static seat this_process(void) {
    seat me = { .pid = (int32_t)getpid() };
    me.node = net_machine(me.host);
    return me;
}

// -------- connections that come in

static void leave(guest *g) {
    close(g->fd);
    g->fd = -1;
}

// Where there is no room left, the stranger that has said nothing for longest has to go.
static guest *let_in(meeting *m, int fd, int rank) {
    guest *oldest = NULL;
    for (int i = 0; i < m->n && m->n == m->most; i++)
        if (m->guests[i].rank < 0 && (!oldest || m->guests[i].since < oldest->since)) oldest = &m->guests[i];
    if (m->n == m->most && !oldest) return NULL;
    if (oldest) {
        leave(oldest);
        *oldest = m->guests[--m->n];
    }
    guest *g = &m->guests[m->n++];
    *g = (guest){ .fd = fd, .rank = rank, .since = clock_now() };
    return g;
}

static void take(meeting *m, guest *g);

static void lost(meeting *m, guest *g) {
    if (g->rank == 0)
        fail(m, "rank 0 (%s) has ended while the ranks were connecting", m->where);
    else if (g->rank > 0 && g->rank < m->s->ranks)
        fail(m, "rank %d (host %s pid %d) has ended while the ranks were connecting", g->rank,
             m->seats[g->rank].host, m->seats[g->rank].pid);
    leave(g);
}

// Waits until `until` at most for something to happen, and handles all that has.
static void look(meeting *m, double until) {
    double left_s = until - clock_now();
    int fd, n = m->n, wait_ms = left_s < 0.5 ? (int)(left_s * 1e3) + 1 : 500;
    m->polls[n] = (struct pollfd){ m->listener, POLLIN, 0 };
    for (int i = 0; i < n; i++) m->polls[i] = (struct pollfd){ m->guests[i].fd, POLLIN, 0 };
    if (poll(m->polls, (nfds_t)n + 1, wait_ms < 0 ? 0 : wait_ms) < 0 && errno != EINTR)
        fail(m, "rank %d cannot wait for its connections: %s", m->s->rank, strerror(errno));
    for (int i = 0; i < n; i++) {
        guest *g = &m->guests[i];
        if (g->fd < 0) continue;  // closed meanwhile, by forget_earlier
        int heard = m->polls[i].revents ? hear(g) : 0;
        if (heard < 0)
            lost(m, g);
        else if (heard)
            take(m, g);
        else if (g->rank < 0 && clock_now() - g->since > STRANGER_S)
            leave(g);
    }
    int kept = 0;
    for (int i = 0; i < m->n; i++)
        if (m->guests[i].fd >= 0) m->guests[kept++] = m->guests[i];
    m->n = kept;
    while ((fd = net_accept(m->listener)) >= 0) {
        if (net_tune(fd, m->s->silence_s) || !let_in(m, fd, -1)) close(fd);
    }
    if (fd != -EAGAIN)
        fail(m, "rank %d (host %s) cannot take connections: %s%s", m->s->rank, m->seats[m->s->rank].host,
             strerror(-fd), fd == -EMFILE ? ": raise ulimit -n above twice the number of ranks" : "");
}

// Returns 1 if some are still absent at *until, 0 when nobody is, or all is over before. A rank that comes
// may bring m->deadline forward.
static int wait_for(meeting *m, absence *is_absent, const double *until) {
    while (!*m->failure && count(m, is_absent)) {
        if (m->verdict) return 0;
        if (clock_now() > *until) return 1;
        look(m, *until);
    }
    return 0;
}

// -------- rank 0

// Fails if a rank that says hello cannot be one of this job.
static void check_hello(meeting *m, const head *said, const hello *h) {
    const seat *me = &m->seats[0];
    const char *version = m->s->version ? m->s->version : "";
    char who[160];
    snprintf(who, sizeof who, "rank %d (host %s pid %d)", h->rank, h->host, h->pid);
    if (said->protocol != PROTOCOL)
        fail(m,
             "%s speaks version %u of the start-up protocol, rank 0 (host %s) version %d: install the same "
             "llmc_zero on all hosts",
             who, said->protocol, me->host, PROTOCOL);
    else if (h->ranks != m->s->ranks)
        fail(m,
             "%s was started as one of %d ranks, rank 0 (host %s pid %d) as one of %d: start all with the "
             "same number",
             who, h->ranks, me->host, me->pid, m->s->ranks);
    else if (strcmp(h->version, version))
        fail(m, "%s runs version \"%s\", rank 0 (host %s) \"%s\": install the same on all hosts", who,
             h->version, me->host, version);
    else if (h->rank < 0 || h->rank >= m->s->ranks)
        fail(m, "host %s pid %d says that it is rank %d: the ranks are 0 to %d", h->host, h->pid, h->rank,
             m->s->ranks - 1);
    else if (m->seats[h->rank].pid)
        fail(m, "two processes say that they are rank %d: host %s pid %d and host %s pid %d", h->rank,
             m->seats[h->rank].host, m->seats[h->rank].pid, h->host, h->pid);
}

// The rank can be reached at the address from which it came.
static void sit_down(meeting *m, guest *g) {
    const hello *h = &g->body.hello;
    seat *s = &m->seats[h->rank];
    net_address from;
    if (net_other_end(g->fd, &from)) return lost(m, g);
    *s = (seat){ .node = h->node, .pid = h->pid, .port = h->port, .address = from.sin6_addr };
    memcpy(s->host, h->host, sizeof s->host);
    if (h->left_s > 0 && clock_now() + h->left_s < m->deadline) m->deadline = clock_now() + h->left_s;
    if (!*m->failure && say(m, g->fd, WELCOME, NULL, 0)) lost(m, g);
}

// A rank that has waited ANSWER_S in vain, because rank 0 was stopped, connects again. Its last connection
// counts.
static void forget_earlier(meeting *m, const hello *h) {
    seat *s = h->rank > 0 && h->rank < m->s->ranks ? &m->seats[h->rank] : NULL;
    if (!s || s->pid != h->pid || s->node != h->node || s->port != h->port) return;
    for (int i = 0; i < m->n; i++)
        if (m->guests[i].rank == h->rank && m->guests[i].fd >= 0) leave(&m->guests[i]);
    *s = (seat){ .pid = 0 };
}

static void take_hello(meeting *m, guest *g) {
    hello *h = &g->body.hello;
    h->host[sizeof h->host - 1] = h->version[sizeof h->version - 1] = 0;
    if (h->job != m->s->job || g->h.run != (m->s->server ? 0 : m->run)) {
        char why[TEXT];
        snprintf(why, sizeof why,
                 "rank 0 at %s (host %s pid %d) belongs to another job (%" PRIx64 ", this one is %" PRIx64
                 "): give each "
                 "job a port or a file of its own",
                 m->where, m->seats[0].host, m->seats[0].pid, m->s->job, h->job);
        say_text(m, g->fd, NOT_MINE, why);
        return leave(g);
    }
    forget_earlier(m, h);
    check_hello(m, &g->h, h);
    int has_place = h->rank > 0 && h->rank < m->s->ranks;
    g->rank = has_place ? h->rank : m->s->ranks;  // from now on it is told of a failure
    g->got = 0;
    if (has_place && !m->seats[h->rank].pid) sit_down(m, g);
}

static void take_report(meeting *m, guest *g) {
    const char *text = text_of(g);
    if (*text) fail(m, "%s", text);
    m->reported[g->rank] = 1;
}

// Tells all who are there, and for a second those who come late, since nobody would answer them afterwards.
static void tell_failure(meeting *m) {
    double until = clock_now() + LINGER_S;
    for (;;) {
        for (int i = 0; i < m->n; i++) {
            if (m->guests[i].rank < 0 || m->guests[i].told) continue;
            say_text(m, m->guests[i].fd, FAILED, m->failure);
            m->guests[i].told = 1;
        }
        if (!count(m, not_here) || clock_now() > until || clock_now() > m->deadline) return;
        look(m, until);
    }
}

static void tell_all(meeting *m, int kind, const void *data, size_t bytes) {
    for (int i = 0; i < m->n && !*m->failure; i++) {
        int r = m->guests[i].rank, rc = r > 0 ? say(m, m->guests[i].fd, kind, data, bytes) : 0;
        if (rc)
            fail(m, "rank %d (host %s) does not take what rank 0 says: %s", r, m->seats[r].host,
                 strerror(-rc));
    }
}

static size_t roster_bytes(const meeting *m) {
    return sizeof *m->roster + (size_t)m->s->ranks * sizeof *m->seats;
}

// The ranks have at least a second to connect to each other. Rank 0 listens a little longer for the ranks
// that they have waited for in vain. A rank that has not reported by then is the one that is stuck.
static void receive_all(meeting *m) {
    char list[400];
    if (wait_for(m, not_here, &m->deadline))
        fail(m, "%s of %d did not come within %.3g s: rank 0 waited at %s (host %s)",
             name_ranks(m, not_here, list), m->s->ranks, m->s->timeout_s, m->where, m->seats[0].host);
    m->roster->left_s = m->deadline - clock_now() > 1 ? m->deadline - clock_now() : 1;
    double until = clock_now() + m->roster->left_s + GRACE_S;
    tell_all(m, ROSTER, m->roster, roster_bytes(m));
    if (wait_for(m, not_reported, &until))
        fail(m,
             "%s: no word of being connected to the others within %.3g s, though all %d ranks were there: "
             "stopped, or a host without answer",
             name_ranks(m, not_reported, list), m->s->timeout_s, m->s->ranks);
    tell_all(m, GO, NULL, 0);
    if (*m->failure) return tell_failure(m);
    for (int i = 0; i < m->n; i++) {
        if (m->guests[i].rank < 0) continue;
        m->sockets[m->guests[i].rank] = m->guests[i].fd;
        m->guests[i].fd = -1;
    }
}

// -------- the other ranks

typedef struct {
    char why[TEXT];
    card c;
    int seen;
} search;

// Finds the addresses of rank 0 that are known by now, and returns how many.
static int candidates(meeting *m, search *s, net_address *found) {
    const char *why = "";
    int for_good = 0, n = 0, port;
    char host[HOST];
    if (m->s->server) {
        if (!net_split(m->s->server, host, sizeof host, &port))
            n = net_resolve(host, port, found, ADDRESSES, &why, &for_good);
        if (!n) snprintf(s->why, sizeof s->why, "its host \"%s\" does not resolve: %s", host, why);
        if (!n && for_good)
            fail(m, "rank %d cannot reach rank 0 at %s: host \"%s\" does not resolve: %s", m->s->rank,
                 m->where, host, why);
        return n;
    }
    card_path(m->s->file, m->file);
    int rc = card_read(m->file, &s->c);
    s->seen = rc != -ENOENT;
    if (rc)
        snprintf(s->why, sizeof s->why, "%s", rc == -EBADMSG ? "it is no rendezvous file" : strerror(-rc));
    if (rc) return 0;
    if (s->c.node == m->seats[m->s->rank].node)
        n = net_resolve("127.0.0.1", s->c.port, found, 1, &why, &for_good);
    for (int i = 0; i < s->c.n; i++) found[n++] = s->c.at[i];
    return n;
}

// Says hello to whoever has answered. 1: it is rank 0, and this rank is welcome. 0: it is not, and s->why
// says what it is.
static int greet(meeting *m, search *s, int fd, double until) {
    const seat *me = &m->seats[m->s->rank];
    hello h = { .job = m->s->job,
                .node = me->node,
                .left_s = m->deadline - clock_now(),
                .rank = m->s->rank,
                .ranks = m->s->ranks,
                .pid = me->pid,
                .port = me->port };
    guest zero = { .fd = fd };
    memcpy(h.host, me->host, sizeof h.host);
    if (m->s->version) snprintf(h.version, sizeof h.version, "%s", m->s->version);
    m->run = m->s->server ? 0 : s->c.run;
    int rc = say(m, fd, HELLO, &h, sizeof h);
    if (!rc) rc = hear_until(&zero, until);
    if (rc == -EPROTO) {
        snprintf(s->why, sizeof s->why, "what answers there is another program");
        if (m->s->server)
            fail(m,
                 "rank %d: what answers at %s is another program, not rank 0 of this one: give another port",
                 m->s->rank, m->where);
        return 0;
    }
    m->run = zero.h.run;
    if (rc)
        snprintf(s->why, sizeof s->why, "it takes connections but does not answer: %s", strerror(-rc));
    else if (zero.h.kind == FAILED)
        take_failure(m, &zero);
    else if (zero.h.kind == NOT_MINE)
        snprintf(s->why, sizeof s->why, "%.*s", TEXT - 1, text_of(&zero));
    if (!rc && zero.h.kind == NOT_MINE && m->s->server) fail(m, "%s", s->why);
    return !rc && zero.h.kind == WELCOME;
}

static int try_address(meeting *m, search *s, const net_address *to) {
    char text[NET_NAME];
    double now = clock_now();
    int fd = net_connect(to, now + 3 < m->deadline ? now + 3 : m->deadline);
    if (fd < 0) {
        snprintf(s->why, sizeof s->why, "%s: %s", net_text(to, text), strerror(-fd));
        return -1;
    }
    // A file's address may belong to another program by now, so it gets ANSWER_S. At a given address this
    // rank waits, because rank 0 would take a second connection for a second process.
    double until = m->s->server || now + ANSWER_S > m->deadline ? m->deadline : now + ANSWER_S;
    if (!net_tune(fd, m->s->silence_s) && greet(m, s, fd, until)) return fd;
    close(fd);
    return -1;
}

static void not_found(meeting *m, const search *s) {
    const rendezvous_settings *set = m->s;
    if (set->server)
        fail(m,
             "rank %d: rank 0 does not answer at %s within %.3g s (%s): is it running there, and is the port "
             "open?",
             set->rank, m->where, set->timeout_s, s->why);
    else if (!s->seen)
        fail(m,
             "rank %d: there was no file %s within %.3g s: rank 0, which writes it, has not started, or its "
             "host sees another folder",
             set->rank, m->file, set->timeout_s);
    else if (!s->c.run)
        fail(m, "rank %d cannot use the rendezvous file %s: %s: name another in start.file", set->rank,
             m->file, s->why);
    else
        fail(m,
             "rank %d: the rendezvous file %s is stale: rank 0 on host %s (pid %d) wrote it %lld s ago and "
             "does not answer any more (%s): remove the file, and see why rank 0 of this run wrote no other",
             set->rank, m->file, s->c.host, s->c.pid, (long long)time(NULL) - s->c.written, s->why);
}

// Tries until rank 0 welcomes this rank. Rank 0 may start later, and until then its file may be an old one.
static int find_rank_0(meeting *m) {
    search s = { .why = "no attempt" };
    for (double pause = 0.02;; pause = pause < 0.3 ? pause * 1.5 : pause) {
        net_address at[ADDRESSES];
        int n = candidates(m, &s, at), fd = -1;
        for (int i = 0; i < n && fd < 0 && !*m->failure; i++) fd = try_address(m, &s, &at[i]);
        if (fd >= 0) return fd;
        if (!*m->failure && clock_now() + pause > m->deadline) not_found(m, &s);
        if (*m->failure) return -1;
        clock_nap(pause);
    }
}

static void wait_for_roster(meeting *m, int fd) {
    double until = m->deadline + GRACE_S;
    guest zero = { .fd = fd, .large = m->roster, .most_bytes = roster_bytes(m) + TEXT };
    int rc = hear_until(&zero, until);
    if (!rc && zero.h.kind == FAILED) return take_failure(m, &zero);
    if (!rc && (zero.h.kind != ROSTER || zero.h.bytes != roster_bytes(m))) rc = -EBADMSG;
    if (rc && clock_now() >= until)
        fail(m, "rank %d: rank 0 at %s has not let the ranks begin within %.3g s", m->s->rank, m->where,
             m->s->timeout_s);
    else if (rc == -ECONNRESET)
        fail(m, "rank %d: rank 0 at %s has ended while the ranks were connecting", m->s->rank, m->where);
    else if (rc)
        fail(m, "rank %d has lost its connection to rank 0 at %s: %s", m->s->rank, m->where, strerror(-rc));
}

// Returns where rank r listens, as seen from here. An address that was loopback for rank 0 is on rank 0's
// machine.
static net_address address_of(const meeting *m, int r) {
    net_address a = { .sin6_family = AF_INET6, .sin6_addr = m->seats[r].address }, zero;
    if (!net_other_end(m->sockets[0], &zero)) {
        if (net_is_loopback(&a)) a = zero;
        if (IN6_IS_ADDR_LINKLOCAL(&a.sin6_addr)) a.sin6_scope_id = zero.sin6_scope_id;
    }
    a.sin6_port = htons((uint16_t)m->seats[r].port);
    return a;
}

static void connect_to_lower(meeting *m, double until) {
    int32_t me = m->s->rank;
    for (int r = 1; r < me && !*m->failure; r++) {
        char text[NET_NAME];
        net_address to = address_of(m, r);
        double limit = clock_now() + CONNECT_S;
        int fd = m->sockets[r] = net_connect(&to, limit < until ? limit : until),
            rc = fd < 0 ? fd : net_tune(fd, m->s->silence_s);
        if (!rc) rc = say(m, fd, MESH, &me, sizeof me);
        if (rc)
            fail(m, "rank %d (host %s) cannot connect to rank %d (host %s) at %s: %s", me, m->seats[me].host,
                 r, m->seats[r].host, net_text(&to, text), strerror(-rc));
    }
}

static void take_mesh(meeting *m, guest *g) {
    int32_t rank;
    memcpy(&rank, g->body.text, sizeof rank);
    if (g->h.run != m->run || rank <= m->s->rank || rank >= m->s->ranks || m->sockets[rank] >= 0)
        return leave(g);
    m->sockets[rank] = g->fd;
    g->fd = -1;
}

static void take_verdict(meeting *m, guest *g) {
    m->verdict = 1;
    if (g->h.kind == FAILED) take_failure(m, g);
    g->got = 0;
}

static void join_mesh(meeting *m) {
    double until = clock_now() + m->roster->left_s;
    char list[400];
    // Rank 0 may speak meanwhile. The guests are closed at the end, so this one is a copy.
    guest *server = let_in(m, fcntl(m->sockets[0], F_DUPFD_CLOEXEC, 0), 0);
    if (!server || server->fd < 0) fail(m, "rank %d cannot watch rank 0: %s", m->s->rank, strerror(errno));
    connect_to_lower(m, until);
    if (wait_for(m, not_connected, &until))
        fail(m, "rank %d waited in vain for %s to connect: stopped, or a host without answer", m->s->rank,
             name_ranks(m, not_connected, list));
    if (!m->verdict) say_text(m, m->sockets[0], REPORT, m->failure);
    until += GRACE_S + 1;
    if (wait_for(m, no_verdict, &until))
        fail(m, "rank %d: rank 0 at %s does not say whether all are connected", m->s->rank, m->where);
}

// -------- all ranks

// A message that is not due comes from a stranger, or from a rank that has gone wrong, and ends its
// connection.
static void take(meeting *m, guest *g) {
    int zero = m->s->rank == 0, kind = (int)g->h.kind;
    if (zero && kind == HELLO && g->rank < 0 && g->h.bytes == sizeof(hello))
        take_hello(m, g);
    else if (zero && kind == REPORT && g->rank > 0 && g->rank < m->s->ranks)
        take_report(m, g);
    else if (!zero && kind == MESH && g->rank < 0 && g->h.bytes == sizeof(int32_t))
        take_mesh(m, g);
    else if (!zero && (kind == GO || kind == FAILED) && g->rank == 0)
        take_verdict(m, g);
    else
        lost(m, g);
}

// Rank 0 listens at a loopback address only if one was given as a number or as localhost, because a host's
// own name often resolves to 127.0.1.1.
static int open_server(meeting *m) {
    const char *why = "";
    char host[HOST];
    net_address at[ADDRESSES];
    int for_good = 0, port;
    ZERO_TRY(net_split(m->s->server, host, sizeof host, &port));
    int n = net_resolve(host, port, at, ADDRESSES, &why, &for_good);
    if (!n && for_good)
        return zero_fail(ZERO_ERR_COMM, "rank 0's host \"%s\" does not resolve: %s", host, why);
    int loopback = n && net_is_loopback(&at[0]) &&
                   (!strcmp(host, "localhost") || strspn(host, "0123456789.:") == strlen(host));
    m->listener = net_listen(loopback ? &at[0] : NULL, port, m->s->ranks + STRANGERS);
    if (m->listener == -EADDRINUSE)
        return zero_fail(ZERO_ERR_COMM,
                         "rank 0 (host %s) cannot listen at port %d, which is in use, perhaps by another job "
                         "(ss -ltnp shows it): give another port, in start.server or MASTER_PORT",
                         m->seats[0].host, port);
    if (m->listener < 0)
        return zero_fail(ZERO_ERR_COMM, "rank 0 (host %s) cannot listen at %s: %s", m->seats[0].host,
                         m->s->server, strerror(-m->listener));
    m->port = port;
    return 0;
}

static int open_any(meeting *m) {
    m->listener = net_listen(NULL, 0, m->s->ranks + STRANGERS);
    m->port = m->listener < 0 ? m->listener : net_port(m->listener);
    if (m->port < 0)
        return zero_fail(ZERO_ERR_COMM, "rank %d cannot listen at any port: %s", m->s->rank,
                         strerror(-m->port));
    return 0;
}

static int be_rank_0(meeting *m) {
    if (getrandom(&m->run, sizeof m->run, 0) != sizeof m->run)
        return zero_fail(ZERO_ERR_COMM, "no random number: %s", strerror(errno));
    m->run |= 1;  // 0 means none
    m->seats[0].port = m->port;
    if (m->s->file) {
        snprintf(m->where, sizeof m->where, "%.200s:%d", m->seats[0].host, m->port);
        card c = { .pid = m->seats[0].pid, .port = m->port, .run = m->run, .node = m->seats[0].node };
        memcpy(c.host, m->seats[0].host, sizeof c.host);
        card_path(m->s->file, m->file);
        ZERO_TRY(card_write(m->file, &c));
    }
    receive_all(m);
    if (m->s->file) card_remove(m->file, m->run);
    return 0;
}

static void be_another(meeting *m) {
    int fd = m->sockets[0] = find_rank_0(m);
    if (fd >= 0) wait_for_roster(m, fd);
    if (!*m->failure) join_mesh(m);
}

static int check_settings(const rendezvous_settings *s) {
    char host[HOST];
    int port;
    if (s->ranks < 1 || s->rank < 0 || s->rank >= s->ranks)
        return zero_fail(ZERO_ERR_ARGUMENT, "rank %d of %d: the ranks are 0 to the number of ranks less 1",
                         s->rank, s->ranks);
    if (s->ranks > 1 && !s->server == !s->file)
        return zero_fail_setting(
            ZERO_ERR_ARGUMENT, "start.server start.file",
            ", the address of rank 0 as host:port, or start.file, a file that all %d ranks see, "
            "is needed: one of the two",
            s->ranks);
    if (s->file && strlen(s->file) > PATH_MAX - 64)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "start.file", " %.60s...: too long a name", s->file);
    if (!(s->timeout_s > 0))
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "comm.timeout_s", " %g: above 0", s->timeout_s);
    return s->ranks > 1 && s->server ? net_split(s->server, host, sizeof host, &port) : 0;
}

static int meet(meeting *m) {
    const rendezvous_settings *s = m->s;
    m->most = s->ranks + STRANGERS;
    m->roster = calloc(1, roster_bytes(m) + TEXT);
    m->reported = calloc((size_t)s->ranks, 1);
    m->guests = calloc((size_t)m->most, sizeof *m->guests);
    m->polls = calloc((size_t)m->most + 1, sizeof *m->polls);
    if (!m->roster || !m->reported || !m->guests || !m->polls)
        return zero_fail(ZERO_ERR_MEMORY, "out of memory for the start-up of %d ranks", s->ranks);
    m->seats = m->roster->seats;
    m->seats[s->rank] = this_process();
    snprintf(m->where, sizeof m->where, "%.300s", s->server ? s->server : s->file ? s->file : "");
    if (s->ranks == 1) return 0;
    ZERO_TRY(s->server && s->rank == 0 ? open_server(m) : open_any(m));
    m->seats[s->rank].port = m->port;
    if (s->rank)
        be_another(m);
    else
        ZERO_TRY(be_rank_0(m));
    if (!*m->failure) return 0;
    zero_failure f = { .code = ZERO_ERR_COMM, .rank = s->rank, .unit = -1, .lower = m->told ? s->rank : -1 };
    snprintf(f.sentence, sizeof f.sentence, "%s", m->failure);
    return zero_fail_again(&f);
}

int rendezvous(const rendezvous_settings *settings, int *sockets, rendezvous_peer *peers) {
    ZERO_TRY(check_settings(settings));
    rendezvous_settings s = *settings;
    if (s.silence_s <= 0) s.silence_s = RENDEZVOUS_SILENCE_S;
    meeting m = { .s = &s, .sockets = sockets, .listener = -1, .deadline = clock_now() + s.timeout_s };
    for (int r = 0; r < s.ranks; r++) sockets[r] = -1;
    int rc = meet(&m);
    for (int i = 0; i < m.n; i++)
        if (m.guests[i].fd >= 0) close(m.guests[i].fd);
    if (m.listener >= 0) close(m.listener);
    for (int r = 0; r < s.ranks; r++) {
        if (rc && sockets[r] >= 0) close(sockets[r]);
        if (rc) sockets[r] = -1;
        if (rc) continue;
        peers[r] = (rendezvous_peer){ .node = m.seats[r].node, .pid = m.seats[r].pid };
        memcpy(peers[r].host, m.seats[r].host, sizeof peers[r].host);
    }
    free(m.roster);
    free(m.reported);
    free(m.guests);
    free(m.polls);
    return rc;
}
