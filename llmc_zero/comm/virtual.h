// Collectives in virtual time (zero_virtual.h).
#ifndef LLMC_ZERO_COMM_VIRTUAL_H
#define LLMC_ZERO_COMM_VIRTUAL_H
#include "comm.h"

// As comm_open. way: how bytes would move.
int comm_open_virtual(comm *c, net *ranks, device *d, memory *m, memory_request *planned,
                      const comm_way *way);
// As comm_gather_in_host: the calling thread waits for the bytes.
int comm_virtual_gather_in_host(comm *c, comm_use use, const comm_piece *piece, size_t elem_bytes);
void comm_virtual_share(comm *c, const double *mine, double *all, int n);  // comm_share

#endif
