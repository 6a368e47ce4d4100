// The phases of startup. Every failure is first reported to rank 0, which reports it to all.
#include "rendezvous.h"
#include "../base/clock.h"
#include "../base/error.h"
#include "start_file.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NAME = 160, ADDRESSES = START_FILE_ADDRESSES + 1, HEAR_S = 2, LINGER_S = 1, GRACE_S = 2, QUIET_S = 3 };
static const double call_s = 0.5;  // time limit of one connection attempt

typedef struct {
    const rendezvous_settings *s;
    party self;
    contact *contacts;         // (ranks + self.most) with each rank, then with strangers
    seat *seats;               // (ranks)
    int rc, told;              // the first failure; 1 if rank 0 has reported it
    double deadline, meet_by;  // for the startup; for the connections between the ranks
    start_file start;          // the file's contents, as last read or as written by rank 0
    char host[NET_HOST];       // of rank 0, from s->server
    int port;
    char where[320];      // rank 0's address or file, for messages
    char file[PATH_MAX];  // path of the start file, as last determined
    char why[640];        // why the last attempt to reach rank 0 failed
} meeting;

// Keeps only the first failure, which is the one to report.
#define FAIL(m, ...) ((m)->rc = (m)->rc ? (m)->rc : zero_fail(ZERO_ERR_COMM, __VA_ARGS__))

static double earlier(double a, double b) { return a < b ? a : b; }

// -------- the ranks for which this one waits

typedef int absence(const meeting *m, int r);
static int not_welcome(const meeting *m, int r) {
    return r == 0 && m->contacts[0].fd >= 0 && !m->seats[0].pid;
}
static int not_here(const meeting *m, int r) {
    return !m->seats[r].pid || (m->s->rank && !m->seats[0].left_s);
}
static int not_met(const meeting *m, int r) { return r != m->s->rank && m->contacts[r].state < MET; }
static int not_reported(const meeting *m, int r) {
    const contact *c = &m->contacts[r];
    return (m->s->rank == 0) == (r > 0) && c->fd >= 0 && c->state != REPORTED;
}

static int are_absent(const meeting *m, absence *is_absent) {
    for (int r = 0; r < m->s->ranks; r++)
        if (is_absent(m, r)) return 1;
    return 0;
}

static const char *absent_ranks(const meeting *m, absence *is_absent, char list[ZERO_LIST]) {
    char absent[m->s->ranks];
    for (int r = 0; r < m->s->ranks; r++) absent[r] = (char)is_absent(m, r);
    return zero_list_ranks(list, m->s->ranks, absent, m->seats->host, sizeof *m->seats);
}

static const char *name_of(const seat *s, char name[NAME]) {
    snprintf(name, NAME, "rank %d (host %s pid %d)", s->rank, s->host, s->pid);
    return name;
}

// -------- connections

static int say_hello(meeting *m, contact *to, int first, int n) {
    return contact_say(to, HELLO, &m->seats[first].h, n, sizeof *m->seats);
}

// Connects to rank r, which must then send CHALLENGE. Returns 0 or a negative errno. The attempt has a short
// limit: in a flood the other side drops connections, and the system would retry at growing intervals.
static int call(meeting *m, int r, const net_address *to, double until) {
    const double enough = earlier(until, clock_now() + call_s);
    int fd;
    do fd = net_connect(to, enough);
    while (net_is_out_of_files(fd) && strangers_drop(&m->self));
    int rc = fd < 0 ? fd : net_tune(fd, m->s->silence_s);
    m->contacts[r] = (contact){ .fd = fd, .state = CALLED, .rank = r };
    if (rc) contact_close(&m->contacts[r]);
    return rc;
}

