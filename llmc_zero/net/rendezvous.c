// Each message is a `head` and what belongs to it: a seat, or words.
//
//   CHALLENGE  rank 0 to whoever connects: a nonce
//   HELLO      rank r to rank 0, and to each lower rank: who it is. Rank 0 to rank r: who rank 0 is, so r is
//              one of the job, and then to all: everybody's seat
//   REPORT     rank r to rank 0, and then rank 0 to all: everybody is connected; or, at any time, what went
//              wrong
//   NOT_MINE   rank 0 belongs to another job
//
// Rank 0 thus learns of every failure first and tells it to all.
//
// All but the challenge carry a tag, by which the sender proves that it knows the secret of the job. The tag
// depends on the connection: on a nonce of each side, or, between two other ranks, on their numbers and on
// the run's, which rank 0 has told them. So a message that was overheard is of no use in another run, and
// none at rank 0. Until then whoever connects is a stranger: nothing is said to it, nothing waits for it, and
// it is dropped when others need its place.
#include "rendezvous.h"
#include "../clock.h"
#include "../error.h"
#include "rendezvous_file.h"
#include "secret.h"
#include "sockets.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x4c5a5256, PROTOCOL = 5, NAME = 160, ADDRESSES = CARD_ADDRESSES + 1 };
enum { SENTENCE = sizeof((zero_failure *)NULL)->sentence };
enum { STRANGERS = 256, AT_ONCE = 32, ANSWER_S = 5, HEAR_S = 2, LINGER_S = 1, GRACE_S = 2 };
enum { HELLO = 1, CHALLENGE, NOT_MINE, REPORT };
static const double most_left_s = 1e7;  // of what a rank may say that it has left

