// State shared by the files of the NCCL implementation.
#ifndef LLMC_ZERO_COMM_NCCL_STATE_H
#define LLMC_ZERO_COMM_NCCL_STATE_H
#include "../base/error.h"
#include "../base/patience.h"
#include "comm.h"
#include "nccl_library.h"
#include <pthread.h>

typedef struct {
    net_group of;     // its ranks; one rank: it is not opened
    ncclComm_t comm;  // NULL: not opened
    device_stream on;
    cudaStream_t stream;
    int moves;  // of zero_movers: the memory that it reads or writes
} communicator;
// GATHERS has all ranks. REDUCTIONS has all ranks or, with two groups, those of this host; BETWEEN then has
// the ranks of equal place on the hosts. With config.param_group, gathers run between the ranks of a group,
// or of equal place in the groups.
enum { GATHERS, REDUCTIONS, BETWEEN, GROUP_GATHERS, EQUALS_GATHERS, COMMUNICATORS };

// A collective takes fewer than 10 of the 1024 operations that CUDA queues before a call waits without limit.
enum { QUEUED = 64 };
typedef struct {
    void *begin, *end;  // events, recorded on its stream before and after it
    comm_kind kind;
    comm_use use;
    uint64_t number;
    double began;  // what `waited` was when the device had reached it; below 0: it has not
} collective;

typedef struct comm_nccl {
    comm *c;
    communicator of[COMMUNICATORS];
    int sums;      // 1: NCCL sums
    int overlaps;  // 0: collectives are on the trainer's stream
    size_t taken;  // device memory allocated by NCCL
    struct {
        const communicator *by;
        void *handle;
    } * registered;
    int n_registered;
    pthread_mutex_t lock;  // for all fields below and every call to NCCL
    // calls to NCCL since the last nccl_settle
    ncclResult_t rc;
    const char *call;  // the call that returned rc
    // a ring of collectives that may be unfinished: numbers [first, next)
    collective queue[QUEUED];
    uint64_t first, next;
    patience waited;         // how long the host has waited for the device, in total
    failure_record failure;  // the first one; code 0: none
} nccl_state;

// -------- calls to NCCL (nccl_wait.c). The caller holds the lock, or is the only thread.

// A call returns at once, perhaps with ncclInProgress while NCCL's threads continue. After a failure NCCL is
// not called again.
#define ASK(n, f, ...)                               \
    do {                                             \
        if (!(n)->rc || (n)->rc == ncclInProgress) { \
            (n)->call = "nccl" #f;                   \
            (n)->rc = nccl.f(__VA_ARGS__);           \
        }                                            \
    } while (0)
// Waits until the calls are done, which may be before the work that they queue. w: their collective, or NULL.
int nccl_settle(nccl_state *n, const communicator *k, const collective *w);

// nccl_begin locks, even if it fails, and nccl_finish unlocks.
int nccl_begin(nccl_state *n, const communicator *k, comm_kind kind, comm_use use, collective **w);
int nccl_finish(nccl_state *n, const communicator *k, collective *w, int rc);
int nccl_check(void *state);  // the device's check: fails if a collective has failed or has stalled

int nccl_connect(nccl_state *n);  // nccl_start.c

// -------- comm.nccl_memory (nccl_memory.c)

void nccl_set_mover(comm *c, memory *m);            // m->mover: the device with NCCL's allocator
int nccl_register_moved(nccl_state *n, memory *m);  // registers the mover's blocks
int nccl_deregister_all(nccl_state *n);

#endif