// Connects to a lower rank. Retries, because a flood from this machine may use up its free ports for a
// moment.
static void call_lower(meeting *m, int r) {
    const seat *me = &m->seats[m->s->rank], *other = &m->seats[r];
    char text[NET_NAME];
    int rc = call(m, r, &other->at, m->meet_by);
    while ((rc == -EADDRNOTAVAIL || rc == -ETIMEDOUT) && clock_now() < m->meet_by) {
        clock_nap(0.02);
        rc = call(m, r, &other->at, m->meet_by);
    }
    if (rc)
        FAIL(m, "rank %d (host %s) cannot connect to rank %d (host %s) at %s: %s", me->rank, me->host, r,
             other->host, net_text(&other->at, text), strerror(-rc));
}

// Explains why the process at rank 0's address is not rank 0 of this job; NULL: it may be rank 0.
static const char *why_not_0(int error) {
    if (error == -EPROTO) return "is another program, not rank 0 of this job: give another port";
    if (error == -EPROTONOSUPPORT) return "runs another version: install the same llmc_zero on all hosts";
    if (error == -EACCES)
        return "has a different key from this rank, or belongs to another job: give all ranks of a job the "
               "same ZERO_JOB_KEY, or none, and each job a separate port or file";
    return NULL;
}

// Handles a connection that has ended or is unusable, for example one to an old address from a file.
// Reconnects to a lower rank, since that rank may have dropped this one as a stranger. error: a negative
// errno.
static void lose(meeting *m, int r, int error) {
    char name[NAME];
    const char *why = why_not_0(error);
    int is_wrong = why || error == -EBADMSG, is_met = m->contacts[r].state >= MET;
    contact_close(&m->contacts[r]);
    if (r && !is_met && !is_wrong && clock_now() < m->meet_by) return call_lower(m, r);
    if (m->seats[0].pid)
        FAIL(m, "%s ended while the ranks were connecting (%s)", name_of(&m->seats[r], name),
             is_wrong ? "it sent an invalid message" : strerror(-error));
    snprintf(m->why, sizeof m->why,
             why ? "the process there %s" : "it accepts connections but does not answer: %s",
             why ? why : strerror(-error));
    if (why && m->s->server) FAIL(m, "rank %d cannot join rank 0 at %s: %s", m->s->rank, m->where, m->why);
}

// -------- strangers that know the secret

// Fails if the sender of this HELLO cannot be a rank of this job.
static void check_hello(meeting *m, const seat *h) {
    int is_rank = h->rank >= 0 && h->rank < m->s->ranks;
    const seat *me = &m->seats[m->s->rank], *other = &m->seats[is_rank ? h->rank : 0];
    char who[NAME];
    name_of(h, who);
    if (strcmp(h->version, me->version))
        FAIL(m,
             "%s runs version \"%s\", rank %d (host %s) version \"%s\": install the same llmc_zero on all "
             "hosts",
             who, h->version, me->rank, me->host, me->version);
    else if (h->ranks != me->ranks)
        FAIL(m,
             "%s was started as one of %d ranks, rank %d (host %s pid %d) as one of %d: start all with the "
             "same number",
             who, h->ranks, me->rank, me->host, me->pid, me->ranks);
    else if (!is_rank)
        FAIL(m, "host %s pid %d claims to be rank %d: the ranks are 0 to %d", h->host, h->pid, h->rank,
             me->ranks - 1);
    else if (h->rank <= me->rank || m->contacts[h->rank].fd >= 0)
        FAIL(m, "two processes claim to be rank %d: host %s pid %d and host %s pid %d", h->rank, other->host,
             other->pid, h->host, h->pid);
}

// Returns 1 if this rank accepts the other. If the startup has failed, sends the failure to the new rank now,
// because no rank would answer later. A rank that timed out while this one was stopped connects again, and
// its last connection counts.
static int admit(meeting *m, const contact *c, seat *h) {
    int has_place = h->rank > m->s->rank && h->rank < m->s->ranks;
    const seat *s = &m->seats[has_place ? h->rank : 0];
    net_address from;
    if (has_place && s->pid == h->pid && s->node == h->node && s->port == h->port)
        contact_close(&m->contacts[h->rank]);
    check_hello(m, h);
    if (m->rc) contact_report(c, zero_last_error());
    if (!net_other_end(c->fd, &from)) h->at = net_from(&from.any, h->port);
    if (has_place && !s->pid) m->seats[h->rank] = *h;
    if (h->left_s > 0) m->deadline = earlier(m->deadline, clock_now() + h->left_s);
    return !m->rc;
}

