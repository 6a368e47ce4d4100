// Messages over one TCP connection between every two ranks. On a connection frames follow each other: a head,
// its bytes, and a tail that says whether the bytes are good. So a rank that fails in the middle of a frame
// can still end it, as void, and say why the job is over.
//
// While a rank waits it listens to all others, so that the end of any of them is noticed at once. Of a rank
// that is ahead it reads only the head of the next frame, and leaves the bytes in the socket until they are
// due.
#include "late.h"
#include "net.h"
#include "../error.h"
#include "sockets.h"
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FRAME_MAGIC = 0x4c5a4652, GOOD = 0x600d600d, VOID = 0x0bad0bad, SENTENCE = 640, SINK = 1 << 16 };
enum { MOST_RANKS = 1 << 16 };          // what a rank notes of each is on the stack
enum { DATA = 1, END, GOODBYE, LATE };  // END: the job is over; status and sentence are those of rank `root`
static const double spin_s = 50e-6, farewell_s = 1, second_s = 2, claim_s = 1;

typedef struct {
    uint32_t magic, kind, number;
    int32_t what, root, status;
    uint64_t bytes;
} frame;
typedef struct {
    frame f;
    char *data;
    uint32_t tail;
    size_t done;
    int busy;
} flow;  // data NULL: bytes that no longer matter

typedef struct {
    int fd;                    // -1: over, or this rank
    int gone, error, goodbye;  // ended, with or without goodbye; errno or 0
    int ended;                 // has said END
    int late;                  // has said LATE: HEARD or HEARD_LATE
    int deaf;             // errno: it takes nothing any more; what it has said may still be there to be read
    flow out, in;         // in.busy: its data belong to the exchange under way
    char note[SENTENCE];  // of its END
} peer;

typedef struct {
    pthread_mutex_t lock;  // around all of this, for as long as an exchange takes
    atomic_int ending;     // this rank ends the job, from another thread than the one that exchanges
    peer *peers;
    struct pollfd *polls;
    uint32_t exchanges;
    int silence_s;
    double looked;               // for hosts that are silent
    int given_up, failed, told;  // this rank has left an exchange; has failed; has told the others
    int ended_by, status;        // the rank that has ended the job; -1: none
    char sentence[SENTENCE], ended_why[SENTENCE];  // of this rank's failure, of that rank's
} mesh;

static mesh *mesh_of(const comm *c) { return c->connection; }

// -------- frames

static size_t frame_bytes(const flow *w) { return sizeof w->f + w->f.bytes + sizeof w->tail; }
static int has_head(const flow *w) { return w->done >= sizeof w->f; }
// Of one that is not due the bytes are left where they are; but this rank has given up: then all is read,
// since the END may be behind it.
static int is_ahead(const mesh *m, const peer *p) {
    return has_head(&p->in) && p->in.f.kind == DATA && !p->in.busy && !m->given_up;
}

static void lose(peer *p, int error) {
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    p->gone = !p->goodbye;
    p->error = error;
}

// What is left of data and tail from w->done on, which lies behind the head; of bytes that do not matter,
// only a piece.
static int rest(flow *w, struct iovec *parts) {
    static char sink[SINK];
    int n = 0;
    size_t at = w->done - sizeof w->f, left = at < w->f.bytes ? w->f.bytes - at : 0,
           over = at - (w->f.bytes - left);
    if (left)
        parts[n++] = w->data ? (struct iovec){ w->data + at, left }
                             : (struct iovec){ sink, left < SINK ? left : SINK };
    if (w->data || left <= SINK)
        parts[n++] = (struct iovec){ (char *)&w->tail + over, sizeof w->tail - over };
    return n;
}

static void send_some(peer *p) {
    flow *w = &p->out;
    struct iovec parts[3] = { { (char *)&w->f + w->done, sizeof w->f - w->done } };
    flow behind = *w;
    int n = 0;
    if (!has_head(w)) behind.done = sizeof w->f, n = 1;
    n += rest(&behind, parts + n);
    struct msghdr m = { .msg_iov = parts, .msg_iovlen = (size_t)n };
    ssize_t sent = sendmsg(p->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
        w->done += (size_t)sent;
        w->busy = w->done < frame_bytes(w);
    } else if (errno != EAGAIN && errno != EINTR)
        p->deaf = errno;
}