typedef struct {
    uint32_t magic, kind, bytes, protocol;
    uint64_t run;
    unsigned char nonce[SECRET_NONCE];  // of the sender, in CHALLENGE and in the first HELLO
    unsigned char tag[SECRET_TAG];      // of the whole message with 0 in this place
} head;
typedef struct {  // a rank, as it says HELLO
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

typedef union {
    head h;
    seat seat;
    words words;
} message;

typedef struct {
    int fd;           // -1: nobody
    uint64_t number;  // in the order in which they came
    unsigned char nonce[SECRET_NONCE];
} stranger;

typedef struct {
    const rendezvous_settings *s;
    int *sockets;  // (ranks) -1: none. Rank 0 hears what comes in on them, another rank on rank 0's
    seat *seats;   // (ranks)
    char *reported, *absent;  // (ranks) absent: for whom the last wait was
    stranger *strangers;      // (most)
    uint64_t came;            // strangers, so far
    int most, listener;
    int is_local;          // rank 0's address is this machine's own: other machines are not let in
    secret secret, *keys;  // of the job; (ranks) of the connections
    unsigned char nonce[SECRET_NONCE];  // of this rank, for its connection to rank 0
    int refused;                        // how many did not know the secret, and the last of them
    char last[NET_NAME];
    message in;    // the last that was heard
    int rc, told;  // the first failure, and rank 0 has told it
    uint64_t run;
    double deadline;
    card card;            // as it was at the last look
    int seen;             // there was a file
    char host[NET_HOST];  // of rank 0, as s->server says
    int port;
    char where[320];      // rank 0 listens
    char file[PATH_MAX];  // s->file, as it was at the last look
    char why[640];        // the last attempt to reach rank 0 has failed
} meeting;

// Keeps the first failure, which is the one that all are told.
#define FAIL(m, ...) ((m)->rc = (m)->rc ? (m)->rc : zero_fail(ZERO_ERR_COMM, __VA_ARGS__))

// -------- messages

static double earlier(double a, double b) { return a < b ? a : b; }

static void seal(const meeting *m, const secret *key, head *h, int kind, size_t bytes) {
    *h = (head){ MAGIC, (uint32_t)kind, (uint32_t)(bytes - sizeof *h), PROTOCOL, m->run, { 0 }, { 0 } };
    memcpy(h->nonce, m->nonce, sizeof h->nonce);
    secret_tag(key, h, bytes, h->tag);
}

static int say(const meeting *m, int fd, const secret *key, int kind, const char *text) {
    words w;
    size_t bytes = sizeof w.h + (size_t)snprintf(w.text, sizeof w.text, "%s", text) + 1;
    seal(m, key, &w.h, kind, bytes);
    return net_write(fd, &w, bytes, clock_now() + ANSWER_S);
}

static int say_hello(const meeting *m, int fd, const secret *key, seat *seats, int n) {
    for (int i = 0; i < n; i++) seal(m, key, &seats[i].h, HELLO, sizeof *seats);
    return net_write(fd, seats, (size_t)n * sizeof *seats, clock_now() + ANSWER_S);
}

// Receives a whole message. 0, or a negative errno: EPROTO where the other side is another program, which may
// say less than a head, EPROTONOSUPPORT where it is another version of this one, EBADMSG where the message is
// too long.
static int receive(meeting *m, int fd, double until) {
    head *h = &m->in.h;
    memset(&m->in, 0, sizeof m->in);
    int rc = net_read(fd, &h->magic, sizeof h->magic, until);
    if (!rc && h->magic != MAGIC) return -EPROTO;
    if (!rc) rc = net_read(fd, &h->kind, 3 * sizeof h->kind, until);
    if (!rc && h->protocol != PROTOCOL) return -EPROTONOSUPPORT;
    if (!rc && h->bytes > SENTENCE) return -EBADMSG;
    if (!rc) rc = net_read(fd, &h->run, sizeof *h - offsetof(head, run), until);
    return rc ? rc : net_read(fd, h + 1, h->bytes, until);
}

// Whether the message that came is from someone who knows this secret.
static int is_sealed(meeting *m, const secret *key) {
    unsigned char given[SECRET_TAG], tag[SECRET_TAG];
    head *h = &m->in.h;
    memcpy(given, h->tag, sizeof given);
    memset(h->tag, 0, sizeof h->tag);
    secret_tag(key, h, sizeof *h + h->bytes, tag);
    return secret_is_tag(given, tag);
}

// Receives a message of rank r. EACCES: the sender does not know the secret.
static int hear(meeting *m, int r) {
    int rc = receive(m, m->sockets[r], clock_now() + HEAR_S);
    return rc ? rc : is_sealed(m, &m->keys[r]) ? 0 : -EACCES;
}

// Makes the texts of a seat fit to be printed. Returns 0 for numbers that no rank sends.
static int is_sound(seat *s) {
    zero_plain(s->host, sizeof s->host);
    zero_plain(s->version, sizeof s->version);
    int has_time = s->left_s > -most_left_s && s->left_s < most_left_s;  // NaN has not
    return has_time && s->pid > 0 && s->port > 0 && s->port <= UINT16_MAX;
}

// -------- secrets of connections

static secret key_of_nonces(const meeting *m, const unsigned char *of_0, const unsigned char *of_other) {
    unsigned char both[2 * SECRET_NONCE];
    memcpy(both, of_0, SECRET_NONCE);
    memcpy(both + SECRET_NONCE, of_other, SECRET_NONCE);
    return secret_add(m->secret, both, sizeof both);
}

static secret key_between(const meeting *m, int higher, int lower) {
    const uint64_t names[] = { m->run, (uint64_t)higher, (uint64_t)lower };
    return secret_add(m->secret, names, sizeof names);
}

// -------- whom this rank waits for

typedef int absence(const meeting *m, int r);
static int not_welcome(const meeting *m, int r) { return r == 0 && m->sockets[0] >= 0 && !m->seats[0].pid; }
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

static void hang_up(meeting *m, int r) {
    if (m->sockets[r] >= 0) close(m->sockets[r]);
    m->sockets[r] = -1;
}

// Returns why what answers at rank 0's address cannot be rank 0 of this job; NULL: it can.
static const char *why_not_0(int error) {
    if (error == -EPROTO) return "is another program, not rank 0 of this one: give another port";
    if (error == -EPROTONOSUPPORT) return "is of another version: install the same llmc_zero on all hosts";
    if (error == -EACCES)
        return "has another key than this rank: give all ranks of a job the same ZERO_JOB_KEY, or none";
    return NULL;
}

// The connection to a rank has ended, or is of no use; a file's address may be an old one. error: a negative
// errno.
static void lose(meeting *m, int r, int error) {
    char name[NAME];
    const char *why = why_not_0(error);
    int is_wrong = error == -EBADMSG || error == -EACCES;
    if (m->seats[0].pid)
        FAIL(m, "%s has ended while the ranks were connecting (%s)", name_of(&m->seats[r], name),
             is_wrong ? "it sent what no rank sends" : strerror(-error));
    else if (why && m->s->server)
        FAIL(m, "rank %d: what answers at %s %s", m->s->rank, m->where, why);
    else if (why)
        snprintf(m->why, sizeof m->why, "what answers there %s", why);
    else
        snprintf(m->why, sizeof m->why, "it takes connections but does not answer: %s", strerror(-error));
    hang_up(m, r);
}

static void take(meeting *m, int r);
static void take_hello(meeting *m, int fd, const secret *key);
static void take_higher(meeting *m, int fd);

// -------- strangers

// It is told no more than that its tag is wrong, by an answer without a tag: with one it could try out keys.
static void turn_away(meeting *m, int fd) {
    const head h = { MAGIC, NOT_MINE, 0, PROTOCOL, 0, { 0 }, { 0 } };
    net_address from;
    m->refused++;
    if (net_other_end(fd, &from))
        snprintf(m->last, sizeof m->last, "an unknown address");
    else
        net_text(&from, m->last);
    if (!m->s->rank) net_write(fd, &h, sizeof h, 0);
    close(fd);
}

// A stranger has said something, as long as a greeting: what is there is read, and nothing is waited for.
static void meet_stranger(meeting *m, stranger *s) {
    const seat *h = &m->in.seat;
    int fd = s->fd, me = m->s->rank;
    s->fd = -1;
    if (receive(m, fd, 0) || h->h.kind != HELLO || h->h.bytes != sizeof *h - sizeof h->h) {
        close(fd);
        return;
    }
    secret key = me ? key_between(m, h->rank, me) : key_of_nonces(m, s->nonce, h->h.nonce);
    if (!is_sealed(m, &key))
        turn_away(m, fd);
    else if (!is_sound(&m->in.seat))
        close(fd);
    else if (me)
        take_higher(m, fd);
    else
        take_hello(m, fd, &key);
}

// Returns the place of the stranger who came first, or the first free one where `empty`; NULL: there is none.
static stranger *find_place(const meeting *m, int empty) {
    stranger *first = NULL;
    for (int i = 0; i < m->most; i++) {
        stranger *s = &m->strangers[i];
        if ((s->fd < 0) == empty && (!first || s->number < first->number)) first = s;
    }
    return first;
}

// No descriptor is left, and a stranger may have one.
static int is_full(int rc) { return rc == -EMFILE || rc == -ENFILE; }

static int drop_first(meeting *m) {
    stranger *s = find_place(m, 0);
    if (!s) return 0;
    close(s->fd);
    s->fd = -1;
    return 1;
}

static int challenge(const meeting *m, stranger *s) {
    head h = { MAGIC, CHALLENGE, 0, PROTOCOL, 0, { 0 }, { 0 } };
    if (m->s->rank) return 0;
    if (secret_draw(s->nonce, sizeof s->nonce)) return -EIO;
    memcpy(h.nonce, s->nonce, sizeof h.nonce);
    return net_write(s->fd, &h, sizeof h, 0);
}

static void let_in(meeting *m, int fd) {
    net_address from;
    stranger *s = find_place(m, 1);
    int rc = net_other_end(fd, &from);
    if (!rc && m->is_local && !net_is_loopback(&from)) rc = -EACCES;
    s->fd = fd;
    s->number = m->came++;
    if (!rc) rc = net_await(fd, sizeof(seat));
    if (!rc) rc = challenge(m, s);
    if (!rc) return;
    close(fd);
    s->fd = -1;
}

// Only a few at a time, so that those let in before have their turn. Where there is no place for another, or
// no descriptor, the first who came goes.
static void let_strangers_in(meeting *m) {
    int fd = 0;
    for (int i = 0; i < AT_ONCE && fd >= 0; i++) {
        if (!find_place(m, 1)) drop_first(m);
        fd = net_accept(m->listener);
        if (fd >= 0) let_in(m, fd);
    }
    if (fd >= 0 || fd == -EAGAIN || (is_full(fd) && drop_first(m))) return;
    FAIL(m, "rank %d (host %s) cannot take connections: %s%s", m->s->rank, m->seats[m->s->rank].host,
         strerror(-fd), is_full(fd) ? ": raise ulimit -n above twice the number of ranks" : "");
}

// What a look waits for.
typedef struct {
    struct pollfd *polls;
    int *owners;  // -1: the listener; r: rank r; ranks + i: stranger i
    int n;
} watch;

static void watch_for(watch *w, int owner, int fd) {
    if (fd < 0) return;  // poll takes no more entries than there may be open files
    w->polls[w->n] = (struct pollfd){ fd, POLLIN, 0 };
    w->owners[w->n++] = owner;
}

static void handle(meeting *m, int owner) {
    if (owner < 0)
        let_strangers_in(m);
    else if (owner < m->s->ranks)
        take(m, owner);
    else
        meet_stranger(m, &m->strangers[owner - m->s->ranks]);
}

// Waits until `until` at most for something to happen, and handles all that has. Before rank 0 has answered,
// this rank does not know whom to let in. New strangers come last, because they may take another's place.
static void look(meeting *m, double until) {
    double left_s = until - clock_now();
    int ranks = m->s->ranks, heard = m->s->rank ? 1 : ranks;
    int wait_ms = left_s < 0.5 ? (int)(left_s * 1e3) + 1 : 500;
    struct pollfd polls[1 + ranks + m->most];
    int owners[1 + ranks + m->most];
    watch w = { polls, owners, 0 };
    for (int r = 0; r < heard; r++) watch_for(&w, r, m->sockets[r]);
    for (int i = 0; i < m->most; i++) watch_for(&w, ranks + i, m->strangers[i].fd);
    watch_for(&w, -1, m->seats[0].pid ? m->listener : -1);
    if (poll(polls, (nfds_t)w.n, wait_ms < 0 ? 0 : wait_ms) < 0) {
        if (errno != EINTR)
            FAIL(m, "rank %d cannot wait for its connections: %s", m->s->rank, strerror(errno));
        return;
    }
    for (int i = 0; i < w.n; i++)
        if (polls[i].revents) handle(m, owners[i]);
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
    if (strcmp(h->version, me->version))
        FAIL(m,
             "%s runs version \"%s\", rank 0 (host %s) version \"%s\": install the same llmc_zero on all "
             "hosts",
             who, h->version, me->host, me->version);
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
    hang_up(m, h->rank);
    s->pid = 0;
}

// The rank can be reached at the address from which it came.
static void sit_down(meeting *m, int fd, const secret *key, seat *h) {
    net_address from;
    int rc = net_other_end(fd, &from);
    if (!rc) h->at = net_from(&from.any, h->port);
    m->sockets[h->rank] = fd;
    m->seats[h->rank] = *h;
    m->keys[h->rank] = *key;
    if (h->left_s > 0) m->deadline = earlier(m->deadline, clock_now() + h->left_s);
    if (!rc) rc = net_tune(fd, m->s->silence_s);
    if (!rc) rc = say_hello(m, fd, key, m->seats, 1);
    if (rc) lose(m, h->rank, rc);
}

// Who comes when the start has failed is told so, since nobody would answer afterwards.
static void take_hello(meeting *m, int fd, const secret *key) {
    seat h = m->in.seat, *me = &m->seats[0];
    int has_place = h.rank > 0 && h.rank < m->s->ranks;
    char why[sizeof m->why];
    if (h.job != me->job) {
        snprintf(why, sizeof why,
                 "rank 0 at %s (host %s pid %d) belongs to another job (%" PRIx64 ", this one is %" PRIx64
                 "): give each job a port or a file of its own",
                 m->where, me->host, me->pid, me->job, h.job);
        say(m, fd, key, NOT_MINE, why);
        close(fd);
        return;
    }
    if (has_place) forget_earlier(m, &h);
    check_hello(m, &h);
    if (!m->rc) return sit_down(m, fd, key, &h);
    say(m, fd, key, REPORT, zero_last_error());
    close(fd);
    if (has_place && !m->seats[h.rank].pid) m->seats[h.rank] = h;
}

// -------- what the other ranks hear

static void take_refusal(meeting *m) {
    zero_plain(m->in.words.text, sizeof m->in.words.text);
    snprintf(m->why, sizeof m->why, "%.639s", m->in.words.text);
    if (m->s->server) FAIL(m, "%s", m->why);
    hang_up(m, 0);
}

// An address that is loopback for rank 0 is on rank 0's machine.
static int take_seat(meeting *m) {
    seat *s = &m->in.seat;
    net_address zero;
    int family = s->at.any.sa_family, has_address = family == AF_INET || family == AF_INET6;
    if (s->rank < 0 || s->rank >= m->s->ranks || (s->rank && !has_address) || !is_sound(s)) return -EBADMSG;
    if (net_other_end(m->sockets[0], &zero)) return -ENOTCONN;
    if (net_is_loopback(&s->at)) s->at = net_from(&zero.any, s->port);
    if (s->at.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&s->at.v6.sin6_addr))
        s->at.v6.sin6_scope_id = zero.v6.sin6_scope_id;
    if (s->rank != m->s->rank) m->seats[s->rank] = *s;
    m->run = s->h.run;
    return 0;
}