// Reads a stranger's message, without waiting.
static void meet_stranger(meeting *m, contact *stranger) {
    int rc = contact_hear(&m->self, stranger, 0);
    seat h = m->self.in.seat;
    if (rc == -EACCES) return strangers_turn_away(&m->self, stranger);
    if (rc || !admit(m, stranger, &h)) return contact_close(stranger);
    contact *c = &m->contacts[h.rank];
    *c = *stranger;
    stranger->fd = -1;
    rc = net_tune(c->fd, m->s->silence_s);
    if (!rc) rc = say_hello(m, c, m->s->rank, 1);
    if (rc) lose(m, h.rank, rc);
}

// -------- messages from ranks

// Records a seat. A loopback address as seen from rank 0 is on rank 0's machine. Rank 0's first seat
// completes the secret of this startup, so that ranks of a different startup cannot connect.
static int take_seat(meeting *m) {
    seat *s = &m->self.in.seat;
    secret *known = &m->self.secret;
    net_address zero;
    int family = s->at.any.sa_family, has_address = family == AF_INET || family == AF_INET6;
    if (s->rank < 0 || s->rank >= m->s->ranks || (s->rank && !has_address)) return -EBADMSG;
    if (net_other_end(m->contacts[0].fd, &zero)) return -ENOTCONN;
    if (net_is_loopback(&s->at)) s->at = net_from(&zero.any, s->port);
    if (s->at.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&s->at.v6.sin6_addr))
        s->at.v6.sin6_scope_id = zero.v6.sin6_scope_id;
    if (!s->rank && !m->seats[0].pid) *known = secret_add(*known, &s->startup, sizeof s->startup);
    if (s->rank != m->s->rank) m->seats[s->rank] = *s;
    return 0;
}

// A failure reported by rank 0 replaces this rank's own, which may only be a consequence of it.
static void take_report(meeting *m, int r) {
    const char *text = m->self.in.words.text;
    m->contacts[r].state = REPORTED;
    if (*text && !r) m->rc = 0;
    if (*text) FAIL(m, "%s", text);
    m->told |= *text && !r;
}

// Handles a message from a rank. A rank that sends an unexpected message counts as lost.
static void take(meeting *m, int r) {
    contact *c = &m->contacts[r];
    int me = m->s->rank, rc = contact_hear(&m->self, c, clock_now() + HEAR_S);
    int kind = rc ? 0 : (int)m->self.in.h.kind;
    if (kind == CHALLENGE) {
        m->seats[me].left_s = m->deadline - clock_now();
        rc = say_hello(m, c, me, 1);
    } else if (kind == HELLO && me) {
        rc = r ? 0 : take_seat(m);
    } else if (kind == REPORT && (!r || !me)) {
        take_report(m, r);
    } else if (kind) {
        rc = -EBADMSG;
    }
    if (rc) lose(m, r, rc);
}

// -------- waiting

// Rank 0 listens to all ranks; the others listen to rank 0 and to ranks they have not met yet, because a rank
// they have met may already be sending data that belongs after the startup.
static int is_heard(const meeting *m, int i) {
    int is_rank = i < m->s->ranks;
    return m->contacts[i].fd >= 0 && (!is_rank || !m->s->rank || !i || m->contacts[i].state < MET);
}

static void let_strangers_in(meeting *m) {
    int rc = strangers_let_in(&m->self);
    if (rc)
        FAIL(m, "rank %d (host %s) cannot accept connections: %s%s", m->s->rank, m->seats[m->s->rank].host,
             strerror(-rc),
             net_is_out_of_files(rc) ? ": raise ulimit -n above twice the number of ranks" : "");
}

