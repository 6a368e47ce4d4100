// Ranks connected by MPI: start, messages, end. This is the only file that includes mpi.h.
#include "failure.h"
#include "sockets.h"
#include "../base/clock.h"
#include "../base/error.h"
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXCHANGED, NOTE };          // tags
static const double start_s = 10;  // MPI's startup may take this many seconds more than a collective

typedef struct {
    MPI_Comm given, comm;
    int overlap, finalize;  // finalize: 1 if this file has initialised MPI
    int rank, ranks;
    failure_record failure;  // of the startup
    net_note notes[NOTES];   // sent by this rank
    MPI_Request requests[];  // (2 * ranks) of the current exchange: from each rank, then to each
} mpi_state;

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

static int mpi_begin(net *n, exchange_kind x, int root, char *const *send, char *const *receive,
                     size_t bytes) {
    mpi_state *s = n->connection;
    int from_all = x != EXCHANGE_ROOT, to_all = from_all || n->rank == root;
    if (bytes > INT_MAX) return zero_fail(ZERO_ERR_COMM, "a message of %zu bytes is too long", bytes);
    for (int r = 0; r < n->ranks; r++) {
        MPI_Request *in = &s->requests[r], *out = &s->requests[n->ranks + r];
        if (r == n->rank) continue;
        if (from_all || r == root)
            MPI_TRY(MPI_Irecv(receive[r], (int)bytes, MPI_BYTE, r, EXCHANGED, s->comm, in));
        if (to_all) MPI_TRY(MPI_Isend(send[r], (int)bytes, MPI_BYTE, r, EXCHANGED, s->comm, out));
    }
    return 0;
}

static int mpi_step(net *n) {
    mpi_state *s = n->connection;
    int done = 0;
    MPI_TRY(MPI_Testall(2 * n->ranks, s->requests, &done, MPI_STATUSES_IGNORE));
    return done ? NET_DONE : NET_WAITING;
}

// Spins for a millisecond, then sleeps between polls. Uses the clock instead of counting polls, because with
// more ranks than cores each poll yields the core for a time slice.
static void mpi_rest(net *n, double idle_s) {
    if (idle_s > 1e-3) clock_nap(idle_s < 10e-3 ? 20e-6 : 200e-6);
}

static void mpi_pending(net *n, char *missing) {
    mpi_state *s = n->connection;
    memset(missing, 0, (size_t)n->ranks);
    for (int i = 0; i < 2 * n->ranks; i++) {
        int done = 0;
        if (MPI_Test(&s->requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done)
            missing[i % n->ranks] = 1;
    }
}

// Cancels receives, because a late message must not be written into memory that may have been freed.
static void mpi_abandon(net *n) {
    mpi_state *s = n->connection;
    for (int r = 0; r < n->ranks; r++)
        if (s->requests[r] != MPI_REQUEST_NULL && MPI_Cancel(&s->requests[r]) == MPI_SUCCESS)
            MPI_Request_free(&s->requests[r]);
    for (int r = 0; r < n->ranks && !is_over(); r++) {
        int ahead = 0;
        if (MPI_Iprobe(r, EXCHANGED, s->comm, &ahead, MPI_STATUS_IGNORE) == MPI_SUCCESS)
            n->peers[r].ahead |= ahead;
    }
}

// -------- notes, and the end

// Does not wait: MPI buffers messages this short.
static void mpi_tell(net *n, const net_note *note) {
    mpi_state *s = n->connection;
    net_note *kept = &s->notes[note->kind];
    *kept = *note;
    for (int r = 0; r < n->ranks; r++) {
        MPI_Request sent;
        if (r == n->rank || is_over()) continue;
        if (MPI_Isend(kept, sizeof *kept, MPI_BYTE, r, NOTE, s->comm, &sent) == MPI_SUCCESS)
            MPI_Request_free(&sent);
    }
}

static void mpi_look(net *n) {
    mpi_state *s = n->connection;
    while (!is_over()) {
        int there = 0;
        MPI_Status from;
        net_note note;
        if (MPI_Iprobe(MPI_ANY_SOURCE, NOTE, s->comm, &there, &from) != MPI_SUCCESS || !there) return;
        if (MPI_Recv(&note, sizeof note, MPI_BYTE, from.MPI_SOURCE, NOTE, s->comm, MPI_STATUS_IGNORE)) return;
        failure_take(n, from.MPI_SOURCE, &note);
    }
}

static void mpi_end(net *n, int status) {
    mpi_state *s = n->connection;
    if (!is_over()) MPI_Abort(s->comm, status);
}

// -------- start

static int meet(mpi_state *m) {
    int running = 0, over = 0, provided = 0;
    MPI_TRY(MPI_Finalized(&over));
    if (over)
        return zero_fail(ZERO_ERR_COMM,
                         "MPI has been finalised in this process and cannot be started again: initialise it "
                         "before the first zero_create and finalise it after the last zero_destroy");
    MPI_TRY(MPI_Initialized(&running));
    if (running)
        MPI_TRY(MPI_Query_thread(&provided));
    else
        MPI_TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided));
    m->finalize = !running;
    if (m->overlap && provided < MPI_THREAD_SERIALIZED)
        return zero_fail_setting(ZERO_ERR_COMM, "overlap",
                                 " needs an MPI with MPI_THREAD_SERIALIZED; this one provides level %d: set "
                                 "overlap 0",
                                 provided);
    MPI_TRY(MPI_Comm_dup(m->given, &m->comm));
    MPI_TRY(MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Comm_rank(m->comm, &m->rank));
    MPI_TRY(MPI_Comm_size(m->comm, &m->ranks));
    return 0;
}