static void take_higher(meeting *m, int fd) {
    int r = m->in.seat.rank;
    if (r <= m->s->rank || r >= m->s->ranks || m->sockets[r] >= 0 || net_tune(fd, m->s->silence_s))
        close(fd);
    else
        m->sockets[r] = fd;
}

// Rank 0 has the last word, because what another rank cannot do may follow from an earlier failure.
static void take_report(meeting *m, int r) {
    zero_plain(m->in.words.text, sizeof m->in.words.text);
    int failed = *m->in.words.text != 0;
    m->reported[r] = 1;
    if (failed && !r) m->rc = 0;
    if (failed) FAIL(m, "%s", m->in.words.text);
    m->told |= failed && !r;
}

// What comes on the connection to a rank. A message that is not due comes from a rank that has gone wrong.
static void take(meeting *m, int r) {
    int rc = hear(m, r), kind = (int)m->in.h.kind, is_seat = sizeof(head) + m->in.h.bytes == sizeof(seat);
    if (!rc && kind == REPORT) return take_report(m, r);
    if (!rc && kind == NOT_MINE && !r) return take_refusal(m);
    if (!rc) rc = kind == HELLO && is_seat && !r ? take_seat(m) : -EBADMSG;
    if (rc) lose(m, r, rc);
}

// -------- rank 0