// Waits for events, at most until `until`, and handles them. Accepts no connections before rank 0 has
// answered, because until then this rank does not know which ones to accept. Handles new strangers last,
// because they may replace others.
static void look(meeting *m, double until) {
    double left_s = until - clock_now();
    int all = m->s->ranks + m->self.most, n = 0, wait_ms = left_s < 0.5 ? (int)(left_s * 1e3) + 1 : 500;
    struct pollfd polls[all + 1];  // only open sockets, because RLIMIT_NOFILE also limits the entries of poll
    int owners[all + 1];
    for (int i = 0; i < all; i++) {
        if (!is_heard(m, i)) continue;
        polls[n] = (struct pollfd){ m->contacts[i].fd, POLLIN, 0 };
        owners[n++] = i;
    }
    polls[n] = (struct pollfd){ m->self.listener, POLLIN, 0 };
    int heard = poll(polls, (nfds_t)(n + (m->seats[0].pid != 0)), wait_ms < 0 ? 0 : wait_ms);
    if (heard < 0 && errno != EINTR)
        FAIL(m, "rank %d cannot wait for its connections: %s", m->s->rank, strerror(errno));
    for (int i = 0; i < n && heard > 0; i++) {
        contact *c = &m->contacts[owners[i]];
        if (!polls[i].revents || c->fd != polls[i].fd) continue;
        if (owners[i] < m->s->ranks)
            take(m, owners[i]);
        else
            meet_stranger(m, c);
    }
    if (heard > 0 && polls[n].revents) let_strangers_in(m);
}

// Returns 1 if some ranks are still absent at *until; 0 if none are, or if this rank fails in the meantime. A
// new rank may bring m->deadline forward.
static int wait_for(meeting *m, absence *is_absent, const double *until) {
    int before = m->rc;
    while (m->rc == before && are_absent(m, is_absent)) {
        if (clock_now() > *until) return 1;
        look(m, *until);
    }
    return 0;
}

// -------- rank 0

// Sends every rank all seats (HELLO), or the report that all are connected, or the failure (REPORT).
static void tell_all(meeting *m, int kind) {
    char name[NAME];
    for (int r = 1; r < m->s->ranks; r++) {
        contact *c = &m->contacts[r];
        if (c->fd < 0 || (kind == HELLO && m->rc)) continue;
        int rc = kind == HELLO ? say_hello(m, c, 0, m->s->ranks)
                               : contact_report(c, m->rc ? zero_last_error() : "");
        if (rc)
            FAIL(m, "%s does not accept rank 0's messages: %s", name_of(&m->seats[r], name), strerror(-rc));
    }
}

// Combines the key from the user or the launcher, the job, and the key in the start file.
static void know_secret(meeting *m) {
    const rendezvous_settings *s = m->s;
    m->self.secret = secret_add((secret){ { 0 } }, s->key ? s->key : "", s->key ? strlen(s->key) : 0);
    m->self.secret = secret_add(m->self.secret, &s->job, sizeof s->job);
    if (m->start.pid) m->self.secret = secret_add(m->self.secret, &m->start.key, sizeof m->start.key);
}

// Writes the start file, if one is used.
static void publish(meeting *m) {
    const seat *me = &m->seats[0];
    if (!m->s->file) return;
    m->start = (start_file){ .pid = me->pid, .port = me->port, .node = me->node };
    memcpy(m->start.host, me->host, sizeof m->start.host);
    start_file_path(m->s->file, m->file);
    m->rc = start_file_write(m->file, &m->start);
}

// Rank 0 waits for the others, and reports a long wait to the program. Returns as wait_for.
static int wait_for_all(meeting *m) {
    const rendezvous_settings *s = m->s;
    const double quiet = earlier(m->deadline, clock_now() + QUIET_S);
    int connected = 0, late = wait_for(m, not_here, &quiet);
    for (int r = 0; r < s->ranks; r++) connected += !not_here(m, r);
    const double left = m->deadline - clock_now();
    if (late && s->waiting && left > 0) s->waiting(connected, s->ranks, left);
    return late && wait_for(m, not_here, &m->deadline);
}

