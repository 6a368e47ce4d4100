// Collectives in virtual time (zero_virtual.h).
#ifndef LLMC_ZERO_COMM_VIRTUAL_H
#define LLMC_ZERO_COMM_VIRTUAL_H
#include "comm.h"

int comm_open_virtual(comm *c, memory *m);
void comm_virtual_share(comm *c, const double *mine, double *all, int n);  // comm_share

#endif