static void *run_meet(void *state) {
    mpi_state *m = state;
    if (meet(m)) m->failure = *zero_failed();
    return NULL;
}

static void *run_finalize(void *unused) {
    MPI_Finalize();
    return NULL;
}

// MPI has no time limit for startup, so startup runs in a thread, unless the caller has already initialised
// MPI, perhaps for only one thread. A thread left behind still uses the state, so n drops its pointer to it.
static int meet_within(double limit, net *n, zero_launch launched) {
    mpi_state *m = n->connection;
    int running = 0;
    char host[NET_NAME];
    MPI_TRY(MPI_Initialized(&running));
    if (running) return meet(m);
    if (!patience_outlasts(limit, run_meet, m))
        return m->failure.fields.code ? zero_fail_again(&m->failure) : 0;
    n->connection = NULL;
    net_machine(host);
    return zero_fail_rank(
        ZERO_ERR_COMM, launched.rank, host,
        " waited %.3g s for MPI to start %d ranks: one of them has not started, is stuck, or gone", limit,
        launched.ranks);
}

// If a rank is missing, leaves a thread behind in MPI_Finalize. If the process ended inside that call, the
// launcher would report a failure.
static void mpi_close(net *n, int clean) {
    mpi_state *s = n->connection;
    if (clean && !is_over()) MPI_Comm_free(&s->comm);
    if (clean && !is_over() && s->finalize) patience_outlasts(n->timeout_s, run_finalize, NULL);
}

static const net_functions mpi_functions = {
    .begin = mpi_begin,
    .step = mpi_step,
    .rest = mpi_rest,
    .pending = mpi_pending,
    .abandon = mpi_abandon,
    .tell = mpi_tell,
    .look = mpi_look,
    .end = mpi_end,
    .close = mpi_close,
};

int net_open_mpi(net *n, const zero_config *config, zero_launch launched) {
    mpi_state *m = n->connection = calloc(1, sizeof *m);
    rendezvous_peer mine = { .pid = (int)getpid() };
    if (!m) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the start of MPI");
    m->given = config->start.mpi_comm ? *(MPI_Comm *)config->start.mpi_comm : MPI_COMM_WORLD;
    m->overlap = config->overlap;
    if (m->given == MPI_COMM_NULL)
        return zero_refuse("start.mpi_comm", " points to MPI_COMM_NULL: this process is in no communicator");
    ZERO_TRY(meet_within(n->timeout_s + start_s, n, launched));
    int rank = m->rank, ranks = m->ranks;
    mpi_state *s = n->connection = realloc(m, sizeof *m + 2 * (size_t)ranks * sizeof *m->requests);
    if (!s) free(m);
    ZERO_TRY(net_prepare(n, "mpi", rank, ranks));
    for (int i = 0; i < 2 * ranks; i++) s->requests[i] = MPI_REQUEST_NULL;
    n->f = &mpi_functions;
    mine.node = net_machine(mine.host);
    ZERO_TRY(net_gather(n, &mine, n->who, sizeof mine));
    net_seat(n);
    return 0;
}
