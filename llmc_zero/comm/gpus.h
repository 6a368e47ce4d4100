// Which GPU each rank uses, and whether ranks may share one.
#ifndef LLMC_ZERO_COMM_GPUS_H
#define LLMC_ZERO_COMM_GPUS_H
#include "comm.h"

typedef struct rank_gpu {
    uint64_t machine;
    uint64_t gpu;            // its bus address on its machine, by which NCCL tells GPUs apart
    unsigned char uuid[16];  // MIG instances of one GPU have different UUIDs
    int visible;             // number of devices that the rank sees
    int may_share;           // the user chose its device by number, or allowed NCCL to share GPUs
} rank_gpu;

// (collective) Fills c->gpus and counts c->ranks_on_device. Ranks that share a device take turns on it, which
// is slow, so with comm.nccl -1 that is an error unless all of them have requested it.
int gpus_open(comm *c, const zero_config *config);
void gpus_close(comm *c);
// What ranks may share: a device, or a GPU, which MIG divides into several devices.
typedef enum { ON_DEVICE, ON_GPU } gpu_sharing;
// Returns the lowest rank that shares this with rank r; r itself if none does.
int gpus_first(const comm *c, int r, gpu_sharing what);
// Fails with "ranks 0 and 1 are on one GPU of host h, where 3 ranks have 2 GPUs", and then tail. other: the
// higher rank.
int gpus_fail(const comm *c, int code, int other, gpu_sharing what, const char *tail);
// Returns how many ranks can have a GPU each on the machine of rank r; 0: all ranks there can.
int gpus_room(const comm *c, int r);

#endif
