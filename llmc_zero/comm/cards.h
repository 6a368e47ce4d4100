// Which GPU each rank is on, and the one decision about ranks that share one.
#ifndef LLMC_ZERO_CARDS_H
#define LLMC_ZERO_CARDS_H
#include "comm.h"

typedef struct card {
    uint64_t machine;
    uint64_t gpu;            // its place on its machine's bus, by which NCCL tells GPUs apart
    unsigned char uuid[16];  // MIG's instances of one GPU have UUIDs of their own
    int visible;             // the devices that the rank sees
    int may_share;           // it was given its device by number, or NCCL was told that ranks share GPUs
} card;

// (collective) Gathers the cards of all ranks into c->cards and counts c->ranks_on_device. Ranks that share a
// device take turns on it, which is slow, so with comm.nccl -1 it is an error unless all of them have asked
// for it.
int cards_open(comm *c, const zero_config *config);
void cards_close(comm *c);
// Returns the lowest rank whose GPU, or MIG instance of it, rank r is on too: r itself where it has its own.
int cards_first_on_gpu(const comm *c, int r);
// Fails: "ranks 0 and 1 are on one GPU of host h, where 3 ranks have 2 GPUs", and then tail. first: what
// cards_first_on_gpu(c, other) returned.
int cards_fail(const comm *c, int first, int other, const char *tail);
// The most ranks that can have a GPU of their own on the machine of rank r; 0: as many as are there.
int cards_room(const comm *c, int r);

#endif
