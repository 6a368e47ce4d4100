// What connects the ranks, below the transports: MPI (net/mpi.c), or TCP between all of them (net/tcp.c).
// It starts them, carries what a transport has no shared memory for, and ends them together.
#ifndef LLMC_ZERO_COMM_NET_H
#define LLMC_ZERO_COMM_NET_H
#include "../comm/comm.h"
#include "rendezvous.h"

enum { HEARD_NOTHING, HEARD, HEARD_LATE };  // of a rank; it is there; its time was over too

typedef struct comm_net {
    const char *name;
    // `bytes` from send[r] to each rank r and from each into receive[r]; ROOT: only from root to the others.
    int (*exchange)(comm *c, comm_exchange x, int root, char *const *send, char *const *receive,
                    size_t bytes);
    // Without waiting: the number of a rank that is known to be gone, or to have ended the job, with the
    // sentence set; -1: none. Any thread. in: what it is waited for in; NULL: the caller says so. NULL: who
    // connects the ranks sees to it.
    int (*lost)(comm *c, const comm_exchange *in);
    // This rank waits no longer for something that does not come through here; c->timeout_s were over, or
    // not. Tells the others, and hears for comm_hear_s at most what they say. From then on there are no
    // exchanges. Returns 0; else nothing is known. Only where no exchange is under way. heard[r]:
    int (*give_up)(comm *c, int timed_out, char *heard);
    // See zero_first_to_fail. first: what the ranks' shared memory says of it, -1: there is none. Returns -1
    // where nothing more is known: then ranks take turns.
    int (*first_to_fail)(comm *c, int first);
    // After a failure of this rank that the others see too: tells them, and returns how many lower ranks have
    // failed as well, of which the lowest speaks. NULL: the launcher ends all at the first's end.
    int (*lower)(comm *c);
    void (*abort)(comm *c, int status);  // ends all ranks of the job; does not return
    void (*close)(comm *c, int clean);   // clean 0: after a failure, and the others are told
} comm_net;

// These connect the ranks and set net, rank, ranks, hosts, node_rank, ranks_on_node and node_ranks_all.
// c->timeout_s is set before. After an error: net->close, where net is set.
int comm_mpi_open(comm *c, const zero_config *config);
int comm_mpi_launched(void);  // 1 under a launcher that MPI knows
extern const comm_net comm_tcp_net;
int comm_tcp_open(comm *c, const rendezvous_settings *s);

// net/net.c, by exchange
int comm_net_gather(comm *c, const void *mine, void *all,
                    size_t bytes);       // all (ranks * bytes): each rank's mine
int comm_net_agree(comm *c, int value);  // the least of the ranks' values, from 0 on; negative: error
int comm_net_broadcast_text(comm *c, char *text, int bytes);  // rank 0's

#endif