static void finish_frame(mesh *m, int r) {
    peer *p = &m->peers[r];
    flow *w = &p->in;
    if (w->f.kind == GOODBYE) p->goodbye = 1;
    if (w->f.kind == END) p->ended = 1;
    if (w->f.kind == LATE) p->late = w->f.status ? HEARD_LATE : HEARD;
    if (w->f.kind == END && (m->ended_by < 0 || w->f.root < m->ended_by)) {
        m->ended_by = w->f.root;
        m->status = w->f.status;
        p->note[sizeof p->note - 1] = 0;
        memcpy(m->ended_why, p->note, sizeof m->ended_why);
    }
    int unfinished = w->f.kind != DATA || w->tail != GOOD;  // then what is due is still to come
    w->done = 0;
    if (unfinished) return;
    w->busy = 0;
    w->data = NULL;  // the caller's memory is its own again
}

// Reads what is there, up to the end of a frame at most; of bytes that are not due, nothing. 1: something
// came.
static int receive_some(mesh *m, int r) {
    peer *p = &m->peers[r];
    flow *w = &p->in;
    char *due = w->data;
    struct iovec parts[2] = { { (char *)&w->f + w->done, sizeof w->f - w->done } };
    int n = 1;
    if (has_head(w) && w->f.kind != DATA) w->data = p->note;
    if (has_head(w)) n = rest(w, parts);
    struct msghdr h = { .msg_iov = parts, .msg_iovlen = (size_t)n };
    ssize_t got = recvmsg(p->fd, &h, MSG_DONTWAIT);
    w->data = due;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (got <= 0) return lose(p, got ? errno : 0), 1;
    w->done += (size_t)got;
    int wrong = has_head(w) &&
                (w->f.magic != FRAME_MAGIC || (w->f.kind != DATA && w->f.bytes > sizeof p->note));
    if (wrong)
        lose(p, EBADMSG);
    else if (has_head(w) && w->done == frame_bytes(w))
        finish_frame(m, r);
    return 1;
}

// All connections take one step. 1: something has moved.
static int progress(const comm *c, mesh *m) {
    int moved = 0;
    for (int r = 0; r < c->ranks; r++) {
        peer *p = &m->peers[r];
        size_t before = p->out.done;
        if (p->fd >= 0 && p->out.busy && !p->deaf) send_some(p);
        moved |= p->out.done != before;
        if (p->fd >= 0 && !is_ahead(m, p))
            moved |= receive_some(m, r);
        else if (p->fd >= 0 && p->deaf)
            lose(p, p->deaf);
    }
    return moved;
}

static void sleep_until_something(const comm *c, mesh *m, double deadline) {
    double left = deadline - comm_now();
    for (int r = 0; r < c->ranks; r++) {
        const peer *p = &m->peers[r];
        int events = (is_ahead(m, p) ? 0 : POLLIN) | (p->out.busy && !p->deaf ? POLLOUT : 0);
        m->polls[r] = (struct pollfd){ events ? p->fd : -1, (short)events, 0 };
    }
    poll(m->polls, (nfds_t)c->ranks,
         left <= 0    ? 0
         : left > 0.1 ? 100
                      : (int)(left * 1e3) + 1);  // any return: look again
}

// Of a host that is gone nobody says so.
static void lose_silent(const comm *c, mesh *m) {
    double now = comm_now();
    if (now - m->looked < 1) return;
    m->looked = now;
    for (int r = 0; r < c->ranks; r++)
        if (m->peers[r].fd >= 0 && net_is_silent(m->peers[r].fd, m->silence_s)) lose(&m->peers[r], ETIMEDOUT);
}

static void queue(peer *p, frame f, char *data) {
    f.magic = FRAME_MAGIC;
    p->out = (flow){ f, data, GOOD, 0, 1 };
}

// -------- failures

