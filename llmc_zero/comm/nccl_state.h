// State shared by the files of the NCCL implementation.
#ifndef LLMC_ZERO_COMM_NCCL_STATE_H
#define LLMC_ZERO_COMM_NCCL_STATE_H
#include "../device/kernels_cuda.h"
#include "../base/error.h"
#include "comm.h"
#include "nccl_library.h"
#include <pthread.h>

enum { WATCHED = 256 };  // maximum number of collectives queued on the device, per lane

typedef struct {
    cudaEvent_t begin, end;  // recorded on its stream before and after it
    comm_kind kind;
    comm_use use;
    uint64_t number;
    double began;  // when this rank first saw that the device had reached it; 0: not yet
} collective;

// A communicator, its stream, and a ring of its queued collectives, from first to next.
typedef struct {
    ncclComm_t comm;  // NULL: not opened, or aborted
    cudaStream_t stream;
    uint64_t first, next;
    collective queue[WATCHED];
} lane;
enum { REDUCE, GATHERING, LANES };

typedef struct {
    int lane;
    void *handle;
} registration;

typedef enum { OWN_FAULT, REMOTE_FAULT, TIME_OUT } failure_cause;

typedef struct comm_nccl {
    comm *c;
    lane lanes[LANES];
    pthread_mutex_t lock;  // for all fields below and every call to NCCL
    // calls to NCCL since the last nccl_settle
    ncclResult_t rc;
    const char *call;  // the call that returned rc
    // the first failure
    int failed;
    failure_cause cause;
    int unit;              // its unit; -1: none
    int asked;             // 1: this rank has checked which ranks are silent
    ncclResult_t aborted;  // the result of the abort
    char sentence[1000];
    size_t names_at;  // where NCCL's own message begins in `sentence`
    // the watching thread
    pthread_t watchdog;
    int watching, stop;
    const collective *current;  // the one being queued
    uint64_t collectives;       // so far
    int nccl_sums;
    // memory
    size_t left;   // free bytes of the device before NCCL allocates any
    size_t taken;  // bytes allocated by NCCL since
    registration *registered;
    int n_registered;
    int version;  // of the library
} nccl_state;

// -------- calls to NCCL (nccl_watch.c)

// The communicators are non-blocking: a call returns at once, perhaps with ncclInProgress while NCCL's
// threads continue. After a failure NCCL is not called again.
#define ASK(n, f, ...)                               \
    do {                                             \
        if (!(n)->rc || (n)->rc == ncclInProgress) { \
            (n)->call = "nccl" #f;                   \
            (n)->rc = nccl.f(__VA_ARGS__);           \
        }                                            \
    } while (0)

// Returns the result of the calls so far: ncclInProgress if they are not done.
ncclResult_t nccl_progress_of(nccl_state *n, const lane *l);
// Waits until the calls are done. A call that queues work is done when the work is queued on the stream.
int nccl_settle(nccl_state *n, const lane *l);
// Fails with rc, which is not success.
int nccl_fail_to_settle(nccl_state *n, const lane *l, ncclResult_t rc);
// Calls ncclGroupEnd, even if a call since ncclGroupStart has failed.
int nccl_end_group(nccl_state *n, lane *l);

// -------- a collective from its first call to its last (nccl_watch.c)

int nccl_begin(nccl_state *n, lane *l, comm_kind kind, comm_use use,
               collective **out);                                // locks
int nccl_finish(nccl_state *n, lane *l, collective *w, int rc);  // unlocks

// -------- failures (nccl_watch.c)

int nccl_watch(nccl_state *n);  // starts the watching thread
void nccl_stop_watching(nccl_state *n);
// Aborts both communicators, so that the streams continue. If even the abort hangs, ends the job.
void nccl_abort(nccl_state *n);
// The caller holds the lock. Keeps the first failure and aborts. w: the collective that failed; message:
// NCCL's own message.
int nccl_fail(nccl_state *n, const collective *w, const char *what, const char *message);
int nccl_relay(const nccl_state *n);  // fails again with the first failure
int nccl_failed(comm *c);

// A rank's progress, best first. nccl_worst_of sets *worst to the worst progress of any rank, and *who to the
// first rank with it.
enum { DONE, BUSY, LATE, FAILED };
int nccl_worst_of(comm *c, double mine, double *worst, int *who);

// -------- start (nccl_start.c)

// Checks all ranks, and connects the lanes.
int nccl_connect(nccl_state *n, const zero_config *config);
// The most channels of a lane. is_ring: only neighbours in rings and trees are connected.
int nccl_most_ctas(int ranks, int is_ring);
// -------- memory (nccl_memory.c)

int nccl_bytes_left(size_t *left);  // on the device
// Adds the memory that NCCL has allocated since `before` bytes were free.
int nccl_count_taken(nccl_state *n, size_t before);
void nccl_set_mover(comm *c, memory *m);
int nccl_prepare(comm *c, memory *m, int (*rehearse)(void *), void *ctx);
int nccl_deregister_all(nccl_state *n);

#endif
