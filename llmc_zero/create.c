// zero_create and zero_destroy: checks the settings, connects the ranks, opens the device, allocates.
#include "grads.h"
#include "params.h"
#include "step.h"
#include "internal.h"
#include "net/agree.h"
#include "net/failure.h"
#include "net/sockets.h"
#include "settings.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The plan, first as the settings ask for it, then as the ranks are really connected: a window may not be
// possible, NCCL may not be there.
static int make_plan(zero *z, comm_way way) {
    plan_rank of = { z->net.rank, z->net.ranks_on_node, way };
    return plan_make(&z->plan, &z->config, &z->layout, &of);
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
    if (!(z->values = allocate(z, PLAN_VALUES))) return ZERO_ERR_MEMORY;
    z->low_values = (uint16_t *)(z->values + VALUES_CHUNK);
    z->staging = (float *)(z->low_values + VALUES_CHUNK);
    z->norm_parts = (double *)(z->staging + (z->device.asynchronous ? VALUES_CHUNK : 0));
    ZERO_TRY(z->device.f->pin(&z->device, z->values, z->plan.own[PLAN_VALUES].bytes));
    z->pinned = 1;
    return 0;
}

static int create_states(zero *z) {
    ZERO_TRY(trace_init(&z->trace, z->config.debug.trace_events, &z->memory, &z->plan.own[PLAN_TRACE]));
    ZERO_TRY(create_tables(z));
    ZERO_TRY(params_create(z));
    ZERO_TRY(grads_create(z));
    return step_create(z);
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

static int fail_shared_device(const net *c, const device_card *all, int first, int other) {
    int ranks = 0, devices = 0;
    for (int r = 0; r < c->ranks; r++) {
        if (all[r].machine != all[other].machine) continue;
        ranks++;
        devices += first_with_device_of(all, r) == r;
    }
    zero_fail(ZERO_ERR_ARGUMENT, "ranks %d and %d are on one GPU of host %s, where %d ranks have %d GPU%s",
              first, other, net_host(c, other), ranks, devices, devices == 1 ? "" : "s");
    zero_failed_advice(
        "start no more there than it has, let each see one of its own (CUDA_VISIBLE_DEVICES, srun "
        "--gpus-per-task=1), or say that they share by comm.nccl 0: what they exchange then goes "
        "through the host's memory");
    return zero_failed_by_setting("comm.nccl");
}

// Counts the ranks on this one's device. Ranks that share a device take turns on it, which is slow: unless
// all of them have asked for it, that is an error.
static int check_shared_device(zero *z) {
    net *c = &z->net;
    const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    char host[NET_NAME];
    device_card own = { .machine = net_machine(host),
                        .may_share = z->config.cuda_device >= 0 || (shared && atoi(shared)) },
                all[c->ranks];
    z->ranks_on_device = 1;
    if (c->ranks == 1 || z->config.device != ZERO_CUDA) return 0;
    memcpy(own.uuid, z->device.uuid, sizeof own.uuid);
    ZERO_TRY(net_gather(&z->net, &own, all, sizeof own));
    z->ranks_on_device = 0;
    for (int r = 0; r < c->ranks; r++) z->ranks_on_device += have_one_device(&all[r], &own);
    for (int r = 0; r < c->ranks && z->config.comm.nccl < 0; r++) {
        int first = first_with_device_of(all, r);
        if (first < r && !(all[first].may_share && all[r].may_share))
            return fail_shared_device(c, all, first, r);
    }
    return 0;
}

static int run_nothing(void *ctx, task *k) {
    (void)ctx;
    (void)k;
    return 0;
}

// The empty task starts the thread for collectives now, so that all ranks fail where one gets none.
static int open_lanes(zero *z) {
    unsigned threads = z->config.overlap && !z->comm.only_queues ? LANE_BIT(LANE_COLLECTIVES) : 0;
    ZERO_TRY(tasks_open(&z->tasks, &z->device, &z->trace, threads));
    return tasks_run(&z->tasks, run_nothing, NULL);
}

// Runs each of a step's collectives once, on what is still zeros. What it sends is not reported.
static int rehearse(void *ctx) {
    zero *z = ctx;
    int64_t not_reported = 0;
    for (int i = 0; i < z->layout.n_buckets; i++) ZERO_TRY(grads_rehearse(z, i, &not_reported));
    if (z->config.stage == 0) return 0;
    for (int i = 0; i < z->layout.n_units; i++) ZERO_TRY(params_rehearse(z, i, &not_reported));
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
    ZERO_TRY(net_start(&z->net, c));
    ZERO_TRY(same_settings(z, tensors, n_tensors, units, n_units));
    ZERO_TRY(failure_agree(&z->net, device_open(&z->device, c, z->net.node_rank)));
    ZERO_TRY(failure_agree(&z->net, check_shared_device(z)));
    ZERO_TRY(
        layout_init(&z->layout, z->net.ranks, c->reduce_bucket_size, tensors, n_tensors, units, n_units));
    for (int what = 0; what < STATES; what++)
        z->states[what] = state_of(what, c, &z->layout, z->net.rank, &z->device);
    ZERO_TRY(make_plan(z, plan_way(c, z->net.ranks, z->net.ranks_on_node)));
    ZERO_TRY(comm_open(&z->comm, &z->net, c, &z->device, &z->memory, z->plan.comm));
    ZERO_TRY(make_plan(z, comm_way_of(&z->comm)));
    ZERO_TRY(failure_agree(&z->net, comm_stage(&z->comm, &z->memory)));
    loss_scale_init(&z->scale, c);
    ZERO_TRY(failure_agree(&z->net, open_lanes(z)));
    ZERO_TRY(agree(z, create_states(z)));
    ZERO_TRY(comm_prepare(&z->comm, &z->memory, rehearse, z));
    z->trace.used = 0;  // the rehearsal is no part of the run
    return 0;
}

static void destroy(zero *z, int clean) {
    tasks_close(&z->tasks);
    clean = clean && !z->tasks.failed;
    comm_close(&z->comm, clean);
    net_close(&z->net, clean);
    for (int i = 0; z->units && i < z->layout.n_units; i++) tasks_forget(&z->tasks, &z->units[i].gather);
    for (int i = 0; z->buckets && i < z->layout.n_buckets; i++) {
        tasks_forget(&z->tasks, &z->buckets[i].reduce);
        tasks_forget(&z->tasks, &z->buckets[i].gather);
        free(z->buckets[i].pieces);
        free(z->buckets[i].units);
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
    ZERO_TRY(settings_check(config));
    zero *z = calloc(1, sizeof *z);
    if (!z) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the plugin's state");
    z->config = *config;
    int rc = create(z, tensors, n_tensors, units, n_units);
    if (rc && z->net.f && zero_last_failure()->lower < 0) zero_failed_after(failure_lower(&z->net));
    if (rc)
        destroy(z, 0);
    else
        *out = z;
    return rc;
}

void zero_destroy(zero *z) {
    if (z) destroy(z, 1);
}