// The caller's buffers are its own again. A frame that has begun ends as void.
static void abandon_exchange(comm *c) {
    mesh *m = mesh_of(c);
    m->given_up = 1;
    for (int r = 0; r < c->ranks; r++) {
        flow *out = &m->peers[r].out, *in = &m->peers[r].in;
        if (out->busy && out->done <= sizeof out->f + out->f.bytes) out->tail = VOID;
        if (out->busy && !out->done) out->busy = 0;
        out->data = NULL;
        in->data = NULL;
        in->busy = 0;
    }
}

static int give_up(comm *c) {
    mesh *m = mesh_of(c);
    snprintf(m->sentence, sizeof m->sentence, "%s", zero_last_error());
    m->failed = 1;
    abandon_exchange(c);
    return ZERO_ERR_COMM;
}

static int fail_gone(const comm *c, int r, const comm_exchange *x) {
    const mesh *m = mesh_of(c);
    const peer *p = &m->peers[r];
    char why[160] = "its connection ended";
    if (p->error && p->error != ECONNRESET && p->error != EPIPE)
        snprintf(why, sizeof why, p->error == ETIMEDOUT ? "nothing came from its host any more (%s)" : "%s",
                 strerror(p->error));
    char in[COMM_WHERE] = "";
    if (!x) return zero_fail(ZERO_ERR_COMM, "rank %d (host %s) is gone: %s", r, c->hosts[r], why);
    return zero_fail(ZERO_ERR_COMM,
                     "rank %d (host %s) is gone: %s while rank %d (host %s) waited for it in %s", r,
                     c->hosts[r], why, c->rank, c->hosts[c->rank], comm_where(c, *x, in));
}

static int fail_ended(const comm *c) {
    return zero_fail(ZERO_ERR_COMM, "rank %d ended the job: %s", mesh_of(c)->ended_by, mesh_of(c)->ended_why);
}

static int fail_late(comm *c, comm_exchange x) {
    char missing[c->ranks];
    for (int r = 0; r < c->ranks; r++)
        missing[r] = mesh_of(c)->peers[r].in.busy || mesh_of(c)->peers[r].out.busy;
    return comm_fail_late(c, x, missing);
}

// 0, or what one of the others has done to this exchange.
static int check_peers(comm *c, comm_exchange x, const frame *mine) {
    mesh *m = mesh_of(c);
    if (m->ended_by >= 0) return fail_ended(c);
    for (int r = 0; r < c->ranks; r++) {
        const peer *p = &m->peers[r];
        const frame *f = &p->in.f;
        if (p->gone) return fail_gone(c, r, &x);
        if (p->goodbye && (p->in.busy || p->out.busy))
            return zero_fail(
                ZERO_ERR_COMM,
                "rank %d (host %s) has ended in order while rank %d waited for it in %s: all ranks must make "
                "the same calls",
                r, c->hosts[r], c->rank, comm_where(c, x, (char[COMM_WHERE]){ 0 }));
        if (!p->in.busy || !has_head(&p->in) || f->kind != DATA) continue;
        if (f->number != mine->number || f->what != mine->what || f->root != mine->root ||
            f->bytes != mine->bytes)
            return zero_fail(
                ZERO_ERR_COMM,
                "rank %d and rank %d are in different collectives (%s of %zu bytes, %s of %zu bytes): all "
                "ranks must call the same hooks in the same order, in validation and sampling too",
                c->rank, r, comm_exchange_name(x), (size_t)mine->bytes,
                f->what >= 0 && f->what <= EXCHANGE_BARRIER ? comm_exchange_name((comm_exchange)f->what)
                                                            : "?",
                (size_t)f->bytes);
    }
    return 0;
}

// -------- exchange

// A broadcast's root may itself be waiting, for a rank that it can name: it is given the time to say so.
static double limit_of(const comm *c, comm_exchange x, int root) {
    double grace = c->timeout_s / 5 < 1 ? c->timeout_s / 5 : 1;
    return c->timeout_s + (x == EXCHANGE_ROOT && c->rank != root ? grace : 0);
}

