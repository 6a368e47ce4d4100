// The collectives through host memory. (comm.h has those of host memory: comm_broadcast, comm_share.)
#ifndef LLMC_ZERO_COMM_HOST_H
#define LLMC_ZERO_COMM_HOST_H
#include "comm.h"

extern const comm_functions comm_host_functions;

// (collective) Opens the staging, and sets c->f.
int comm_open_host(comm *c, const zero_config *config, memory *m);
void comm_close_host(comm *c, int clean);

#endif
