// zero_create and zero_destroy: checks the settings, connects the ranks, opens the device, allocates.
#include "internal.h"
#include "comm/nccl.h"
#include "net/late.h"
#include "net/net.h"
#include "net/sockets.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

zero_config zero_defaults(void) {
    return (zero_config){
        .size = sizeof(zero_config),
        .stage = 0,
        .micro_batches = 1,
        .device = ZERO_CPU,
        .cuda_device = -1,
        .prefetch = 1,
        .max_open = 1,
        .overlap = 0,
        .numbers = {
            .dtype = ZERO_F32,
            .initial_scale_power = 16,
            .loss_scale_window = 1000,
            .hysteresis = 2,
            .min_loss_scale = 1,
        },
        .comm = {
            .shared_window = 1,
            .nccl = -1,
            .timeout_s = 300,
        },
        .start = {
            .method = ZERO_START_AUTO,
            .rank = -1,
        },
        .debug = {
            .poison = -1,
        },
    };
}

static int check_numbers(const zero_config *c) {
    if (c->numbers.dtype != ZERO_F32 && c->numbers.dtype != ZERO_BF16 && c->numbers.dtype != ZERO_F16)
        return zero_fail(ZERO_ERR_ARGUMENT, "dtype %d: ZERO_F32, ZERO_BF16 or ZERO_F16",
                         (int)c->numbers.dtype);
    if (c->numbers.no_master && c->numbers.dtype != ZERO_BF16)
        return zero_fail(ZERO_ERR_ARGUMENT,
                         "no_master with %s: only bf16 parameters are rounded stochastically",
                         dtype_name(c->numbers.dtype));
    if (!(c->numbers.loss_scale >= 0) || isinf(c->numbers.loss_scale))
        return zero_fail(ZERO_ERR_ARGUMENT, "loss_scale %g: at least 0, and finite", c->numbers.loss_scale);
    if (c->numbers.initial_scale_power < 0 || c->numbers.initial_scale_power > 126)
        return zero_fail(ZERO_ERR_ARGUMENT, "initial_scale_power %d: 0 to 126",
                         c->numbers.initial_scale_power);
    if (c->numbers.loss_scale_window < 1)
        return zero_fail(ZERO_ERR_ARGUMENT, "loss_scale_window %d: at least 1", c->numbers.loss_scale_window);
    if (c->numbers.hysteresis < 1)
        return zero_fail(ZERO_ERR_ARGUMENT, "hysteresis %d: at least 1", c->numbers.hysteresis);
    if (!(c->numbers.min_loss_scale >= 0x1p-126) || isinf(c->numbers.min_loss_scale))
        return zero_fail(ZERO_ERR_ARGUMENT, "min_loss_scale %g: at least 2^-126, and finite",
                         c->numbers.min_loss_scale);
    return 0;
}

