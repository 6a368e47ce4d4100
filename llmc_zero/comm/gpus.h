// Which GPU each rank uses, and whether ranks may share one.
#ifndef LLMC_ZERO_COMM_GPUS_H
#define LLMC_ZERO_COMM_GPUS_H
#include "comm.h"

typedef struct rank_gpu {
    uint64_t machine;
    uint64_t gpu;            // a hash of machine and bus address; NCCL identifies GPUs by these two
    unsigned char uuid[16];  // MIG instances of one GPU have different UUIDs
    int visible;             // number of devices that the rank sees
    int may_share;           // 1: the user chose the device by number, or allowed NCCL to share GPUs
} rank_gpu;

// (collective) Fills c->gpus and counts c->ranks_on_device. Ranks that share a device take turns on it, which
// is slow, so with comm.nccl -1 sharing is an error unless all of them have requested it.
int gpus_open(comm *c, const zero_config *config, memory *m);
// What ranks may share: a device, or a GPU, which MIG divides into several devices.
typedef enum { ON_DEVICE, ON_GPU } gpu_sharing;
// Returns the lowest rank that shares its device or GPU with rank r; r itself if no lower one does.
int gpus_first(const comm *c, int r, gpu_sharing what);
// Fails with "ranks 0 and 1 are on one GPU of host h, where 3 ranks have 2 GPUs", then tail. other: the
// higher rank.
int gpus_fail(const comm *c, int code, int other, gpu_sharing what, const char *tail);
// Returns 0 if each rank on rank r's machine can have its own GPU; otherwise the number of ranks that can.
int gpus_room(const comm *c, int r);

#endif