// Tells all where they listen (HELLO), or that they are connected, or the failure.
static void tell_all(meeting *m, int kind) {
    char name[NAME];
    for (int r = 1; r < m->s->ranks; r++) {
        int fd = m->sockets[r];
        if (fd < 0 || (kind == HELLO && m->rc)) continue;
        int rc = kind == HELLO ? say_hello(m, fd, &m->keys[r], m->seats, m->s->ranks)
                               : say(m, fd, &m->keys[r], REPORT, m->rc ? zero_last_error() : "");
        if (rc) FAIL(m, "%s does not take what rank 0 says: %s", name_of(&m->seats[r], name), strerror(-rc));
    }
}

// Says in the file, if there is one, where rank 0 listens, and a key that only this user's ranks can read.
static void publish(meeting *m) {
    const seat *me = &m->seats[0];
    if (!m->s->file) return;
    snprintf(m->where, sizeof m->where, "%.200s:%d", me->host, me->port);
    m->card = (card){ .pid = me->pid, .port = me->port, .run = m->run, .node = me->node };
    memcpy(m->card.host, me->host, sizeof m->card.host);
    card_path(m->s->file, m->file);
    m->rc = secret_draw_text(m->card.key);
    m->secret = secret_add(m->secret, m->card.key, strlen(m->card.key));
    if (!m->rc) m->rc = card_write(m->file, &m->card);
}