// A head that has come already is checked before any byte is read into the caller's memory.
static int wait_all(comm *c, comm_exchange x, const frame *mine) {
    mesh *m = mesh_of(c);
    double moved = comm_now(), limit = limit_of(c, x, mine->root), waited;
    comm_patience patience = comm_start_waiting();
    for (;;) {
        int busy = 0;
        waited = comm_waited(&patience);
        ZERO_TRY(check_peers(c, x, mine));
        int something = progress(c, m);
        for (int r = 0; r < c->ranks; r++) busy |= m->peers[r].in.busy | m->peers[r].out.busy;
        if (!busy) return 0;
        if (waited > limit) return fail_late(c, x);
        if (m->ending) return zero_fail(ZERO_ERR_COMM, "rank %d ends the job", c->rank);
        double now = comm_now();
        lose_silent(c, m);
        if (something)
            moved = now;
        else if (now - moved > spin_s)
            sleep_until_something(c, m, now + limit - waited);
    }
}

static int exchange(comm *c, comm_exchange x, int root, char *const *send, char *const *receive,
                    size_t bytes) {
    mesh *m = mesh_of(c);
    frame f = { .kind = DATA, .number = m->exchanges++, .what = x, .root = root, .bytes = bytes };
    if (m->given_up && !m->failed) give_up(c);  // what this rank has failed of is its last sentence
    if (m->failed) return zero_fail(ZERO_ERR_COMM, "%s", m->sentence);
    for (int r = 0; r < c->ranks; r++) {
        if (r == c->rank) continue;
        if (x != EXCHANGE_ROOT || c->rank == root) queue(&m->peers[r], f, bytes ? send[r] : NULL);
        if (x == EXCHANGE_ROOT && r != root) continue;
        m->peers[r].in.data = bytes ? receive[r] : NULL;
        m->peers[r].in.busy = 1;
    }
    int rc = wait_all(c, x, &f);
    if (rc && m->ending)
        abandon_exchange(c);  // what the job ends of is told by the other thread
    else if (rc)
        give_up(c);
    return rc;
}