static int check_config(const zero_config *c) {
    if (!c || c->size != sizeof *c)
        return zero_fail(
            ZERO_ERR_ARGUMENT,
            "zero_config.size is not that of this library: start from zero_defaults() and the same zero.h");
    if (c->stage < 0 || c->stage > 3)
        return zero_fail(ZERO_ERR_ARGUMENT, "stage %d: the stages are 0, 1, 2 and 3", c->stage);
    if (c->debug.naive && c->stage)
        return zero_fail(ZERO_ERR_ARGUMENT, "the naive path is plain data parallel: stage 0, not %d",
                         c->stage);
    ZERO_TRY(check_numbers(c));
    if (c->comm.nccl < -1 || c->comm.nccl > 1)
        return zero_fail(ZERO_ERR_ARGUMENT, "nccl %d: -1, 0 or 1", c->comm.nccl);
    if (c->device == ZERO_CPU && (c->comm.nccl > 0 || c->comm.reduce_nccl))
        return zero_fail(ZERO_ERR_ARGUMENT, "NCCL is for CUDA devices: device ZERO_CUDA");
    if (c->comm.reduce_nccl && c->comm.nccl != 1)
        return zero_fail(ZERO_ERR_ARGUMENT, "reduce_nccl needs nccl 1");
    if (c->device != ZERO_CPU && c->device != ZERO_CUDA)
        return zero_fail(ZERO_ERR_ARGUMENT, "device %d: ZERO_CPU or ZERO_CUDA", (int)c->device);
    if (c->debug.naive && c->device == ZERO_CUDA)
        return zero_fail(ZERO_ERR_ARGUMENT, "the naive path computes on the processor: device ZERO_CPU");
    if (c->micro_batches < 1)
        return zero_fail(ZERO_ERR_ARGUMENT, "micro_batches %d: at least 1", c->micro_batches);
    if (c->reduce_bucket_size < 0)
        return zero_fail(ZERO_ERR_ARGUMENT, "reduce_bucket_size %lld: at least 0",
                         (long long)c->reduce_bucket_size);
    if (c->prefetch < 0 || c->prefetch > 1024)
        return zero_fail(ZERO_ERR_ARGUMENT, "prefetch %d: 0 to 1024 units", c->prefetch);
    if (c->max_open < 1 || c->max_open > 1024)
        return zero_fail(ZERO_ERR_ARGUMENT, "max_open %d: 1 to 1024 units", c->max_open);
    if (c->comm.window_bytes && (c->comm.window_bytes < 64 << 10 || c->comm.window_bytes > 16 << 20))
        return zero_fail(ZERO_ERR_ARGUMENT, "window_bytes %lld: 0, or 64 KiB to 16 MiB",
                         (long long)c->comm.window_bytes);
    if (!(c->comm.timeout_s > 0 && c->comm.timeout_s <= 1e6))
        return zero_fail(ZERO_ERR_ARGUMENT, "comm_timeout_s %g: above 0, at most 1e6", c->comm.timeout_s);
    if (c->start.method < ZERO_START_AUTO || c->start.method > ZERO_START_FILE)
        return zero_fail(ZERO_ERR_ARGUMENT, "start.method %d: ZERO_START_AUTO, _MPI, _TCP or _FILE",
                         (int)c->start.method);
    if (c->debug.trace_events < 0)
        return zero_fail(ZERO_ERR_ARGUMENT, "trace_events %d: at least 0", c->debug.trace_events);
    return 0;
}

static int create_tables(zero *z) {
    int n = z->layout.n_units;
    ZERO_TRY(schedule_create(&z->schedule, n, z->config.stage == 3));  // where every use is collective
    z->units = calloc(n, sizeof *z->units);
    z->buckets = calloc(z->layout.n_buckets, sizeof *z->buckets);
    z->own_params = calloc(n, sizeof *z->own_params);
    z->own_grads = calloc(n, sizeof *z->own_grads);
    if (!z->units || !z->buckets || !z->own_params || !z->own_grads)
        return zero_fail(ZERO_ERR_MEMORY, "out of memory for the tables of %d units", n);
    size_t norms = (size_t)(z->comm.ranks + 1) * n * sizeof(double), values = VALUES_CHUNK * sizeof(float),
           low = VALUES_CHUNK * sizeof(uint16_t);
    size_t staging = z->device.asynchronous ? values : 0, all = values + low + staging + norms;
    if (!(z->values = memory_alloc_host(&z->memory, ZERO_WORKING, "values in and out", all)))
        return ZERO_ERR_MEMORY;
    z->low_values = (uint16_t *)(z->values + VALUES_CHUNK);
    z->staging = (float *)(z->low_values + VALUES_CHUNK);
    z->norm_parts = (double *)((char *)z->staging + staging);
    ZERO_TRY(z->device.f->pin(&z->device, z->values, all));
    z->pinned = 1;
    return 0;
}

// Staging with room for the largest reduction.
static int stage_reductions(zero *z) {
    int64_t most = 0;
    for (const layout_bucket *b = z->layout.buckets; b < z->layout.buckets + z->layout.n_buckets; b++)
        if (b->elems > most) most = b->elems;
    return comm_nccl_stage(&z->comm, &z->memory, &z->config,
                           most / z->comm.ranks * dtype_bytes(wire_type(z)));
}

static int create_states(zero *z) {
    ZERO_TRY(trace_init(&z->trace, z->config.debug.trace_events, &z->memory));
    ZERO_TRY(create_tables(z));
    ZERO_TRY(params_create(z));
    ZERO_TRY(grads_create(z));
    ZERO_TRY(stage_reductions(z));
    return optimizer_create(z);
}