// Of those who did not know the secret, for the sentence about ranks that have not come.
static const char *refusals(const meeting *m, char text[NAME]) {
    snprintf(text, NAME, "; %d that came did not know the key of the job, the last from %s", m->refused,
             m->last);
    return m->refused ? text : "";
}

// The ranks have at least a second to connect to each other. Rank 0 listens a little longer for the ranks
// that they have waited for in vain. A rank that has not reported by then is the one that is stuck. For a
// second rank 0 tells a failure to those who come late too, since nobody would answer them afterwards.
static void be_rank_0(meeting *m) {
    const rendezvous_settings *s = m->s;
    seat *me = &m->seats[0];
    char list[ZERO_LIST], text[NAME];
    publish(m);
    if (m->rc) return;
    if (wait_for(m, not_here, &m->deadline))
        FAIL(m, "%s of %d did not come within %.3g s: rank 0 waited at %s (host %s)%s", absent_ranks(m, list),
             s->ranks, s->timeout_s, m->where, me->host, refusals(m, text));
    me->left_s = m->deadline - clock_now() > 1 ? m->deadline - clock_now() : 1;
    double until = clock_now() + me->left_s + GRACE_S, late = earlier(m->deadline, clock_now() + LINGER_S);
    tell_all(m, HELLO);
    if (wait_for(m, not_reported, &until))
        FAIL(m,
             "%s: no word of being connected to the others within %.3g s, though all %d ranks were there: "
             "stopped, or a host without answer",
             absent_ranks(m, list), s->timeout_s, s->ranks);
    tell_all(m, REPORT);
    while (m->rc && find_absent(m, not_here) && clock_now() < late) look(m, late);
}

