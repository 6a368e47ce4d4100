// Messages over one TCP connection between each pair of ranks. A frame has a head, data, and a tail that
// marks the data as good or void. So a rank that fails in the middle of a frame can end it as void and send a
// note after it.
//
// A waiting rank listens to all others, so it notices at once when one ends. If another rank is ahead, this
// one reads only the head of its next frame and leaves the data in the socket until the frame is due.
#include "failure.h"
#include "../base/clock.h"
#include "../base/error.h"
#include "sockets.h"
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FRAME_MAGIC = 0x4c5a4652, GOOD = 0x600d600d, VOID = 0x0bad0bad, SINK = 1 << 16 };
enum { MOST_RANKS = 1 << 16 };  // because arrays with an entry per rank are on the stack
enum { DATA = NOTES };          // a frame's kind is DATA or a note's kind

typedef struct {
    uint32_t magic, kind;
    uint64_t number;     // of the exchange
    int32_t what, root;  // the kind of exchange
    uint64_t bytes;
} frame;
typedef struct {
    frame f;
    char *data;  // NULL: the bytes are discarded
    uint32_t tail;
    size_t done;
    int busy;
} flow;

typedef struct {
    int fd;         // -1: closed, or this rank
    flow out, in;   // in.busy: the current exchange still needs data from it
    int tell;       // 1 + the kind of the next note to send; 0: none
    net_note note;  // being received
} peer;

typedef struct {
    int silence_s;
    double looked;  // last check for silent hosts
    frame due;      // the head that every rank should send in the current exchange
    net_note notes[NOTES];
    peer peers[];  // (ranks)
} mesh;

static mesh *mesh_of(const net *n) { return n->connection; }

// -------- frames

static int is_valid(const frame *f) {
    int is_note = f->kind < DATA && f->bytes == sizeof(net_note);
    int is_data = f->kind == DATA && f->bytes <= PTRDIFF_MAX;
    return f->magic == FRAME_MAGIC && (is_note || is_data);
}

static size_t frame_bytes(const flow *w) { return sizeof w->f + w->f.bytes + sizeof w->tail; }
static int has_head(const flow *w) { return w->done >= sizeof w->f; }

// The data of a frame that is not due stays in the socket. After a failure this rank reads it too, because an
// END may follow.
static int is_ahead(const net *n, const peer *p) {
    return has_head(&p->in) && p->in.f.kind == DATA && !p->in.busy && !n->closed;
}

static void lose(net *n, int r, int error) {
    peer *p = &mesh_of(n)->peers[r];
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    n->peers[r].gone = !n->peers[r].left || error == ESHUTDOWN;
    n->peers[r].error = error;
}

// Sets parts to the rest of a frame and returns their number. head_alone: the frame is incoming, so its head
// is read first. Discarded data is read piece by piece.
static int parts_left(flow *w, char *data, int head_alone, struct iovec parts[3]) {
    static char sink[SINK];
    int count = 0;
    size_t done = w->done, bytes = w->f.bytes;
    if (!has_head(w)) {
        parts[count++] = (struct iovec){ (char *)&w->f + done, sizeof w->f - done };
        if (head_alone) return count;
        done = sizeof w->f;
    }
    size_t at = done - sizeof w->f, left = at < bytes ? bytes - at : 0, over = at - (bytes - left);
    if (left && data) parts[count++] = (struct iovec){ data + at, left };
    if (left && !data) parts[count++] = (struct iovec){ sink, left < SINK ? left : SINK };
    if (data || left <= SINK)
        parts[count++] = (struct iovec){ (char *)&w->tail + over, sizeof w->tail - over };
    return count;
}

static void queue(peer *p, frame f, char *data) { p->out = (flow){ f, data, GOOD, 0, 1 }; }

// Queues the last note after the current frame. It supersedes any note still queued.
static void queue_note(net *n, peer *p) {
    net_note *note = &mesh_of(n)->notes[p->tell - 1];
    frame f = { .magic = FRAME_MAGIC, .kind = (uint32_t)note->kind, .bytes = sizeof *note };
    queue(p, f, (char *)note);
    p->tell = 0;
}

