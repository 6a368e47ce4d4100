// What needs MPI itself: start, messages, agreement, end. The only file that includes mpi.h.
#include "late.h"
#include "net.h"
#include "../error.h"
#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    EXCHANGED,
    LATE
};  // tags: bytes of an exchange; that its sender has waited for too long in exchange number so and so
static const double start_s = 10;  // MPI's own start may take so much longer than a collective

enum { SILENT = -1 };
typedef struct {
    int exchange, timed_out;
} late_note;  // two MPI_INT: how many exchanges its sender has begun; SILENT: none has come

typedef struct {
    MPI_Comm comm;
    int finalize;
    late_note note;        // that this rank has sent
    int exchanges;         // begun
    int late, first_late;  // this rank has waited too long; and is the one to say so
} mpi_state;
static mpi_state *state_of(const comm *c) { return c->connection; }
static const comm_net comm_mpi_net;

static int mpi_failed(const char *what, int rc) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(rc, text, &n);
    return zero_fail(ZERO_ERR_COMM, "%s: %s", what, text);
}
#define MPI_TRY(call)                                          \
    do {                                                       \
        int rc_ = (call);                                      \
        if (rc_ != MPI_SUCCESS) return mpi_failed(#call, rc_); \
    } while (0)

static int start_mpi(int threads, int *finalize) {
    int flag = 0, over = 0, provided = 0, needed = threads ? MPI_THREAD_SERIALIZED : MPI_THREAD_FUNNELED;
    MPI_TRY(MPI_Finalized(&over));
    if (over)
        return zero_fail(ZERO_ERR_COMM, "MPI has been finalised in this process and cannot be started again: "
                                        "initialise it before the first "
                                        "zero_create and finalise it after the last zero_destroy");
    MPI_TRY(MPI_Initialized(&flag));
    if (!flag)
        MPI_TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED,
                                &provided));  // its calls come from more threads than one
    else
        MPI_TRY(MPI_Query_thread(&provided));
    *finalize = !flag;
    if (threads && provided < needed)
        return zero_fail(
            ZERO_ERR_COMM,
            "overlap needs an MPI with MPI_THREAD_SERIALIZED; this one gives level %d: set overlap 0",
            provided);
    return 0;
}

static int same_number(const char *one, const char *other) {
    const char *a = getenv(one), *b = getenv(other);
    return a && b && !strcmp(a, b);
}