// The ranks get at least a second to connect to each other. Their reports may name missing ranks, so rank 0
// waits a little longer for them; a rank that has not reported by then is stuck. After a failure, rank 0
// reports it for another second to ranks that connect late, because no rank would answer them afterwards.
static void be_rank_0(meeting *m) {
    const rendezvous_settings *s = m->s;
    seat *me = &m->seats[0];
    char list[ZERO_LIST], strangers[NAME] = "";
    publish(m);
    know_secret(m);
    if (m->rc) return;
    const int late = wait_for_all(m);
    if (m->self.refused)
        snprintf(strangers, NAME, "; %d connection(s) rejected for lack of the job's key, the last from %s",
                 m->self.refused, m->self.last);
    if (late)
        FAIL(m, "%s of %d did not connect within %.3g s: rank 0 waited at %s (host %s)%s",
             absent_ranks(m, not_here, list), s->ranks, s->timeout_s, m->where, me->host, strangers);
    me->left_s = m->deadline - clock_now() > 1 ? m->deadline - clock_now() : 1;
    double until = clock_now() + me->left_s + GRACE_S, last = earlier(m->deadline, clock_now() + LINGER_S);
    tell_all(m, HELLO);
    if (!m->rc && wait_for(m, not_reported, &until))
        FAIL(m,
             "%s did not report its connections within %.3g s, though all %d ranks had connected to rank 0: "
             "stopped, or its host does not answer",
             absent_ranks(m, not_reported, list), s->timeout_s, s->ranks);
    tell_all(m, REPORT);
    if (m->rc) wait_for(m, not_here, &last);
}

// -------- the other ranks

static int resolve_server(meeting *m, net_address at[ADDRESSES]) {
    const char *why;
    int n = net_resolve(m->host, m->port, at, ADDRESSES, &why);
    if (n > 0) return n;
    snprintf(m->why, sizeof m->why, "its host \"%s\" does not resolve: %s", m->host, why);
    if (n < 0)
        FAIL(m, "rank %d: rank 0 is at %s, but host \"%s\" does not resolve: %s", m->s->rank, m->where,
             m->host, why);
    return 0;
}

// Returns the age of this process in seconds; 0 if the system does not report it.
static double process_age(void) {
    long long ticks = 0;  // from the system's start to the process's: field 22, after its name
    FILE *f = fopen("/proc/self/stat", "re");
    int found = f ? fscanf(f, "%*d (%*[^)]) %*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%lld",
                           &ticks)
                  : 0;
    if (f) fclose(f);
    return found == 1 ? clock_of(CLOCK_BOOTTIME) - (double)ticks / (double)sysconf(_SC_CLK_TCK) : 0;
}

// Fails if the file was written after this process began, so by rank 0 of this startup, and that rank has
// ended. An older file may be left from an earlier run. Called only after the file's addresses have failed,
// because the pid of a rank 0 in a different container means nothing here.
static void check_writer(meeting *m, const start_file *c) {
    int is_here = c->node == m->seats[m->s->rank].node, is_gone = kill(c->pid, 0) && errno == ESRCH;
    if (is_here && is_gone && clock_of(CLOCK_REALTIME) - c->written < process_age())
        FAIL(m, "rank %d: rank 0 (host %s pid %d) has ended since it wrote %s", m->s->rank, c->host, c->pid,
             m->file);
}

// Collects the known addresses of rank 0, and returns their number.
static int candidates(meeting *m, net_address *found) {
    const struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int n = 0;
    start_file *c = &m->start;
    if (m->s->server) return resolve_server(m, found);
    start_file_path(m->s->file, m->file);
    int rc = start_file_read(m->file, c), is_here = c->node == m->seats[m->s->rank].node;
    if (rc)
        snprintf(m->why, sizeof m->why, "%s",
                 rc == -ENOENT ? "it does not exist: rank 0, which writes it, has not started, or its host "
                                 "sees another folder"
                               : start_file_fault(-rc));
    if (!rc && is_here) found[n++] = net_from((const struct sockaddr *)&loopback, c->port);
    for (int i = 0; i < c->n; i++) found[n++] = c->at[i];
    return n;
}

