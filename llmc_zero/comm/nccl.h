// Collectives through NCCL, for ranks with one GPU each: between device memories, queued on the device's
// streams. A rank sends as many bytes as through the host's staging, and by default gets the same bits.
//
//   reductions  on stream COMM, in one group or in two (comm/staging.h), with a communicator for each
//   gathers     on stream GATHER, with another one, so that they need not wait for queued reductions
//
// A collective that another rank stalls never ends. So the host waits for collectives with a limit
// (nccl_wait.c), and the trainer's stream never waits for one (base/tasks.c). After a failure the
// communicators stay as they are, and the job ends.
#ifndef LLMC_ZERO_COMM_NCCL_H
#define LLMC_ZERO_COMM_NCCL_H
#include "comm.h"

#ifdef ZERO_HAVE_NCCL
// (collective) Loads the library. Returns 0 if all ranks can use NCCL; otherwise all fail alike.
int comm_check_nccl(comm *c, const zero_config *config);
// (collective) Connects the ranks, and sets c->f and c->nccl. Takes at most timeout_s for each
// communicator. An error is this rank's alone, and the others may wait for it: end the job.
int comm_open_nccl(comm *c, const zero_config *config, memory *m);
#else
#include "../base/error.h"
static inline int comm_check_nccl(comm *c, const zero_config *config) {
    return zero_fail(ZERO_ERR_ARGUMENT,
                     "built without NCCL; install NVIDIA's package libnccl-dev and build again");
}
static inline int comm_open_nccl(comm *c, const zero_config *config, memory *m) { return 0; }
#endif
#endif