// What tells whether two ranks have one device, whatever number it has for each. MIG's instances of a GPU
// have UUIDs of their own.
typedef struct {
    uint64_t machine;
    unsigned char uuid[16];
    int may_share;
} device_card;

static int have_one_device(const device_card *a, const device_card *b) {
    return a->machine == b->machine && !memcmp(a->uuid, b->uuid, sizeof a->uuid);
}

// The lowest rank whose device rank r has as well: most often r.
static int first_with_device_of(const device_card *all, int r) {
    int first = 0;
    while (!have_one_device(&all[first], &all[r])) first++;
    return first;
}

static int fail_shared_device(const comm *c, const device_card *all, int first, int other) {
    int ranks = 0, devices = 0;
    for (int r = 0; r < c->ranks; r++) {
        if (all[r].machine != all[other].machine) continue;
        ranks++;
        devices += first_with_device_of(all, r) == r;
    }
    return zero_fail(ZERO_ERR_ARGUMENT,
                     "ranks %d and %d are on one GPU of host %s, where %d ranks have %d GPU%s: start no more "
                     "there than it "
                     "has, let each see one of its own (CUDA_VISIBLE_DEVICES, srun --gpus-per-task=1), or "
                     "say that they share (--comm host, "
                     "nccl 0: what they exchange then goes through the host's memory)",
                     first, other, comm_host(c, other), ranks, devices, devices == 1 ? "" : "s");
}

// Counts the ranks on this one's device. Ranks that share a device take turns on it, which is slow: unless
// all of them have asked for it, that is an error.
static int check_shared_device(zero *z) {
    const comm *c = &z->comm;
    const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    char host[NET_NAME];
    device_card own = { .machine = net_machine(host),
                        .may_share = z->config.cuda_device >= 0 || (shared && atoi(shared)) },
                all[c->ranks];
    z->ranks_on_device = 1;
    if (c->ranks == 1 || z->config.device != ZERO_CUDA) return 0;
    memcpy(own.uuid, z->device.uuid, sizeof own.uuid);
    ZERO_TRY(comm_net_gather(&z->comm, &own, all, sizeof own));
    z->ranks_on_device = 0;
    for (int r = 0; r < c->ranks; r++) z->ranks_on_device += have_one_device(&all[r], &own);
    for (int r = 0; r < c->ranks && z->config.comm.nccl < 0; r++) {
        int first = first_with_device_of(all, r);
        if (first < r && !(all[first].may_share && all[r].may_share))
            return fail_shared_device(c, all, first, r);
    }
    return 0;
}

// One rank, and ranks with NCCL, on a CUDA device only queue work: no thread is needed for that.
static int queues_only(const zero *z) {
    return z->device.asynchronous && (z->comm.ranks == 1 || z->comm.nccl);
}

// Where NCCL was not asked for but may be used, a reason against it is no failure; it is told in the
// transport's name, without the advice.
static int open_nccl(zero *z) {
    const zero_config *c = &z->config;
    comm *ranks = &z->comm;
    if (!c->comm.nccl || c->device != ZERO_CUDA || ranks->ranks == 1) return 0;
    int rc = comm_agree_opened(ranks, comm_nccl_open(ranks, c, &z->device, &z->memory));
    if (!rc) {
        ranks->gather_stream = GATHER;
        const char *sums = c->comm.reduce_nccl ? ", bits depend on it" : ", summed in rank order";
        const char *windows = comm_nccl_has_windows(ranks) ? ", symmetric windows" : "";
        snprintf(ranks->name, sizeof ranks->name, "nccl%s%s", sums, windows);
        return 0;
    }
    comm_nccl_close(ranks, 0);
    z->memory.mover = NULL;
    if (c->comm.nccl > 0) return rc;
    const char *why = zero_last_error();
    size_t n = strlen(ranks->name), length = strcspn(why, ";"),
           room = sizeof ranks->name - n - sizeof " (no NCCL: )";
    snprintf(ranks->name + n, sizeof ranks->name - n, " (no NCCL: %.*s)",
             (int)(length < room ? length : room), why);
    return 0;
}