// Waits only ANSWER_S for an answer, because a different program may use the file's address now. If rank 0
// was only stopped, it accepts the last of this rank's connections.
static void try_address(meeting *m, const net_address *to) {
    char text[NET_NAME];
    double until = earlier(m->deadline, clock_now() + ANSWER_S);
    int rc = call(m, 0, to, until);
    if (rc)
        snprintf(m->why, sizeof m->why, "%s: %s", net_text(to, text), strerror(-rc));
    else if (wait_for(m, not_welcome, &until))
        lose(m, 0, -ETIMEDOUT);
}

static void not_found(meeting *m) {
    const rendezvous_settings *s = m->s;
    const start_file *c = &m->start;
    if (s->server)
        FAIL(m,
             "rank %d: rank 0 does not answer at %s within %.3g s (%s): is it running there, and is the port "
             "open?",
             s->rank, m->where, s->timeout_s, m->why);
    else if (!c->pid)
        FAIL(m, "rank %d cannot use start.file %s within %.3g s: %s", s->rank, m->file, s->timeout_s, m->why);
    else
        FAIL(m,
             "rank %d: start.file %s is stale: rank 0 on host %s (pid %d) wrote it %.0f s ago and no longer "
             "answers (%s): remove the file, and check why rank 0 of this run wrote no other",
             s->rank, m->file, c->host, c->pid, clock_of(CLOCK_REALTIME) - c->written, m->why);
}

// Retries until rank 0 accepts this rank. Rank 0 may start later, and until then the file may be an old one.
static void find_rank_0(meeting *m) {
    for (double pause = 0.02; !m->rc; pause = pause < 0.3 ? pause * 1.5 : pause) {
        net_address at[ADDRESSES];
        int n = candidates(m, at);
        know_secret(m);
        for (int i = 0; i < n && !m->rc && !m->seats[0].pid; i++) try_address(m, &at[i]);
        if (m->seats[0].pid) return;
        if (!m->rc && m->start.pid) check_writer(m, &m->start);
        if (clock_now() + pause > m->deadline)
            not_found(m);
        else
            clock_nap(pause);
    }
}

static void be_another(meeting *m) {
    char list[ZERO_LIST];
    int me = m->s->rank;
    find_rank_0(m);
    double until = m->deadline + GRACE_S;
    if (!m->rc && wait_for(m, not_here, &until))
        FAIL(m, "rank %d: rank 0 at %s did not start the ranks within %.3g s", me, m->where, m->s->timeout_s);
    if (m->rc) return;
    m->meet_by = clock_now() + m->seats[0].left_s;
    until = m->meet_by + GRACE_S + 1;
    for (int r = 1; r < me && !m->rc; r++) call_lower(m, r);
    if (!m->rc && wait_for(m, not_met, &m->meet_by))
        FAIL(m, "rank %d timed out waiting for %s to connect: stopped, or its host does not answer", me,
             absent_ranks(m, not_met, list));
    if (m->contacts[0].fd >= 0 && !m->told) contact_report(&m->contacts[0], m->rc ? zero_last_error() : "");
    if (wait_for(m, not_reported, &until))
        FAIL(m, "rank %d: rank 0 at %s did not report whether all ranks are connected", me, m->where);
}

// -------- all ranks