// -------- the other ranks

// Says hello to rank r, to which this one has just connected.
static int introduce(meeting *m, int r) {
    seat *me = &m->seats[m->s->rank];
    int rc = net_tune(m->sockets[r], m->s->silence_s);
    me->left_s = m->deadline - clock_now();
    return rc ? rc : say_hello(m, m->sockets[r], &m->keys[r], me, 1);
}

static int answer_challenge(meeting *m, double until) {
    int rc = receive(m, m->sockets[0], until);
    if (!rc && (m->in.h.kind != CHALLENGE || m->in.h.bytes)) rc = -EPROTO;
    if (rc) return rc;
    if (secret_draw(m->nonce, sizeof m->nonce)) return -EIO;
    m->keys[0] = key_of_nonces(m, m->in.h.nonce, m->nonce);
    return introduce(m, 0);
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
    if (rc) snprintf(m->why, sizeof m->why, "%s", card_fault(-rc));
    if (!rc && c->node == m->seats[m->s->rank].node)
        n = net_resolve("127.0.0.1", c->port, found, 1, &why, &for_good);
    for (int i = 0; i < c->n; i++) found[n++] = c->at[i];
    return n;
}

// Of the key that the user or the launcher gives, and of the one in the file.
static secret job_secret(const meeting *m) {
    const char *given = m->s->key ? m->s->key : "";
    secret s = secret_add((secret){ { 0 } }, given, strlen(given));
    return m->s->file && m->card.run ? secret_add(s, m->card.key, strlen(m->card.key)) : s;
}

// Waits ANSWER_S for an answer, because a file's address may belong to another program by now. A rank 0 that
// was only stopped takes the last of this rank's connections.
static void try_address(meeting *m, const net_address *to) {
    char text[NET_NAME];
    double until = earlier(m->deadline, clock_now() + ANSWER_S);
    int fd = net_connect(to, until);
    if (fd < 0) {
        snprintf(m->why, sizeof m->why, "%s: %s", net_text(to, text), strerror(-fd));
        return;
    }
    m->sockets[0] = fd;
    m->secret = job_secret(m);
    int rc = answer_challenge(m, until);
    if (!rc && wait_for(m, not_welcome, &until)) rc = -ETIMEDOUT;
    if (rc) lose(m, 0, rc);
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
        do m->sockets[r] = net_connect(to, until);
        while (is_full(m->sockets[r]) && drop_first(m));
        m->keys[r] = key_between(m, me, r);
        int rc = m->sockets[r] < 0 ? m->sockets[r] : introduce(m, r);
        if (rc)
            FAIL(m, "rank %d (host %s) cannot connect to rank %d (host %s) at %s: %s", me, m->seats[me].host,
                 r, m->seats[r].host, net_text(to, text), strerror(-rc));
    }
}

