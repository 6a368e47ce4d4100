#define XXH_INLINE_ALL
#include "comm.h"
#include "../base/error.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static int share(const rank_gpu *a, const rank_gpu *b, gpu_sharing what) {
    if (what == ON_GPU) return a->gpu == b->gpu;
    return a->machine == b->machine && !memcmp(a->uuid, b->uuid, sizeof a->uuid);
}

int gpus_first(const comm *c, int r, gpu_sharing what) {
    int first = 0;
    while (!share(&c->gpus[first], &c->gpus[r], what)) first++;
    return first;
}

// Counts for rank r's machine.
typedef struct {
    int ranks, gpus, visible;
} machine_gpus;

static machine_gpus on_machine_of(const comm *c, int r, gpu_sharing what) {
    machine_gpus m = { 0 };
    for (int i = 0; i < c->group.ranks; i++) {
        const rank_gpu *k = &c->gpus[i];
        if (k->machine != c->gpus[r].machine) continue;
        m.ranks++;
        m.gpus += gpus_first(c, i, what) == i;
        if (k->visible > m.visible) m.visible = k->visible;
    }
    return m;
}

int gpus_room(const comm *c, int r) {
    machine_gpus m = on_machine_of(c, r, ON_GPU);
    return m.visible < m.ranks ? m.visible : 0;
}

int gpus_fail(const comm *c, int code, int other, gpu_sharing what, const char *tail) {
    machine_gpus m = on_machine_of(c, other, what);
    return zero_fail(code, "ranks %d and %d are on one GPU of host %s, where %d ranks have %d GPU%s%s",
                     gpus_first(c, other, what), other, net_host(c->net, other), m.ranks, m.gpus,
                     m.gpus == 1 ? "" : "s", tail);
}

// NCCL identifies a machine by its name and boot, or by NCCL_HOSTID.
static rank_gpu own_gpu(const comm *c, const zero_config *config) {
    const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE"), *id = getenv("NCCL_HOSTID");
    const device *d = c->device;
    char host[NET_NAME];
    rank_gpu k = { .machine = net_machine(host), .visible = d->visible };
    uint64_t machine = id && *id ? XXH3_64bits(id, strlen(id)) : k.machine;
    k.gpu = XXH3_64bits_withSeed(d->bus_id, strlen(d->bus_id), machine);
    k.may_share = config->cuda_device >= 0 || (shared && atoi(shared));
    memcpy(k.uuid, d->uuid, sizeof k.uuid);
    return k;
}

static int check_sharing(const comm *c) {
    for (int r = 0; r < c->group.ranks; r++) {
        int first = gpus_first(c, r, ON_DEVICE);
        if (first == r || (c->gpus[first].may_share && c->gpus[r].may_share)) continue;
        gpus_fail(c, ZERO_ERR_ARGUMENT, r, ON_DEVICE, "");
        zero_failed_advice("start no more ranks there than it has GPUs, let each see only one "
                           "(CUDA_VISIBLE_DEVICES, srun --gpus-per-task=1), or let them share with comm.nccl "
                           "0: their data then goes through host memory");
        return zero_failed_by_setting("comm.nccl");
    }
    return 0;
}

int gpus_open(comm *c, const zero_config *config, memory *m) {
    if (config->device != ZERO_CUDA) return 0;
    c->gpus = memory_array(m, c->group.ranks, sizeof *c->gpus);
    ZERO_TRY(net_agree(c->net, c->gpus ? 0 : ZERO_ERR_MEMORY));
    rank_gpu own = own_gpu(c, config);
    ZERO_TRY(net_gather(c->net, &own, c->gpus, sizeof own));
    c->ranks_on_device = 0;
    for (int r = 0; r < c->group.ranks; r++) c->ranks_on_device += share(&c->gpus[r], &own, ON_DEVICE);
    return config->comm.nccl < 0 ? net_agree(c->net, check_sharing(c)) : 0;
}
