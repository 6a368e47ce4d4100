// What the files of the NCCL implementation share.
#ifndef LLMC_ZERO_COMM_NCCL_STATE_H
#define LLMC_ZERO_COMM_NCCL_STATE_H
#include "../device/kernels_cuda.h"
#include "../error.h"
#include "comm.h"
#include "nccl_library.h"
#include <pthread.h>

enum { WATCHED = 256 };  // collectives of a lane that the host can be ahead of the device

typedef struct {
    cudaEvent_t begin, end;  // before and after it on its stream
    comm_kind kind;
    comm_use use;
    uint64_t number;
    double began;  // when it was first seen that it could begin; 0: not yet
} collective;

// A communicator, its stream, and what is queued there: collectives first to next, in a ring.
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
    pthread_mutex_t lock;  // around all that follows, and every call of NCCL
    // calls of NCCL since the last nccl_settle
    ncclResult_t rc;
    const char *call;  // the name of the one that returned rc
    // the first failure
    int failed;
    failure_cause cause;
    int unit;              // that it is about; -1: none
    int asked;             // the other ranks, which of them is still there
    ncclResult_t aborted;  // what NCCL returned from the abort
    char sentence[1000];
    size_t names_at;  // in the sentence, where NCCL's words begin
    // the thread that watches
    pthread_t watchdog;
    int watching, stop;
    const collective *current;  // that is being queued
    uint64_t collectives;       // so far
    // reductions
    int nccl_sums;
    char *incoming;  // (ranks, slot_bytes): what the others sent, to be summed; NULL: NCCL sums
    size_t slot_bytes;
    // memory
    size_t left;   // bytes of the device, before NCCL has taken any
    size_t taken;  // by NCCL since
    registration *registered;
    int n_registered;
    int version;  // of the library
} nccl_state;

// -------- calls of NCCL (nccl_watch.c)

// The communicators are non-blocking: a call returns at once, perhaps with ncclInProgress while NCCL's own
// threads go on. After a failure nothing more is asked.
#define ASK(n, f, ...)                               \
    do {                                             \
        if (!(n)->rc || (n)->rc == ncclInProgress) { \
            (n)->call = #f;                          \
            (n)->rc = f(__VA_ARGS__);                \
        }                                            \
    } while (0)

// Returns what has become of the calls.
ncclResult_t nccl_progress_of(nccl_state *n, const lane *l);
// Returns when the calls are done, which for work on a stream means that it is on the stream.
int nccl_settle(nccl_state *n, const lane *l);
// Fails with rc, which is not success.
int nccl_fail_to_settle(nccl_state *n, const lane *l, ncclResult_t rc);
// Calls ncclGroupEnd, which must follow whatever failed in between.
int nccl_end_group(nccl_state *n, lane *l);

// -------- a collective from its first call to its last (nccl_watch.c)

int nccl_begin(nccl_state *n, lane *l, comm_kind kind, comm_use use,
               collective **out);                                // takes the lock
int nccl_finish(nccl_state *n, lane *l, collective *w, int rc);  // gives it back

// -------- failures (nccl_watch.c)

int nccl_watch(nccl_state *n);  // starts the thread
void nccl_stop_watching(nccl_state *n);
// Aborts both communicators, so that the streams go on. If NCCL does not even abort, the job ends here.
void nccl_abort(nccl_state *n);
// With the lock held. Keeps the first failure and aborts; w: the collective it is about, said: NCCL's words.
int nccl_fail(nccl_state *n, const collective *w, const char *what, const char *said);
int nccl_relay(const nccl_state *n);  // fails with the sentence of the first failure
int nccl_failed(comm *c);

// How far a rank is. nccl_worst_of: the worst of all, and the first rank that says so.
enum { DONE, BUSY, LATE, FAILED };
int nccl_worst_of(comm *c, double mine, double *worst, int *who);

// -------- start (nccl_start.c)

// Checks all ranks, and connects the lanes.
int nccl_connect(nccl_state *n, const zero_config *config);
// -------- memory (nccl_memory.c)

int nccl_bytes_left(size_t *left);  // of the device
// Counts what NCCL has taken since `before` bytes were left.
int nccl_count_taken(nccl_state *n, size_t before);
void nccl_set_mover(comm *c, memory *m);
int nccl_stage(comm *c, memory *m);
int nccl_prepare(comm *c, memory *m, int (*rehearse)(void *), void *ctx);
int nccl_deregister_all(nccl_state *n);

#endif