// Starts to listen: rank 0 at the given port, the others at any free port.
static void open_door(meeting *m) {
    seat *me = &m->seats[m->s->rank];
    int server = m->s->server && !m->s->rank, port = server ? m->port : 0;
    net_address at[ADDRESSES];
    m->self.is_local = !strcmp(m->host, "localhost") || !strcmp(m->host, "::1") ||
                       !strncmp(m->host, "127.", 4);
    if (server) resolve_server(m, at);  // to fail early: the others could not resolve it either
    m->self.listener = net_listen(port, m->self.most);
    me->port = m->self.listener < 0 ? m->self.listener : net_port(m->self.listener);
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
        return zero_refuse("", "rank %d of %d: the last rank is %d", s->rank, s->ranks, s->ranks - 1);
    if (s->ranks > 1 && !s->server == !s->file)
        return zero_refuse(
            "start.server start.file",
            ", the address of rank 0 as host:port, or start.file, a file that all %d ranks see, is "
            "needed: one of the two",
            s->ranks);
    if (s->file && strlen(s->file) > PATH_MAX - 64)
        return zero_refuse("start.file", " %.60s...: the name is too long", s->file);
    if (s->key && strlen(s->key) < SECRET_LEAST)
        return zero_fail(ZERO_ERR_ARGUMENT,
                         "ZERO_JOB_KEY has %zu characters, which is easy to guess: use at least %d, for "
                         "example from openssl rand -hex 16",
                         strlen(s->key), SECRET_LEAST);
    if (!(s->timeout_s > 0)) return zero_refuse("comm.timeout_s", " %g: above 0", s->timeout_s);
    return s->ranks > 1 && s->server ? net_split(s->server, m->host, &m->port) : 0;
}

static void meet(meeting *m) {
    const rendezvous_settings *s = m->s;
    seat *me = &m->seats[s->rank];
    *me = (seat){ .rank = s->rank, .ranks = s->ranks, .pid = (int32_t)getpid() };
    me->node = net_machine(me->host);
    snprintf(me->version, sizeof me->version, "%s", s->version ? s->version : "");
    snprintf(m->where, sizeof m->where, "%.300s", s->server ? s->server : s->file ? s->file : "");
    if (s->ranks == 1) return;
    m->rc = secret_draw(&me->startup, sizeof me->startup);
    if (!m->rc) open_door(m);
    if (m->rc) return;
    if (s->rank)
        be_another(m);
    else
        be_rank_0(m);
}

// Gives the caller its sockets and peers, and closes the rest.
static void part(meeting *m, int *sockets, rendezvous_peer *peers) {
    int ranks = m->s->ranks;
    for (int i = 0; i < ranks + m->self.most && m->contacts; i++)
        if (m->rc || i >= ranks) contact_close(&m->contacts[i]);
    for (int r = 0; r < ranks && !m->rc; r++) {
        sockets[r] = m->contacts[r].fd;
        peers[r] = (rendezvous_peer){ .node = m->seats[r].node, .pid = m->seats[r].pid };
        memcpy(peers[r].host, m->seats[r].host, sizeof peers[r].host);
    }
    if (m->self.listener >= 0) close(m->self.listener);
    if (m->start.pid && !m->s->rank) start_file_remove(m->file, &m->start);
    free(m->contacts);
    free(m->seats);
}

int rendezvous(const rendezvous_settings *settings, int *sockets, rendezvous_peer *peers) {
    rendezvous_settings s = *settings;
    meeting m = { .s = &s, .self = { .rank = s.rank, .listener = -1 }, .why = "no attempt" };
    ZERO_TRY(check_settings(&m));
    if (s.silence_s <= 0) s.silence_s = RENDEZVOUS_SILENCE_S;
    m.deadline = clock_now() + s.timeout_s;
    m.self.most = s.ranks + STRANGERS;
    m.contacts = calloc((size_t)(s.ranks + m.self.most), sizeof *m.contacts);
    m.seats = calloc((size_t)s.ranks, sizeof *m.seats);
    m.self.strangers = m.contacts + s.ranks;
    for (int i = 0; i < s.ranks + m.self.most && m.contacts; i++) m.contacts[i].fd = -1;
    if (m.contacts && m.seats)
        meet(&m);
    else
        m.rc = zero_fail(ZERO_ERR_MEMORY, "out of memory for the start-up of %d ranks", s.ranks);
    failure_record f = *zero_failed();
    part(&m, sockets, peers);
    f.fields.rank = s.rank;
    f.lower = m.told ? s.rank : -1;
    return m.rc ? zero_fail_again(&f) : 0;
}
