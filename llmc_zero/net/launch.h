// Who this process is, as its launcher says it in the environment. zero_launched of zero_job.h is here too.
#ifndef LLMC_ZERO_LAUNCH_H
#define LLMC_ZERO_LAUNCH_H
#include "rendezvous.h"

// Reads RANK and WORLD_SIZE (MASTER_ADDR, MASTER_PORT), or Open MPI's variables, or Slurm's, the first that
// are there. Sets rank, ranks and job, Open MPI's key where s has none, and server where s has neither server
// nor file: rank 0 is on MASTER_ADDR, or on Slurm's first host, at a port that all compute where MASTER_PORT
// is torchrun's own. Returns 1; 0 where no launcher is, and *s is unchanged; or a ZERO_ERR_*. The text of
// s->server lives until the next call.
int launched_read(rendezvous_settings *s);
int launched_by_mpi(void);  // 1: a launcher that MPI knows has started this process

#endif
