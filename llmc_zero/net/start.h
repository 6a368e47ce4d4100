// How the ranks of a job start and end.
#ifndef LLMC_ZERO_NET_START_H
#define LLMC_ZERO_NET_START_H
#include "net.h"

// (collective) Connects the ranks that the launcher has started, or those of start.mpi_comm. Without a
// launcher this is one rank, and MPI is not used. After an error the caller calls net_close(n, 0).
int net_start(net *n, const zero_config *config);
// Ends the connection. clean 0: after a failure; notifies the other ranks.
void net_close(net *n, int clean);
int launched_by_mpi(void);  // 1: this process was started by a launcher that Open MPI supports

#endif
