/* What needs MPI itself: start, messages, agreement, end. The only file that includes mpi.h. */
#include "comm.h"
#include "error.h"
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <time.h>

typedef struct { MPI_Comm comm; int finalize; } mpi_state;

static int mpi_failed(const char *what, int rc) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(rc, text, &n);
    return zero_fail(ZERO_ERR_COMM, "%s: %s", what, text);
}
#define MPI_TRY(call) do { int rc_ = (call); if (rc_ != MPI_SUCCESS) return mpi_failed(#call, rc_); } while (0)

static int start_mpi(int threads, int *finalize) {
    int flag = 0, over = 0, provided = 0, needed = threads ? MPI_THREAD_SERIALIZED : MPI_THREAD_FUNNELED;
    MPI_TRY(MPI_Finalized(&over));
    if (over)
        return zero_fail(ZERO_ERR_COMM, "MPI has been finalised in this process and cannot be started again: initialise it before the first "
                         "zero_create and finalise it after the last zero_destroy");
    MPI_TRY(MPI_Initialized(&flag));
    if (!flag) MPI_TRY(MPI_Init_thread(NULL, NULL, needed, &provided));
    else MPI_TRY(MPI_Query_thread(&provided));
    *finalize = !flag;
    if (threads && provided < needed)
        return zero_fail(ZERO_ERR_COMM, "overlap needs an MPI with MPI_THREAD_SERIALIZED; this one gives level %d: set overlap 0", provided);
    return 0;
}

int comm_mpi_open(comm *c, const zero_config *config) {
    mpi_state *s = calloc(1, sizeof *s);
    if (!s) return zero_fail(ZERO_ERR_MEMORY, "out of memory for MPI's state");
    c->mpi = s;
    s->comm = MPI_COMM_NULL;
    ZERO_TRY(start_mpi(config->overlap, &s->finalize));
    MPI_TRY(MPI_Comm_dup(config->mpi_comm ? *(MPI_Comm *)config->mpi_comm : MPI_COMM_WORLD, &s->comm));
    MPI_TRY(MPI_Comm_set_errhandler(s->comm, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Comm_rank(s->comm, &c->rank));
    MPI_TRY(MPI_Comm_size(s->comm, &c->ranks));
    MPI_Comm node;
    MPI_TRY(MPI_Comm_split_type(s->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    MPI_TRY(MPI_Comm_size(node, &c->ranks_on_node));
    MPI_TRY(MPI_Comm_rank(node, &c->node_rank));
    MPI_TRY(MPI_Comm_free(&node));
    int all = comm_mpi_agree(c, c->ranks_on_node == c->ranks);
    c->node_ranks_all = all > 0;
    return all < 0 ? all : 0;
}

void comm_mpi_close(comm *c, int clean) {
    mpi_state *s = c->mpi;
    int over = 0;
    MPI_Finalized(&over);           /* by the trainer, before zero_destroy: then nothing is left to free */
    if (clean && !over && s->comm != MPI_COMM_NULL) MPI_Comm_free(&s->comm);
    if (clean && !over && s->finalize) MPI_Finalize();
    free(s);
}

int comm_mpi_agree(comm *c, int ok) {
    int all = 0;
    MPI_TRY(MPI_Allreduce(&ok, &all, 1, MPI_INT, MPI_MIN, ((mpi_state *)c->mpi)->comm));
    return all;
}

int comm_mpi_broadcast_text(comm *c, char *text, int bytes) {
    MPI_TRY(MPI_Bcast(text, bytes, MPI_CHAR, 0, ((mpi_state *)c->mpi)->comm));
    return 0;
}

/* MPI_Waitall with a limit. It spins for a millisecond, then sleeps between looks; by the clock and not by counting, since with more ranks
 * than cores each MPI_Testall gives its core away, and on a busy machine gets it back only after a time slice. */
static int wait_all(comm *c, int n, MPI_Request *requests) {
    double start = comm_now(), waited = 0;
    for (int done = 0;;) {
        MPI_TRY(MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE));
        if (done) return 0;
        waited = comm_now() - start;
        if (waited > c->timeout_s)
            return zero_fail(ZERO_ERR_COMM, "rank %d waited %.0f s for messages of the other ranks: one of them is stuck, gone, or calls the "
                             "hooks in another order", c->rank, c->timeout_s);
        if (waited < 1e-3) continue;
        struct timespec nap = { 0, waited < 10e-3 ? 20000 : 200000 };
        nanosleep(&nap, NULL);
    }
}

int comm_mpi_exchange(comm *c, comm_exchange x, int root, char *const *send, char *const *receive, size_t bytes) {
    MPI_Comm comm_ = ((mpi_state *)c->mpi)->comm;
    MPI_Request requests[2 * c->ranks];
    int n = 0;
    if (bytes > INT_MAX) return zero_fail(ZERO_ERR_COMM, "a message of %zu bytes is too long", bytes);
    for (int r = 0; r < c->ranks; r++) {
        if (r == c->rank) continue;
        if (x != EXCHANGE_ROOT || r == root) MPI_TRY(MPI_Irecv(receive[r], (int)bytes, MPI_BYTE, r, 0, comm_, &requests[n++]));
    }
    for (int r = 0; r < c->ranks; r++) {
        if (r == c->rank) continue;
        if (x != EXCHANGE_ROOT || c->rank == root) MPI_TRY(MPI_Isend(send[r], (int)bytes, MPI_BYTE, r, 0, comm_, &requests[n++]));
    }
    return wait_all(c, n, requests);
}

void comm_mpi_abort(comm *c, int status) { MPI_Abort(((mpi_state *)c->mpi)->comm, status); }