static int hears_0(const meeting *m) { return m->sockets[0] >= 0 && !m->told; }

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
    if (hears_0(m)) say(m, m->sockets[0], &m->keys[0], REPORT, m->rc ? zero_last_error() : "");
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
    if (me->port >= 0) return;
    FAIL(m,
         me->port == -EADDRINUSE
             ? "rank %d (host %s) cannot listen at port %d, which is in use, perhaps by another job "
               "(ss -ltnp shows it): give another port, in start.server or MASTER_PORT"
             : "rank %d (host %s) cannot listen at port %d: %s",
         m->s->rank, me->host, port, strerror(-me->port));
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
    if (s->key && strlen(s->key) < SECRET_LEAST)
        return zero_fail(ZERO_ERR_ARGUMENT,
                         "ZERO_JOB_KEY has %zu characters, which can be guessed: give it %d or more, as "
                         "openssl rand -hex 16 prints them",
                         strlen(s->key), SECRET_LEAST);
    if (!(s->timeout_s > 0)) return zero_refuse("comm.timeout_s", " %g: above 0", s->timeout_s);
    return s->ranks > 1 && s->server ? net_split(s->server, m->host, &m->port) : 0;
}

static void meet(meeting *m) {
    const rendezvous_settings *s = m->s;
    seat *me = &m->seats[s->rank];
    *me = (seat){ .job = s->job, .rank = s->rank, .ranks = s->ranks, .pid = (int32_t)getpid() };
    me->node = net_machine(me->host);
    snprintf(me->version, sizeof me->version, "%s", s->version ? s->version : "");
    snprintf(m->where, sizeof m->where, "%.300s", s->server ? s->server : s->file ? s->file : "");
    if (s->ranks == 1) return;
    m->rc = secret_draw(&m->run, sizeof m->run);
    m->run |= 1;  // 0 means none
    m->secret = job_secret(m);
    m->is_local = !strcmp(m->host, "localhost") || !strcmp(m->host, "::1") || !strncmp(m->host, "127.", 4);
    if (!m->rc) open_listener(m);
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
    m.strangers = malloc((size_t)m.most * sizeof *m.strangers);
    m.keys = calloc((size_t)s.ranks, sizeof *m.keys);
    m.reported = calloc((size_t)s.ranks, 2);
    m.absent = m.reported + s.ranks;
    for (int r = 0; r < s.ranks; r++) sockets[r] = -1;
    for (int i = 0; i < m.most && m.strangers; i++) m.strangers[i] = (stranger){ .fd = -1 };
    if (m.seats && m.strangers && m.keys && m.reported)
        meet(&m);
    else
        m.rc = zero_fail(ZERO_ERR_MEMORY, "out of memory for the start-up of %d ranks", s.ranks);
    zero_failure f = *zero_last_failure();
    for (int i = 0; i < m.most && m.strangers; i++)
        if (m.strangers[i].fd >= 0) close(m.strangers[i].fd);
    for (int r = 0; r < s.ranks; r++) {
        if (m.rc) hang_up(&m, r);
        if (m.rc) continue;
        peers[r] = (rendezvous_peer){ .node = m.seats[r].node, .pid = m.seats[r].pid };
        memcpy(peers[r].host, m.seats[r].host, sizeof peers[r].host);
    }
    if (m.listener >= 0) close(m.listener);
    if (m.run && s.file && !s.rank) card_remove(m.file, m.run);
    free(m.seats);
    free(m.strangers);
    free(m.keys);
    free(m.reported);
    f.rank = s.rank;
    f.lower = m.told ? s.rank : -1;
    return m.rc ? zero_fail_again(&f) : 0;
}
