// Ranks connected by MPI: start, messages, end. This is the only file that includes mpi.h.
#include "net.h"
#include "../base/clock.h"
#include <limits.h>
#include <mpi.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

enum { EXCHANGED, NOTE };          // tags
static const double start_s = 10;  // MPI's startup may take this many seconds more than a collective
static const double cancel_s = 1;  // for a cancelled receive to end

struct link {
    MPI_Comm comm;
    int finalize;            // 1: this file has initialised MPI
    net_note notes[NOTES];   // sent by this rank
    MPI_Request requests[];  // (2 * ranks) of the current exchange: from each rank, then to each
};

static int mpi_failed(const char *what, int rc) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(rc, text, &length);
    return zero_fail(ZERO_ERR_COMM, "%s: %s", what, text);
}
#define MPI_TRY(call)                                          \
    do {                                                       \
        int rc_ = (call);                                      \
        if (rc_ != MPI_SUCCESS) return mpi_failed(#call, rc_); \
    } while (0)

// Returns 1 if the program has finalised MPI before zero_destroy.
static int is_over(void) {
    int over = 0;
    MPI_Finalized(&over);
    return over;
}

// -------- exchange

int link_begin(net *n, exchange_kind x, int root, char *const *send, char *const *receive, size_t bytes) {
    struct link *s = n->link;
    int from_all = x != EXCHANGE_ROOT, to_all = from_all || n->rank == root;
    if (bytes > INT_MAX) return zero_fail(ZERO_ERR_COMM, "a message of %zu bytes is too long", bytes);
    for (int r = 0; r < n->ranks; r++) {
        MPI_Request *in = &s->requests[r], *out = &s->requests[n->ranks + r];
        if (r == n->rank || !send[r]) continue;
        if (from_all || r == root)
            MPI_TRY(MPI_Irecv(receive[r], (int)bytes, MPI_BYTE, r, EXCHANGED, s->comm, in));
        if (to_all) MPI_TRY(MPI_Isend(send[r], (int)bytes, MPI_BYTE, r, EXCHANGED, s->comm, out));
    }
    return 0;
}

int link_poll(net *n, int *done) {
    MPI_Status ends[2 * n->ranks];
    const int rc = MPI_Testall(2 * n->ranks, n->link->requests, done, ends);
    for (int i = 0; i < n->ranks && rc == MPI_ERR_IN_STATUS; i++)  // a message longer than expected
        if (ends[i].MPI_ERROR == MPI_ERR_TRUNCATE) return net_fail_unlike(n, i, "");
    return rc ? mpi_failed("MPI_Testall", rc) : 0;
}

void link_pending(net *n, char *missing) {
    memset(missing, 0, (size_t)n->ranks);
    for (int i = 0; i < 2 * n->ranks; i++) {
        int done = 0;
        if (MPI_Test(&n->link->requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done)
            missing[i % n->ranks] = 1;
    }
}

// Cancels the receives, because a late message must not be written into memory that may have been freed.
// MPI_Cancel only asks for it: MPI may use the memory until the receive ends, cancelled or complete. One that
// a dead or stopped rank has begun may never end; only MPI calls move its data, and link_close is the last.
void link_abandon(net *n) {
    MPI_Request *receives = n->link->requests;
    int done = is_over();
    patience p = patience_start();
    for (int r = 0; r < n->ranks && !done; r++)
        if (receives[r] != MPI_REQUEST_NULL) MPI_Cancel(&receives[r]);
    while (!done && patience_waited(&p) < cancel_s) {
        if (MPI_Testall(n->ranks, receives, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS) break;
        if (!done) clock_nap(200e-6);
    }
    for (int r = 0; r < n->ranks && !is_over(); r++) {
        int ahead = 0;
        if (MPI_Iprobe(r, EXCHANGED, n->link->comm, &ahead, MPI_STATUS_IGNORE) == MPI_SUCCESS)
            n->peers[r].ahead |= ahead;
    }
}

// -------- notes, and the end of all ranks

// MPI buffers messages this short.
void link_tell(net *n, const net_note *note) {
    net_note *kept = &n->link->notes[note->kind];
    *kept = *note;
    for (int r = 0; r < n->ranks; r++) {
        MPI_Request sent;
        if (r == n->rank || is_over()) continue;
        if (MPI_Isend(kept, sizeof *kept, MPI_BYTE, r, NOTE, n->link->comm, &sent) == MPI_SUCCESS)
            MPI_Request_free(&sent);
    }
}

int link_hear(net *n, int *from, net_note *note) {
    const MPI_Comm comm = n->link->comm;
    MPI_Status s;
    int there = 0;
    if (is_over() || MPI_Iprobe(MPI_ANY_SOURCE, NOTE, comm, &there, &s) != MPI_SUCCESS || !there) return 0;
    *from = s.MPI_SOURCE;
    return MPI_Recv(note, sizeof *note, MPI_BYTE, *from, NOTE, comm, MPI_STATUS_IGNORE) == MPI_SUCCESS;
}

void link_end_all(net *n, int status) {
    if (!is_over()) MPI_Abort(n->link->comm, status);
}

// -------- MPI's start and end

// MPI has no time limit for its start and its end, so another thread runs both: one thread, because MPI
// requires it. Once per process, as MPI allows.
static struct {
    sem_t over;
    atomic_int started, ended;
    int provided;
} life;

static void *live(void *unused) {
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &life.provided);  // an error ends the process
    life.started = 1;
    while (sem_wait(&life.over)) continue;  // interrupted by a signal
    MPI_Finalize();
    life.ended = 1;
    return NULL;
}

// Returns 1 if the event comes within `limit` seconds.
static int comes_within(double limit, const atomic_int *event) {
    patience p = patience_start();
    while (!*event && patience_waited(&p) <= limit) clock_nap(1e-3);
    return *event;
}

// Over TCP, Open MPI 4.1 writes a long message whole, and the answer to the peer's message waits behind it:
// two ranks that send to each other then often do so one after the other. "send" divides the message.
void link_send_in_parts(void) { setenv("OMPI_MCA_btl_tcp_flags", "send", 0); }

static int start_mpi(net *n, zero_launch launched) {
    char host[NET_NAME];
    link_send_in_parts();
    sem_init(&life.over, 0, 0);
    int failed = patience_thread(live, NULL);
    if (failed) return zero_fail(ZERO_ERR_COMM, "cannot start MPI's thread: %s", strerror(failed));
    const double limit = n->timeout_s + start_s;
    net_machine(host);
    if (!comes_within(limit, &life.started))
        return zero_fail_rank(
            ZERO_ERR_COMM, launched.rank, host,
            " waited %.3g s for MPI to start %d ranks: one of them has not started, is stuck, or gone", limit,
            launched.ranks);
    if (life.provided >= MPI_THREAD_SERIALIZED) return 0;
    return zero_fail(ZERO_ERR_COMM, "this MPI provides level %d of threads, not MPI_THREAD_SERIALIZED",
                     life.provided);
}

// The program has initialised MPI. With overlap another thread calls MPI too; without it, this one does,
// while threads that do not call MPI compute.
static int check_level(const zero_config *config) {
    int provided = 0, is_main = 0;
    MPI_TRY(MPI_Query_thread(&provided));
    MPI_TRY(MPI_Is_thread_main(&is_main));
    if (provided >= MPI_THREAD_SERIALIZED) return 0;
    if (provided >= MPI_THREAD_FUNNELED && is_main && !config->overlap) return 0;
    return zero_fail_setting(ZERO_ERR_COMM, config->overlap ? "overlap" : "start.mpi_comm",
                             " needs MPI_THREAD_%s, but the program initialised MPI with level %d: call "
                             "MPI_Init_thread with it%s",
                             config->overlap ? "SERIALIZED" : "FUNNELED, or SERIALIZED in another thread",
                             provided, config->overlap ? ", or set overlap 0" : "");
}

static int take_communicator(net *n, MPI_Comm given, int finalize) {
    MPI_Comm comm;
    MPI_TRY(MPI_Comm_dup(given, &comm));
    MPI_TRY(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Comm_rank(comm, &n->rank));
    MPI_TRY(MPI_Comm_size(comm, &n->ranks));
    struct link *s = calloc(1, sizeof *s + 2 * (size_t)n->ranks * sizeof *s->requests);
    if (!s) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the requests of %d ranks", n->ranks);
    s->comm = comm;
    s->finalize = finalize;
    for (int i = 0; i < 2 * n->ranks; i++) s->requests[i] = MPI_REQUEST_NULL;
    n->link = s;
    return 0;
}

int link_open(net *n, const zero_config *config, zero_launch launched) {
    const MPI_Comm *given = config->start.mpi_comm;
    int running = 0;
    if (is_over())
        return zero_fail(ZERO_ERR_COMM,
                         "MPI has been finalised in this process and cannot be started again: initialise it "
                         "before the first zero_create and finalise it after the last zero_destroy");
    if (given && *given == MPI_COMM_NULL)
        return zero_refuse("start.mpi_comm", " points to MPI_COMM_NULL: this process is in no communicator");
    MPI_TRY(MPI_Initialized(&running));
    ZERO_TRY(running ? check_level(config) : start_mpi(n, launched));
    return take_communicator(n, given ? *given : MPI_COMM_WORLD, !running);
}

// If a rank is missing, MPI_Finalize may not end: its thread is left behind. If the process ended inside that
// call, the launcher would report a failure. After a failure MPI may still be sending the notes. A rank that
// missed a collective has messages that it never received: if it freed their communicator, Open MPI 4.1 could
// lose later messages on other communicators.
void link_close(net *n, int clean) {
    struct link *s = n->link;
    const int calls = clean && !is_over();
    int left;
    if (calls && !MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, s->comm, &left, MPI_STATUS_IGNORE) && !left)
        MPI_Comm_free(&s->comm);
    if (calls && s->finalize) {
        sem_post(&life.over);
        comes_within(n->timeout_s, &life.ended);
    }
    if (clean) free(s);
}
