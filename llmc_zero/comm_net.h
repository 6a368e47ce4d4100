/* What connects the ranks, below the transports: MPI (comm_mpi.c), or TCP between all of them (comm_tcp.c). */
#ifndef LLMC_ZERO_COMM_NET_H
#define LLMC_ZERO_COMM_NET_H
#include "comm.h"
#include "rendezvous.h"

typedef struct comm_net {
    int (*agree)(comm *c, int value);                               /* the least of the ranks' values, from 0 on; negative: error */
    int (*broadcast_text)(comm *c, char *text, int bytes);          /* rank 0's */
    /* `bytes` from send[r] to each rank r and from each into receive[r]; ROOT: only from root to the others. */
    int (*exchange)(comm *c, comm_exchange x, int root, char *const *send, char *const *receive, size_t bytes);
    void (*abort)(comm *c, int status);                             /* ends all ranks of the job; does not return */
    void (*close)(comm *c, int clean);                              /* clean 0: after a failure, and the others are told */
} comm_net;

extern const comm_net comm_tcp_net;
/* Connects the ranks and sets rank, ranks, node_rank, ranks_on_node and node_ranks_all. c->timeout_s is set before. */
int comm_tcp_open(comm *c, const rendezvous_settings *s);
/* Without waiting: the number of a rank that is known to be gone, or to have ended the job, with the sentence set; -1: none. For the
 * thread that exchanges, or while none does. */
int comm_tcp_lost(comm *c);
/* After a failure: 1 on the rank that is to speak, which then calls abort; the others are told at once that it ends the job, with status 1.
 * Waits its turn: 0.2 s for each lower rank that is still connected. Where another rank has ended the job it does not return: the process
 * exits with that rank's status, as MPI would end it. */
int comm_tcp_first_to_fail(comm *c);

#endif