static void send_some(peer *p) {
    flow *w = &p->out;
    struct iovec parts[3];
    struct msghdr m = { .msg_iov = parts, .msg_iovlen = (size_t)parts_left(w, w->data, 0, parts) };
    ssize_t sent = sendmsg(p->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent < 0) shutdown(p->fd, SHUT_WR);  // cannot send any more, but can read what has arrived
    w->done += sent < 0 ? 0 : (size_t)sent;
    w->busy = sent >= 0 && w->done < frame_bytes(w);
}

static void finish_frame(net *n, int r) {
    peer *p = &mesh_of(n)->peers[r];
    flow *w = &p->in;
    w->done = 0;
    if (p->note.kind == NOTE_END && w->f.kind != DATA && (p->note.root < 0 || p->note.root >= n->ranks)) {
        lose(n, r, EBADMSG);
    } else if (w->f.kind != DATA) {
        failure_take(n, r, &p->note);
    } else if (w->tail == GOOD) {  // otherwise the frame is void
        w->busy = 0;
        w->data = NULL;  // the memory belongs to the caller again
    }
}

// Reads what has arrived, at most to the end of a frame. Returns 1 if anything changed.
static int receive_some(net *n, int r) {
    peer *p = &mesh_of(n)->peers[r];
    flow *w = &p->in;
    struct iovec parts[3];
    char *data = has_head(w) && w->f.kind != DATA ? (char *)&p->note : w->data;
    struct msghdr h = { .msg_iov = parts, .msg_iovlen = (size_t)parts_left(w, data, 1, parts) };
    ssize_t got = recvmsg(p->fd, &h, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (got <= 0) {
        lose(n, r, got ? errno : 0);
        return 1;
    }
    w->done += (size_t)got;
    if (!has_head(w)) return 1;
    if (!is_valid(&w->f))
        lose(n, r, EBADMSG);
    else if (w->done == frame_bytes(w))
        finish_frame(n, r);
    return 1;
}

// Sends and receives what is possible on every connection. Returns 1 if anything moved.
static int progress(net *n) {
    int moved = 0;
    for (int r = 0; r < n->ranks; r++) {
        peer *p = &mesh_of(n)->peers[r];
        if (p->fd < 0) continue;
        if (p->tell && !p->out.busy) queue_note(n, p);
        size_t before = p->out.done;
        if (p->out.busy) send_some(p);
        moved |= p->out.done != before;
        if (!is_ahead(n, p)) moved |= receive_some(n, r);
    }
    return moved;
}

// When a host disappears, its connections do not end, so this rank checks for silent hosts once a second.
static void lose_silent(net *n) {
    mesh *m = mesh_of(n);
    double now = clock_now();
    if (now - m->looked < 1) return;
    m->looked = now;
    for (int r = 0; r < n->ranks; r++)
        if (m->peers[r].fd >= 0 && net_is_silent(m->peers[r].fd, m->silence_s)) lose(n, r, ETIMEDOUT);
}

// -------- exchange

static int tcp_begin(net *n, exchange_kind x, int root, char *const *send, char *const *receive,
                     size_t bytes) {
    mesh *m = mesh_of(n);
    frame f = {
        .magic = FRAME_MAGIC, .kind = DATA, .number = n->exchanges, .what = x, .root = root, .bytes = bytes
    };
    m->due = f;
    for (int r = 0; r < n->ranks; r++) {
        if (r == n->rank) continue;
        if (x != EXCHANGE_ROOT || n->rank == root) queue(&m->peers[r], f, bytes ? send[r] : NULL);
        if (x == EXCHANGE_ROOT && r != root) continue;
        m->peers[r].in.data = bytes ? receive[r] : NULL;
        m->peers[r].in.busy = 1;
    }
    return 0;
}

// Checks the heads received for this exchange, before any data is read into the caller's memory.
static int check_heads(const net *n) {
    const mesh *m = mesh_of(n);
    for (int r = 0; r < n->ranks; r++) {
        const flow *in = &m->peers[r].in;
        const frame *f = &in->f, *due = &m->due;
        if (!in->busy || !has_head(in) || f->kind != DATA) continue;
        if (!memcmp(f, due, sizeof *f)) continue;
        return zero_fail_rank(
            ZERO_ERR_COMM, n->rank, NULL,
            " and rank %d are in different collectives (%s of %zu bytes, %s of %zu bytes): all "
            "ranks must call the same hooks in the same order, in validation and sampling too",
            r, exchange_name((exchange_kind)due->what), (size_t)due->bytes,
            exchange_name((exchange_kind)f->what), (size_t)f->bytes);
    }
    return 0;
}

static int is_under_way(const peer *p) { return p->in.busy || (p->out.busy && p->out.f.kind == DATA); }

static int tcp_step(net *n) {
    ZERO_TRY(check_heads(n));
    int moved = progress(n), busy = 0;
    for (int r = 0; r < n->ranks; r++) {
        if (!is_under_way(&mesh_of(n)->peers[r])) continue;
        if (n->peers[r].left) lose(n, r, ESHUTDOWN);
        busy = 1;
    }
    return !busy ? NET_DONE : moved ? NET_MOVED : NET_WAITING;
}

static void tcp_rest(net *n, double idle_s) {
    const double spin_s = 50e-6;
    const mesh *m = mesh_of(n);
    struct pollfd polls[n->ranks];
    if (idle_s < spin_s) return;
    for (int r = 0; r < n->ranks; r++) {
        const peer *p = &m->peers[r];
        int events = (is_ahead(n, p) ? 0 : POLLIN) | (p->out.busy ? POLLOUT : 0);
        polls[r] = (struct pollfd){ events ? p->fd : -1, (short)events, 0 };
    }
    poll(polls, (nfds_t)n->ranks, 50);  // the next step checks every connection, whatever poll returns
}

static void tcp_pending(net *n, char *missing) {
    for (int r = 0; r < n->ranks; r++) missing[r] = (char)is_under_way(&mesh_of(n)->peers[r]);
}

// Releases the caller's buffers. A frame that was begun is ended as void.
static void tcp_abandon(net *n) {
    for (int r = 0; r < n->ranks; r++) {
        peer *p = &mesh_of(n)->peers[r];
        flow *out = &p->out, *in = &p->in;
        n->peers[r].ahead |= is_ahead(n, p);
        in->data = NULL;
        in->busy = 0;
        if (!out->busy || out->f.kind != DATA) continue;
        if (out->done <= sizeof out->f + out->f.bytes) out->tail = VOID;
        if (!out->done) out->busy = 0;
        out->data = NULL;
    }
}

// -------- notes, and the end

static void tcp_tell(net *n, const net_note *note) {
    mesh *m = mesh_of(n);
    m->notes[note->kind] = *note;
    for (int r = 0; r < n->ranks; r++)
        if (m->peers[r].fd >= 0 && !n->peers[r].left) m->peers[r].tell = 1 + note->kind;
}

// A note counts as sent when the other machine has acknowledged it, so that closing the socket cannot lose
// it.
static int tcp_telling(const net *n) {
    for (int r = 0; r < n->ranks; r++) {
        const peer *p = &mesh_of(n)->peers[r];
        int unacknowledged = 0;
        if (p->fd < 0 || n->peers[r].left) continue;
        if (p->tell || p->out.busy || ioctl(p->fd, SIOCOUTQ, &unacknowledged) || unacknowledged) return 1;
    }
    return 0;
}

static void tcp_look(net *n) {
    while (progress(n)) {}
    lose_silent(n);
}

static void tcp_close(net *n, int clean) {
    for (int r = 0; r < n->ranks; r++)
        if (mesh_of(n)->peers[r].fd >= 0) close(mesh_of(n)->peers[r].fd);
}

static const net_functions tcp_functions = {
    .begin = tcp_begin,
    .step = tcp_step,
    .rest = tcp_rest,
    .pending = tcp_pending,
    .abandon = tcp_abandon,
    .tell = tcp_tell,
    .telling = tcp_telling,
    .look = tcp_look,
    .close = tcp_close,
};

// -------- start

int net_open_tcp(net *n, const rendezvous_settings *s) {
    if (s->ranks < 1 || s->ranks > MOST_RANKS)
        return zero_refuse("start.ranks", " %d: must be 1 to %d", s->ranks, MOST_RANKS);
    int sockets[s->ranks];
    mesh *m = n->connection = calloc(1, sizeof *m + (size_t)s->ranks * sizeof *m->peers);
    ZERO_TRY(net_prepare(n, "tcp", s->rank, s->ranks));
    ZERO_TRY(rendezvous(s, sockets, n->who));
    m->silence_s = s->silence_s > 0 ? s->silence_s : RENDEZVOUS_SILENCE_S;
    for (int r = 0; r < n->ranks; r++) m->peers[r].fd = sockets[r];
    net_seat(n);
    n->f = &tcp_functions;
    return 0;
}
