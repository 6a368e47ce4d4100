// Collectives through NCCL, for ranks with one GPU each: from device memory to device memory, queued on the
// device's streams. A rank sends as many bytes as it would through the host's staging, and by default the
// shards get the same bits.
//
//   reductions  on stream COMM, with one communicator
//   gathers on stream GATHER, with a second one, so that they need not wait for queued reductions
//
// Nothing here waits for the device; the caller orders streams with events. A thread watches both
// communicators (comm/nccl_watch.c): when NCCL reports an error, or a collective has not ended timeout_s
// after it could start, the thread aborts them. The streams then continue with wrong values, and every later
// call here returns the same error.
//
//   comm/nccl.c          the collectives, and the table
//   comm/nccl_start.c    checks whether these ranks can use NCCL, and connects them
//   comm/nccl_watch.c    failures: limits, the thread, the abort
//   comm/nccl_memory.c   NCCL's allocator, registered buffers, the rehearsal
#ifndef LLMC_ZERO_COMM_NCCL_H
#define LLMC_ZERO_COMM_NCCL_H
#include "comm.h"

#ifdef ZERO_HAVE_NCCL
extern const comm_functions comm_nccl_functions;

// (collective) Loads the library and connects the ranks, using the host's functions. Sets c->f and c->nccl,
// and m's mover to NCCL's allocator. Takes at most timeout_s for each of the two communicators. If one rank
// fails to connect, all fail with its error at once. After an error, call comm_close_nccl (clean 0).
int comm_open_nccl(comm *c, const zero_config *config, memory *m);
void comm_close_nccl(comm *c, int clean);
#else
#include "../base/error.h"
static inline int comm_open_nccl(comm *c, const zero_config *config, memory *m) {
    return zero_fail(ZERO_ERR_ARGUMENT,
                     "built without NCCL; install NVIDIA's package libnccl-dev and build again");
}
static inline void comm_close_nccl(comm *c, int clean) {}
#endif
#endif