// Each of a step's collectives once, on what is still zeros: NCCL connects the ranks for it, and a step then
// finds it connected.
static int rehearse(void *ctx) {
    zero *z = ctx;
    int64_t not_reported = 0;
    for (int i = 0; i < z->layout.n_buckets; i++) ZERO_TRY(grads_rehearse(z, i, &not_reported));
    if (z->config.stage == 0) return 0;
    for (int i = 0; i < z->layout.n_units; i++) ZERO_TRY(params_rehearse(z, i, &not_reported));
    return 0;
}

static int prepare_nccl(zero *z) {
    ZERO_TRY(comm_nccl_prepare(&z->comm, &z->memory, rehearse, z));
    z->trace.used = 0;
    return 0;
}

static int create(zero *z, const zero_tensor *tensors, int n_tensors, const zero_unit *units, int n_units) {
    zero_config *c = &z->config;
    if (c->debug.poison < 0) {
        const char *v = getenv("ZERO_POISON");
        c->debug.poison = v && strcmp(v, "") && strcmp(v, "0");
    }
    c->overlap = c->overlap != 0;
    z->memory.device = &z->device;
    z->device = device_host;
    ZERO_TRY(comm_connect(&z->comm, c));
    ZERO_TRY(same_settings(z, tensors, n_tensors, units, n_units));
    ZERO_TRY(comm_agree_opened(&z->comm, device_open(&z->device, c, z->comm.node_rank)));
    ZERO_TRY(comm_agree_opened(&z->comm, check_shared_device(z)));
    ZERO_TRY(comm_open(&z->comm, c, &z->device, &z->memory));
    ZERO_TRY(open_nccl(z));
    ZERO_TRY(comm_agree_opened(&z->comm, comm_open_incoming(&z->comm, &z->memory)));
    ZERO_TRY(
        layout_init(&z->layout, z->comm.ranks, c->reduce_bucket_size, tensors, n_tensors, units, n_units));
    for (int what = 0; what < STATES; what++)
        z->states[what] = state_of(what, c, &z->layout, z->comm.rank, &z->device);
    loss_scale_init(&z->scale, c);
    ZERO_TRY(
        comm_agree_opened(&z->comm, progress_start(&z->progress, &z->device, c->overlap && !queues_only(z))));
    z->progress.trace = &z->trace;
    ZERO_TRY(agree(z, create_states(z)));
    return prepare_nccl(z);
}

static void destroy(zero *z, int clean) {
    progress_stop(&z->progress);
    if (z->comm.nccl) comm_nccl_close(&z->comm, clean && !z->progress.failed);
    comm_close(&z->comm, clean && !z->progress.failed);
    for (int i = 0; z->units && i < z->layout.n_units; i++)
        progress_forget(&z->progress, &z->units[i].gather);
    for (int i = 0; z->buckets && i < z->layout.n_buckets; i++) {
        progress_forget(&z->progress, &z->buckets[i].reduce);
        free(z->buckets[i].pieces);
    }
    free(z->units);
    free(z->buckets);
    free(z->own_params);
    free(z->own_grads);
    free(z->slots);
    free(z->slot_unit);
    schedule_free(&z->schedule);
    layout_free(&z->layout);
    if (z->pinned) z->device.f->unpin(&z->device, z->values);
    memory_free_all(&z->memory);
    device_close(&z->device);
    free(z);
}

int zero_create(zero **out, const zero_config *config, const zero_tensor *tensors, int n_tensors,
                const zero_unit *units, int n_units) {
    *out = NULL;
    ZERO_TRY(check_config(config));
    zero *z = calloc(1, sizeof *z);
    if (!z) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the plugin's state");
    z->config = *config;
    int rc = create(z, tensors, n_tensors, units, n_units);
    const comm_net *net = z->comm.net;
    if (rc && net && net->lower && zero_failure_shared_as() < 0)
        zero_fail_shared(rc, net->lower(&z->comm));  // a rank is gone: all see it
    if (rc)
        destroy(z, 0);
    else
        *out = z;
    return rc;
}

void zero_destroy(zero *z) {
    if (z) destroy(z, 1);
}