static int tcp_exchange(comm *c, comm_exchange x, int root, char *const *send, char *const *receive,
                        size_t bytes) {
    mesh *m = mesh_of(c);
    pthread_mutex_lock(&m->lock);
    int rc = exchange(c, x, root, send, receive, bytes);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

// Of a rank that is ahead, its next frame says that it is there.
static int hear(comm *c, mesh *m, int timed_out, char *heard) {
    comm_patience patience = comm_start_waiting();
    memset(heard, HEARD_NOTHING, (size_t)c->ranks);
    heard[c->rank] = timed_out ? HEARD_LATE : HEARD;
    for (int r = 0; r < c->ranks; r++)
        if (is_ahead(m, &m->peers[r])) heard[r] = HEARD;
    abandon_exchange(c);
    for (int r = 0; r < c->ranks; r++)
        if (m->peers[r].fd >= 0)
            queue(&m->peers[r], (frame){ .kind = LATE, .root = c->rank, .status = timed_out }, NULL);
    for (int left = 1; left && m->ended_by < 0 && comm_waited(&patience) < comm_hear_s;) {
        left = 0;
        if (!progress(c, m)) net_nap(1e-3);
        for (int r = 0; r < c->ranks; r++) {
            if (m->peers[r].late) heard[r] = (char)m->peers[r].late;
            left |= m->peers[r].fd >= 0 && (!heard[r] || m->peers[r].out.busy);
        }
    }
    return m->ended_by < 0 ? 0 : fail_ended(c);
}

static int tcp_give_up(comm *c, int timed_out, char *heard) {
    mesh *m = mesh_of(c);
    pthread_mutex_lock(&m->lock);
    int rc = m->failed || m->ended_by >= 0 ? ZERO_ERR_COMM : hear(c, m, timed_out, heard);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

// -------- end

// Says a last frame to all, and waits, not for long, until their machines have it: after that, closing a
// socket takes nothing back.
static void say_last(comm *c, int kind, int from, int status, char *text) {
    mesh *m = mesh_of(c);
    frame f = { .kind = (uint32_t)kind, .root = from, .status = status, .bytes = strlen(text) + 1 };
    comm_patience patience = comm_start_waiting();
    int told[c->ranks], left = 1;
    memset(told, 0, sizeof told);
    while (left && comm_waited(&patience) < farewell_s) {
        progress(c, m);
        left = 0;
        for (int r = 0; r < c->ranks; r++) {
            peer *p = &m->peers[r];
            int unacknowledged = 0;
            if (p->fd < 0 || p->deaf || p->goodbye) continue;
            if (!p->out.busy && told[r]++ == 0) queue(p, f, text);
            if (p->out.busy || ioctl(p->fd, SIOCOUTQ, &unacknowledged)) unacknowledged = 1;
            left |= unacknowledged;
        }
        if (left) net_nap(200e-6);
    }
}

// What this rank has been told it passes on: its end may reach a third rank before the first teller's words
// do, and would look like the cause.
static void tell_end(comm *c, int status) {
    mesh *m = mesh_of(c);
    int other = m->ended_by >= 0;
    if (m->told++) return;
    if (!m->failed && !*zero_last_error()) zero_fail(ZERO_ERR_COMM, "it gave no reason");
    if (!m->failed) give_up(c);
    say_last(c, END, other ? m->ended_by : c->rank, other ? m->status : status,
             other ? m->ended_why : m->sentence);
}

// An exchange that another thread is in ends for it.
static void take_over(comm *c) {
    mesh_of(c)->ending = 1;
    pthread_mutex_lock(&mesh_of(c)->lock);
    mesh_of(c)->given_up = 1;
}

static void end(comm *c, int status) {
    tell_end(c, status);
    fflush(NULL);
    _exit(status);
}

// Not before the rank that speaks has: launchers kill it as soon as any rank ends.
static void end_after_speaker(comm *c) {
    const mesh *m = mesh_of(c);
    double until = comm_now() + second_s;
    tell_end(c, m->status);
    while (m->ended_by < c->ranks && m->peers[m->ended_by].fd >= 0 && comm_now() < until) {
        while (progress(c, mesh_of(c))) {}
        net_nap(5e-3);
    }
    end(c, m->status);
}

static void tcp_abort(comm *c, int status) {
    take_over(c);
    end(c, status);
}

static void tcp_close(comm *c, int clean) {
    mesh *m = mesh_of(c);
    if (!m) return;
    if (m->peers && m->polls && clean && !m->failed)
        say_last(c, GOODBYE, c->rank, 0, (char[]){ "" });
    else if (m->peers && m->polls)
        tell_end(c, 1);
    for (int r = 0; m->peers && r < c->ranks; r++)
        if (m->peers[r].fd >= 0) close(m->peers[r].fd);
    pthread_mutex_destroy(&m->lock);
    free(m->peers);
    free(m->polls);
    free(m);
    free(c->hosts);
    c->connection = NULL;
    c->hosts = NULL;
}

static int look_for_lost(comm *c, const comm_exchange *in) {
    mesh *m = mesh_of(c);
    while (progress(c, m)) {}
    lose_silent(c, m);
    if (m->ended_by >= 0) return fail_ended(c), m->ended_by;
    for (int r = 0; r < c->ranks; r++)
        if (m->peers[r].gone) return fail_gone(c, r, in), r;
    return -1;
}

// A thread that is in an exchange looks for itself.
static int tcp_lost(comm *c, const comm_exchange *in) {
    mesh *m = mesh_of(c);
    if (pthread_mutex_trylock(&m->lock)) return -1;
    int lost = look_for_lost(c, in);
    pthread_mutex_unlock(&m->lock);
    return lost;
}

static int has_unheard_lower(const comm *c) {
    int unheard = 0;
    for (int r = 0; r < c->rank; r++) unheard |= mesh_of(c)->peers[r].fd >= 0 && !mesh_of(c)->peers[r].ended;
    return unheard;
}

// This rank has said END to all. A lower one may have done so at the same moment: then that one speaks. Else
// it passes this one's on.
static void give_way(comm *c) {
    const mesh *m = mesh_of(c);
    for (double until = comm_now() + claim_s; has_unheard_lower(c) && comm_now() < until;) {
        while (progress(c, mesh_of(c))) {}
        if (m->ended_by >= 0 && m->ended_by < c->rank) end_after_speaker(c);
        net_nap(1e-3);
    }
    if (m->ended_by >= 0 && m->ended_by < c->rank) end_after_speaker(c);
}

// The rank that speaks tells the others at once that the job is over, with status 1. Where nothing else says
// who that is, a rank waits its turn after the lower ones that are still connected; a rank that knows it is
// not the first, longer. A rank that hears of the job's end ends here, with the teller's status, as MPI would
// end it, when the teller has spoken.
static int tcp_first_to_fail(comm *c, int first) {
    mesh *m = mesh_of(c);
    double start = comm_now();
    take_over(c);
    for (int before = first != 1; before;) {
        while (progress(c, m)) {}
        if (m->ended_by >= 0) end_after_speaker(c);
        before = 0;
        for (int r = 0; r < c->rank; r++) before += m->peers[r].fd >= 0;
        if (comm_now() - start > (first ? comm_turn_s(before) : second_s)) break;
        if (!first) before = 1;
        net_nap(5e-3);
    }
    tell_end(c, 1);
    if (first != 1) give_way(c);
    pthread_mutex_unlock(&m->lock);
    return 1;
}

// This rank has failed: it says END, and gives lower ones a moment to do so too. One that hangs does not.
static int tcp_lower(comm *c) {
    mesh *m = mesh_of(c);
    int n = 0;
    if (!m->peers) return 0;
    take_over(c);
    tell_end(c, 1);
    for (double until = comm_now() + claim_s; has_unheard_lower(c) && comm_now() < until; net_nap(1e-3))
        while (progress(c, m)) {}
    for (int r = 0; r < c->rank; r++) n += m->peers[r].ended;
    pthread_mutex_unlock(&m->lock);
    return n;
}

const comm_net comm_tcp_net = { "tcp",     tcp_exchange, tcp_lost, tcp_give_up, tcp_first_to_fail,
                                tcp_lower, tcp_abort,    tcp_close };

// -------- start

static void take_places(comm *c, const int *sockets, const rendezvous_peer *who) {
    c->node_rank = c->ranks_on_node = 0;
    for (int r = 0; r < c->ranks; r++) {
        int here = who[r].node == who[c->rank].node;
        mesh_of(c)->peers[r].fd = sockets[r];
        memcpy(c->hosts[r], who[r].host, sizeof c->hosts[r]);
        c->ranks_on_node += here;
        c->node_rank += here && r < c->rank;
    }
    c->node_ranks_all = c->ranks_on_node == c->ranks;
}

int comm_tcp_open(comm *c, const rendezvous_settings *s) {
    if (s->ranks < 1 || s->ranks > MOST_RANKS)
        return zero_fail(ZERO_ERR_ARGUMENT, "ranks %d: 1 to %d", s->ranks, MOST_RANKS);
    mesh *m = calloc(1, sizeof *m);
    if (!m) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the connections");
    int rc = pthread_mutex_init(&m->lock, NULL);
    if (rc) {
        free(m);
        return zero_fail(ZERO_ERR_MEMORY, "no lock for the connections: %s", strerror(rc));
    }
    m->ended_by = -1;
    m->silence_s = s->silence_s > 0 ? s->silence_s : RENDEZVOUS_SILENCE_S;
    c->net = &comm_tcp_net;
    c->connection = m;
    int sockets[s->ranks];
    m->polls = calloc((size_t)s->ranks, sizeof *m->polls);
    c->hosts = calloc((size_t)s->ranks, sizeof *c->hosts);
    peer *peers = calloc((size_t)s->ranks, sizeof *peers);
    rendezvous_peer *who = calloc((size_t)s->ranks, sizeof *who);
    rc = !m->polls || !c->hosts || !peers || !who
             ? zero_fail(ZERO_ERR_MEMORY, "out of memory for the connections of %d ranks", s->ranks)
             : rendezvous(s, sockets, who);
    if (!rc) {
        m->peers = peers;
        c->rank = s->rank;
        c->ranks = s->ranks;
        take_places(c, sockets, who);
    } else
        free(peers);
    free(who);
    return rc;
}
