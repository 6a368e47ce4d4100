// This process's rank, as its launcher gives it in the environment. Also zero_launched of zero_job.h.
#ifndef LLMC_ZERO_NET_LAUNCH_H
#define LLMC_ZERO_NET_LAUNCH_H
#include "rendezvous.h"

// Reads RANK and WORLD_SIZE (MASTER_ADDR, MASTER_PORT), Open MPI's variables, or Slurm's, whichever is found
// first. Sets rank, ranks and job; Open MPI's key if s has none; and server if s has neither server nor file:
// rank 0 is on MASTER_ADDR, or on Slurm's first host, at a port that all compute if MASTER_PORT is torchrun's
// own. Returns 1; 0 without a launcher, leaving *s unchanged; or a ZERO_ERR_*. The text of s->server is valid
// until the next call.
int launched_read(rendezvous_settings *s);
int launched_by_mpi(void);  // 1: this process was started by a launcher that MPI supports

#endif