// srun --mpi=pmi2 sets PMI_SIZE, which Open MPI cannot use from 5.0 on, nor before unless it was built for
// it: its tasks connect by TCP. Another MPI's mpiexec sets it too: what that has started is compared with
// what MPI finds. torchrun's processes inherit the variables of what started torchrun.
int comm_mpi_launched(void) {
    if (getenv("TORCHELASTIC_RUN_ID")) return 0;
    if (getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK")) return 1;
    return getenv("PMI_SIZE") &&
           !(same_number("PMI_SIZE", "SLURM_STEP_NUM_TASKS") && same_number("PMI_RANK", "SLURM_PROCID"));
}

// MPI starts in a thread, since it has no limit for that: where a rank never comes, the thread and this are
// left behind.
typedef struct {
    mpi_state s;
    MPI_Comm given;
    int overlap, rank, ranks, node_rank, ranks_on_node, rc;
    char sentence[640];
} mpi_start;

static int meet(mpi_start *m) {
    MPI_Comm node;
    if (m->given == MPI_COMM_NULL)
        return zero_fail(ZERO_ERR_ARGUMENT,
                         "mpi_comm points to MPI_COMM_NULL: this process is in no communicator");
    ZERO_TRY(start_mpi(m->overlap, &m->s.finalize));
    MPI_TRY(MPI_Comm_dup(m->given, &m->s.comm));
    MPI_TRY(MPI_Comm_set_errhandler(m->s.comm, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Comm_rank(m->s.comm, &m->rank));
    MPI_TRY(MPI_Comm_size(m->s.comm, &m->ranks));
    MPI_TRY(MPI_Comm_split_type(m->s.comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    MPI_TRY(MPI_Comm_size(node, &m->ranks_on_node));
    MPI_TRY(MPI_Comm_rank(node, &m->node_rank));
    MPI_TRY(MPI_Comm_free(&node));
    return 0;
}

static void *run_meet(void *start) {
    mpi_start *m = start;
    m->rc = meet(m);
    if (m->rc) snprintf(m->sentence, sizeof m->sentence, "%s", zero_last_error());
    return NULL;
}

static int fail_to_meet(double limit) {
    char host[COMM_HOST] = "";
    zero_launch_info launched = zero_launched();
    if (gethostname(host, sizeof host - 1)) strcpy(host, "unknown");
    return zero_fail(ZERO_ERR_COMM,
                     "rank %d (host %s) waited %.3g s for MPI to start %d ranks: one of them has not come, "
                     "is stuck, or gone",
                     launched.rank, host, limit, launched.ranks);
}

// 1: the thread still runs.
static int outlasts(pthread_t thread, double limit) {
    comm_patience patience = comm_start_waiting();
    while (pthread_tryjoin_np(thread, NULL)) {
        if (comm_waited(&patience) > limit) return 1;
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    return 0;
}

// A caller's MPI may be one for a single thread. Otherwise *left is set where the thread still runs.
static int meet_within(double limit, mpi_start *m, int *left) {
    int running = 0;
    pthread_t thread;
    MPI_TRY(MPI_Initialized(&running));
    if (running) return meet(m);
    int rc = pthread_create(&thread, NULL, run_meet, m);
    if (rc) return zero_fail(ZERO_ERR_MEMORY, "the thread that starts MPI does not start: %s", strerror(rc));
    if ((*left = outlasts(thread, limit))) return fail_to_meet(limit);
    return m->rc ? zero_fail(m->rc, "%s", m->sentence) : 0;
}

static int tell_hosts(comm *c) {
    char host[COMM_HOST] = "", *send[c->ranks], *receive[c->ranks];
    c->hosts = calloc(c->ranks, sizeof *c->hosts);
    if (!c->hosts)
        return zero_fail(ZERO_ERR_MEMORY, "out of memory for the names of %d ranks' hosts", c->ranks);
    if (gethostname(host, sizeof host - 1)) strcpy(host, "unknown");
    memcpy(c->hosts[c->rank], host, sizeof host);
    for (int r = 0; r < c->ranks; r++) {
        send[r] = host;
        receive[r] = c->hosts[r];
    }
    return c->net->exchange(c, EXCHANGE_GATHER, 0, send, receive, sizeof host);
}

int comm_mpi_open(comm *c, const zero_config *config) {
    int left = 0;
    mpi_start *m = calloc(1, sizeof *m);
    mpi_state *s = calloc(1, sizeof *s);
    if (!m || !s) {
        free(m);
        free(s);
        return zero_fail(ZERO_ERR_MEMORY, "out of memory for MPI's state");
    }
    m->s.comm = MPI_COMM_NULL;
    m->given = config->start.mpi_comm ? *(MPI_Comm *)config->start.mpi_comm : MPI_COMM_WORLD;
    m->overlap = config->overlap;
    int rc = meet_within(c->timeout_s + start_s, m, &left);
    c->net = &comm_mpi_net;
    c->connection = s;
    if (!left) {
        *s = m->s;
        c->rank = m->rank;
        c->ranks = m->ranks;
        c->node_rank = m->node_rank;
        c->ranks_on_node = m->ranks_on_node;
        free(m);
    } else
        s->comm = MPI_COMM_NULL;
    ZERO_TRY(rc);
    ZERO_TRY(tell_hosts(c));
    int all = comm_net_agree(c, c->ranks_on_node == c->ranks);
    c->node_ranks_all = all > 0;
    return all < 0 ? all : 0;
}

static void *run_finalize(void *unused) {
    (void)unused;
    MPI_Finalize();
    return NULL;
}

// Its end has no limit either. Where a rank does not come, the thread is left behind: a process that ends in
// it, the launcher takes for a failure, and ends the job.
static void finalize_within(double limit) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_finalize, NULL))
        MPI_Finalize();
    else if (outlasts(thread, limit))
        pthread_detach(thread);
}

static void mpi_close(comm *c, int clean) {
    mpi_state *s = state_of(c);
    int over = 0;
    MPI_Finalized(&over);  // by the trainer, before zero_destroy: then nothing is left to free
    if (clean && !over && s->comm != MPI_COMM_NULL) MPI_Comm_free(&s->comm);
    if (clean && !over && s->finalize) finalize_within(c->timeout_s);
    free(c->hosts);
    free(s);
}

// Ranks that wait for a late one let others wait for them. So each tells all that it waits, and in which
// exchange: those that say nothing are missing. notes[r]: what rank r has said.
static int tell_late(const comm *c, int timed_out, late_note *notes) {
    mpi_state *s = state_of(c);
    int silent = c->ranks - 1;
    s->note = (late_note){ s->exchanges, timed_out };
    for (int r = 0; r < c->ranks; r++) {
        MPI_Request sent;
        notes[r] = r == c->rank ? s->note : (late_note){ SILENT, 0 };
        if (r != c->rank && !MPI_Isend(&s->note, 2, MPI_INT, r, LATE, s->comm, &sent))
            MPI_Request_free(&sent);
    }
    comm_patience patience = comm_start_waiting();
    while (silent && comm_waited(&patience) < comm_hear_s) {
        int there = 0;
        MPI_Status from;
        MPI_TRY(MPI_Iprobe(MPI_ANY_SOURCE, LATE, s->comm, &there, &from));
        if (there) {
            silent -= notes[from.MPI_SOURCE].exchange == SILENT;
            MPI_TRY(MPI_Recv(&notes[from.MPI_SOURCE], 2, MPI_INT, from.MPI_SOURCE, LATE, s->comm,
                             MPI_STATUS_IGNORE));
        } else
            nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    return 0;
}

// In the first exchange in which one waits, the lowest rank is the one to say so.
static void choose_speaker(const comm *c, const late_note *notes) {
    int first = c->rank;
    for (int r = 0; r < c->ranks; r++) {
        if (notes[r].exchange == SILENT) continue;
        if (notes[r].exchange < notes[first].exchange ||
            (notes[r].exchange == notes[first].exchange && r < first))
            first = r;
    }
    state_of(c)->late = 1;
    state_of(c)->first_late = first == c->rank;
}

static int fail_late(comm *c, comm_exchange x, int n, MPI_Request *requests, const int *with) {
    char missing[c->ranks], silent[c->ranks];
    late_note notes[c->ranks];
    int any = 0;
    memset(missing, 0, sizeof missing);
    for (int i = 0; i < n; i++) {
        int done = 0;
        MPI_TRY(MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE));
        if (!done) missing[with[i]] = 1;
    }
    ZERO_TRY(tell_late(c, 1, notes));
    for (int r = 0; r < c->ranks; r++) any |= silent[r] = missing[r] && notes[r].exchange == SILENT;
    choose_speaker(c, notes);
    return comm_fail_late(c, x, any ? silent : missing);
}

static int mpi_give_up(comm *c, int timed_out, char *heard) {
    late_note notes[c->ranks];
    ZERO_TRY(tell_late(c, timed_out, notes));
    for (int r = 0; r < c->ranks; r++) {
        int ahead = 0;  // in an exchange that this rank has not begun
        if (notes[r].exchange == SILENT)
            MPI_TRY(MPI_Iprobe(r, EXCHANGED, state_of(c)->comm, &ahead, MPI_STATUS_IGNORE));
        heard[r] = notes[r].exchange == SILENT ? ahead ? HEARD : HEARD_NOTHING
                   : notes[r].timed_out        ? HEARD_LATE
                                               : HEARD;
    }
    choose_speaker(c, notes);
    return 0;
}

// MPI_Waitall with a limit. It spins for a millisecond, then sleeps between looks; by the clock and not by
// counting, since with more ranks than cores each MPI_Testall gives its core away, and on a busy machine gets
// it back only after a time slice.
static int wait_all(comm *c, comm_exchange x, int n, MPI_Request *requests, const int *with) {
    comm_patience patience = comm_start_waiting();
    for (int done = 0;;) {
        double waited = comm_waited(&patience);
        MPI_TRY(MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE));
        if (done) return 0;
        if (waited > c->timeout_s) return fail_late(c, x, n, requests, with);
        if (waited < 1e-3) continue;
        struct timespec nap = { 0, waited < 10e-3 ? 20000 : 200000 };
        nanosleep(&nap, NULL);
    }
}

static int mpi_exchange(comm *c, comm_exchange x, int root, char *const *send, char *const *receive,
                        size_t bytes) {
    MPI_Comm comm_ = state_of(c)->comm;
    MPI_Request requests[2 * c->ranks];
    int with[2 * c->ranks], n = 0;
    state_of(c)->exchanges++;
    if (bytes > INT_MAX) return zero_fail(ZERO_ERR_COMM, "a message of %zu bytes is too long", bytes);
    for (int r = 0; r < c->ranks; r++) {
        if (r == c->rank || (x == EXCHANGE_ROOT && r != root)) continue;
        with[n] = r;
        MPI_TRY(MPI_Irecv(receive[r], (int)bytes, MPI_BYTE, r, EXCHANGED, comm_, &requests[n++]));
    }
    int receives = n;
    for (int r = 0; r < c->ranks; r++) {
        if (r == c->rank || (x == EXCHANGE_ROOT && c->rank != root)) continue;
        with[n] = r;
        MPI_TRY(MPI_Isend(send[r], (int)bytes, MPI_BYTE, r, EXCHANGED, comm_, &requests[n++]));
    }
    int rc = wait_all(c, x, n, requests, with);
    for (int i = 0; rc && i < receives;
         i++)  // what comes later is not to be written into memory that may be freed by then
        if (requests[i] != MPI_REQUEST_NULL && MPI_Cancel(&requests[i]) == MPI_SUCCESS)
            MPI_Request_free(&requests[i]);
    return rc;
}

// Where ranks only take turns, the one that speaks may not end the others before their turn comes.
static int mpi_first_to_fail(comm *c, int first) {
    const mpi_state *s = state_of(c);
    return first < 0 && s->late ? s->first_late : first;
}

static void mpi_abort(comm *c, int status) { MPI_Abort(state_of(c)->comm, status); }

static const comm_net comm_mpi_net = { "mpi", mpi_exchange, NULL,     mpi_give_up, mpi_first_to_fail,
                                       NULL,  mpi_abort,    mpi_close };
