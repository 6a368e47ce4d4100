// Creation, the hooks, the accessors: the rules of use are checked here, the work is done in params.c,
// grads.c and step.c.
#include "internal.h"
#include "net/late.h"
#include "comm/nccl.h"
#include "net/net.h"
#include "net/sockets.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// -------- creation

static int check_numbers(const zero_config *c) {
    if (c->dtype != ZERO_F32 && c->dtype != ZERO_BF16 && c->dtype != ZERO_F16)
        return zero_fail(ZERO_ERR_ARGUMENT, "dtype %d: ZERO_F32, ZERO_BF16 or ZERO_F16", (int)c->dtype);
    if (c->no_master && c->dtype != ZERO_BF16)
        return zero_fail(ZERO_ERR_ARGUMENT,
                         "no_master with %s: only bf16 parameters are rounded stochastically",
                         dtype_name(c->dtype));
    if (!(c->loss_scale >= 0) || isinf(c->loss_scale))
        return zero_fail(ZERO_ERR_ARGUMENT, "loss_scale %g: at least 0, and finite", c->loss_scale);
    if (c->initial_scale_power < 0 || c->initial_scale_power > 126)
        return zero_fail(ZERO_ERR_ARGUMENT, "initial_scale_power %d: 0 to 126", c->initial_scale_power);
    if (c->loss_scale_window < 1)
        return zero_fail(ZERO_ERR_ARGUMENT, "loss_scale_window %d: at least 1", c->loss_scale_window);
    if (c->hysteresis < 1) return zero_fail(ZERO_ERR_ARGUMENT, "hysteresis %d: at least 1", c->hysteresis);
    if (!(c->min_loss_scale >= 0x1p-126) || isinf(c->min_loss_scale))
        return zero_fail(ZERO_ERR_ARGUMENT, "min_loss_scale %g: at least 2^-126, and finite",
                         c->min_loss_scale);
    return 0;
}

static int check_config(const zero_config *c) {
    if (!c || c->size != sizeof *c)
        return zero_fail(
            ZERO_ERR_ARGUMENT,
            "zero_config.size is not that of this library: start from ZERO_CONFIG_INIT and the same zero.h");
    if (c->stage < 0 || c->stage > 3)
        return zero_fail(ZERO_ERR_ARGUMENT, "stage %d: the stages are 0, 1, 2 and 3", c->stage);
    if (c->naive && c->stage)
        return zero_fail(ZERO_ERR_ARGUMENT, "the naive path is plain data parallel: stage 0, not %d",
                         c->stage);
    ZERO_TRY(check_numbers(c));
    if (c->nccl < -1 || c->nccl > 1) return zero_fail(ZERO_ERR_ARGUMENT, "nccl %d: -1, 0 or 1", c->nccl);
    if (c->device == ZERO_CPU && (c->nccl > 0 || c->reduce_nccl))
        return zero_fail(ZERO_ERR_ARGUMENT, "NCCL is for CUDA devices: device ZERO_CUDA");
    if (c->reduce_nccl && c->nccl != 1) return zero_fail(ZERO_ERR_ARGUMENT, "reduce_nccl needs nccl 1");
    if (c->device != ZERO_CPU && c->device != ZERO_CUDA)
        return zero_fail(ZERO_ERR_ARGUMENT, "device %d: ZERO_CPU or ZERO_CUDA", (int)c->device);
    if (c->naive && c->device == ZERO_CUDA)
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
    if (c->window_bytes && (c->window_bytes < 64 << 10 || c->window_bytes > 16 << 20))
        return zero_fail(ZERO_ERR_ARGUMENT, "window_bytes %lld: 0, or 64 KiB to 16 MiB",
                         (long long)c->window_bytes);
    if (!(c->comm_timeout_s > 0 && c->comm_timeout_s <= 1e6))
        return zero_fail(ZERO_ERR_ARGUMENT, "comm_timeout_s %g: above 0, at most 1e6", c->comm_timeout_s);
    if (c->start < ZERO_START_AUTO || c->start > ZERO_START_FILE)
        return zero_fail(ZERO_ERR_ARGUMENT, "start %d: ZERO_START_AUTO, _MPI, _TCP or _FILE", (int)c->start);
    if (c->trace_events < 0)
        return zero_fail(ZERO_ERR_ARGUMENT, "trace_events %d: at least 0", c->trace_events);
    return 0;
}

static int create_optimizer_state(zero *z) {
    size_t bytes = (z->config.stage == 0 ? z->layout.flat_elems : z->layout.shard_elems) * sizeof(float);
    int masters = z->config.dtype != ZERO_F32 && !z->config.no_master;
    if (masters && !(z->master = memory_alloc(&z->memory, ZERO_STATES, "master weights", bytes)))
        return ZERO_ERR_MEMORY;
    z->moment1 = memory_alloc(&z->memory, ZERO_STATES, "first moment", bytes);
    z->moment2 = memory_alloc(&z->memory, ZERO_STATES, "second moment", bytes);
    return z->moment1 && z->moment2 ? 0 : ZERO_ERR_MEMORY;
}

static int create_tables(zero *z) {
    int n = z->layout.n_units;
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
    ZERO_TRY(trace_init(&z->trace, z->config.trace_events, &z->memory));
    ZERO_TRY(create_tables(z));
    ZERO_TRY(params_create(z));
    ZERO_TRY(grads_create(z));
    ZERO_TRY(stage_reductions(z));
    ZERO_TRY(create_optimizer_state(z));
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
    for (int r = 0; r < c->ranks && z->config.nccl < 0; r++) {
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
    if (!c->nccl || c->device != ZERO_CUDA || ranks->ranks == 1) return 0;
    int rc = comm_agree_opened(ranks, comm_nccl_open(ranks, c, &z->device, &z->memory));
    if (!rc) {
        ranks->gather_stream = GATHER;
        const char *sums = c->reduce_nccl ? ", bits depend on it" : ", summed in rank order";
        const char *windows = comm_nccl_has_windows(ranks) ? ", symmetric windows" : "";
        snprintf(ranks->name, sizeof ranks->name, "nccl%s%s", sums, windows);
        return 0;
    }
    comm_nccl_close(ranks, 0);
    z->memory.mover = NULL;
    if (c->nccl > 0) return rc;
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
    for (int i = 0; i < z->layout.n_buckets; i++) {
        ZERO_TRY(progress_submit(&z->progress, &z->buckets[i].reduce));
        ZERO_TRY(progress_wait(&z->progress, &z->buckets[i].reduce));
    }
    for (int i = 0; z->config.stage && i < z->layout.n_units; i++) ZERO_TRY(params_rehearse(z, i));
    return 0;
}

// What is moved for that is no part of a step.
static int prepare_nccl(zero *z) {
    zero_traffic before = z->comm.traffic;
    ZERO_TRY(comm_nccl_prepare(&z->comm, &z->memory, rehearse, z));
    z->comm.traffic = before;
    z->trace.used = 0;
    return 0;
}

static int create(zero *z, const zero_tensor *tensors, int n_tensors, const zero_unit *units, int n_units) {
    zero_config *c = &z->config;
    if (c->poison < 0) {
        const char *v = getenv("ZERO_POISON");
        c->poison = v && strcmp(v, "") && strcmp(v, "0");
    }
    c->overlap = c->overlap != 0;
    z->memory.device = &z->device;
    z->device = device_host;
    ZERO_TRY(comm_connect(&z->comm, c));
    z->comm.purpose = ZERO_FOR_SCALARS;
    ZERO_TRY(same_settings(z, tensors, n_tensors, units, n_units));
    ZERO_TRY(comm_agree_opened(&z->comm, device_open(&z->device, c, z->comm.node_rank)));
    ZERO_TRY(comm_agree_opened(&z->comm, check_shared_device(z)));
    ZERO_TRY(comm_open(&z->comm, c, &z->device, &z->memory));
    ZERO_TRY(open_nccl(z));
    ZERO_TRY(comm_agree_opened(&z->comm, comm_open_incoming(&z->comm, &z->memory)));
    ZERO_TRY(
        layout_init(&z->layout, z->comm.ranks, c->reduce_bucket_size, tensors, n_tensors, units, n_units));
    z->grad_type = sums_micro_batches(z) ? ZERO_F32 : c->dtype;
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
    free(z->order[0].units);
    free(z->order[1].units);
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

// -------- ranks

int zero_rank(const zero *z) { return z->comm.rank; }
int zero_ranks(const zero *z) { return z->comm.ranks; }

typedef struct {
    zero *z;
    double *values;
    int n;
    int root;
    void *data;
    size_t bytes;
} scalar_request;

static int run_barrier(void *ctx, job *j) {
    (void)j;
    return comm_barrier(&((zero *)ctx)->comm);
}
int zero_barrier(zero *z) { return progress_run(&z->progress, run_barrier, z); }

static int run_sum(void *ctx, job *j) {
    (void)j;
    scalar_request *s = ctx;
    comm *c = &s->z->comm;
    double all[c->ranks * s->n];
    c->purpose = ZERO_FOR_SCALARS;
    ZERO_TRY(comm_share(c, s->values, all, s->n));
    for (int i = 0; i < s->n; i++) {
        s->values[i] = all[i];
        for (int r = 1; r < c->ranks; r++) s->values[i] += all[r * s->n + i];
    }
    return 0;
}
int zero_sum(zero *z, double *values, int n) {
    if (n < 1 || n > 64) return zero_fail(ZERO_ERR_ARGUMENT, "zero_sum: %d values; 1 to 64", n);
    ZERO_TRY(comm_nccl_failed(
        &z->comm));  // the values may come from what a collective that has failed left behind
    scalar_request s = { .z = z, .values = values, .n = n };
    return progress_run(&z->progress, run_sum, &s);
}

static int run_broadcast(void *ctx, job *j) {
    (void)j;
    scalar_request *s = ctx;
    s->z->comm.purpose = ZERO_FOR_SCALARS;
    return comm_broadcast(&s->z->comm, s->root, s->data, s->bytes);
}
int zero_broadcast(zero *z, int root, void *data, size_t bytes) {
    if (root < 0 || root >= z->comm.ranks)
        return zero_fail(ZERO_ERR_ARGUMENT, "zero_broadcast: root %d of %d ranks", root, z->comm.ranks);
    scalar_request s = { .z = z, .root = root, .data = data, .bytes = bytes };
    return progress_run(&z->progress, run_broadcast, &s);
}

int zero_first_to_fail(zero *z) {
    if (z) {
        const comm_net *net = z->comm.net;
        int first = comm_window_first_to_fail(&z->comm);
        if (net) first = net->first_to_fail(&z->comm, first);
        if (first >= 0) return first;
        double turn = comm_turn_s(z->comm.rank);  // without a window: in turn, the first ends the others
        nanosleep(&(struct timespec){ (time_t)turn, (long)((turn - (time_t)turn) * 1e9) }, NULL);
        return 1;
    }
    int rank, ranks, local, shared_as = zero_failure_shared_as();
    zero_launched_as(&rank, &ranks, &local);
    if (shared_as > 0 && !comm_mpi_launched()) {  // nobody else ends this rank; rank 0 speaks first
        nanosleep(&(struct timespec){ 1, 0 }, NULL);
        zero_end_all(NULL, 1);
    }
    return shared_as == 0 || rank == 0;
}

int wait_for_device(zero *z, device_stream s) {
    ZERO_TRY(z->device.f->wait(&z->device, s));
    return z->comm.nccl ? comm_nccl_failed(&z->comm) : 0;
}

// All ranks fail if one does, with the error of the lowest rank that failed; where others did not, it is
// named.
int agree(zero *z, int rc) {
    comm *c = &z->comm;
    struct {
        int rc;
        char sentence[512];
    } mine = { rc, "" }, first = { 0, "" };
    double failed = rc != 0;
    if (rc) snprintf(mine.sentence, sizeof mine.sentence, "%s", zero_last_error());
    int comm_rc = zero_sum(z, &failed, 1), who = 0;
    for (int r = 0; !comm_rc && failed && !first.rc && r < c->ranks; r++) {
        first = mine;
        who = r;
        comm_rc = zero_broadcast(z, r, &first, sizeof first);
    }
    if (comm_rc || !failed) return comm_rc ? comm_rc : rc;
    if (failed < c->ranks && strncmp(first.sentence, "rank ", 5))
        zero_fail(first.rc, "rank %d (host %s): %s", who, comm_host(c, who), first.sentence);
    else
        zero_fail(first.rc, "%s", first.sentence);
    return zero_fail_shared(first.rc, c->rank);
}

void zero_end_all(zero *z, int status) {
    if (z && z->comm.net) z->comm.net->abort(&z->comm, status);
    exit(status);
}

// -------- hooks

// Not only where its bytes are missed: a step of many micro-batches may have no collective for minutes.
static int check_ranks(zero *z, int unit) {
    const comm_net *net = z->comm.net;
    double now = comm_now();
    if (!net || !net->lost || now - z->looked < 0.1) return 0;
    z->looked = now;
    if (net->lost(&z->comm, NULL) < 0) return 0;
    char why[512];
    snprintf(why, sizeof why, "%s", zero_last_error());
    return zero_fail(ZERO_ERR_COMM, "%s, noticed by rank %d (host %s) at unit %d, in no collective", why,
                     z->comm.rank, comm_host(&z->comm, z->comm.rank), unit);
}

static int check_hook(zero *z, int unit) {
    if (unit < 0 || unit >= z->layout.n_units)
        return zero_fail(ZERO_ERR_MISUSE, "unit %d: there are units 0 to %d", unit, z->layout.n_units - 1);
    if (!z->pass)
        return zero_fail(ZERO_ERR_MISUSE, "unit %d (%s): zero_begin comes first", unit,
                         z->layout.units[unit].name);
    return check_ranks(z, unit);
}

int check_closed(const zero *z, const char *caller) {
    for (int i = 0; i < z->layout.n_units; i++)
        if (z->units[i].forward_open || z->units[i].backward_open)
            return zero_fail(ZERO_ERR_MISUSE, "%s: unit %d (%s) is still open", caller, i,
                             z->layout.units[i].name);
    return 0;
}

int check_uses_done(const zero *z, const char *caller) {
    for (int i = 0; i < z->layout.n_units; i++) {
        const layout_unit *l = &z->layout.units[i];
        const unit_state *u = &z->units[i];
        int forward = u->forward_done < l->forward_uses;
        if (forward || u->backward_done < l->backward_uses)
            return zero_fail(ZERO_ERR_MISUSE, "%s: unit %d (%s) has finished %d of its %d %s uses", caller, i,
                             l->name, forward ? u->forward_done : u->backward_done,
                             forward ? l->forward_uses : l->backward_uses, forward ? "forward" : "backward");
    }
    return 0;
}

static int check_begin(const zero *z, zero_mode mode, int micro, int of) {
    ZERO_TRY(check_closed(z, "zero_begin"));
    if (mode == ZERO_EVAL)
        return z->begun ? zero_fail(ZERO_ERR_MISUSE,
                                    "zero_begin: an evaluation inside a training step; finish the step first")
                        : 0;
    if (mode != ZERO_TRAIN)
        return zero_fail(ZERO_ERR_ARGUMENT, "zero_begin: mode %d is neither ZERO_TRAIN nor ZERO_EVAL",
                         (int)mode);
    if (of < 1 || of > z->config.micro_batches || micro < 0 || micro >= of)
        return zero_fail(ZERO_ERR_MISUSE, "zero_begin: micro-batch %d of %d; the configuration allows %d",
                         micro, of, z->config.micro_batches);
    if (micro > 0 && (!z->begun || micro != z->micro + 1 || of != z->micro_of))
        return zero_fail(ZERO_ERR_MISUSE,
                         "zero_begin: micro-batch %d of %d does not follow micro-batch %d of %d", micro, of,
                         z->micro, z->micro_of);
    return micro > 0 ? check_uses_done(z, "zero_begin") : 0;
}

int zero_begin(zero *z, zero_mode mode, int micro, int of) {
    ZERO_TRY(check_begin(z, mode, micro, of));
    z->mode = mode;
    z->pass = 1;
    z->forward_left = z->reads_left = 0;
    for (int i = 0; i < z->layout.n_units; i++) {
        const layout_unit *l = &z->layout.units[i];
        z->units[i].forward_done = z->units[i].backward_done = 0;
        z->forward_left += l->forward_uses;
        z->reads_left += l->forward_uses;
        for (int use = 0; use < l->backward_uses; use++) z->reads_left += !(l->backward_no_params >> use & 1);
    }
    ZERO_TRY(params_begin_pass(z));
    if (mode == ZERO_EVAL) return 0;
    z->micro = micro;
    z->micro_of = of;
    if (micro == 0) {
        ZERO_TRY(grads_wait(z));
        for (int i = 0; i < z->layout.n_buckets; i++) z->buckets[i].filled = 0;
        z->buffer_bucket[0] = z->buffer_bucket[1] = -1;
        z->begun = 1;
        z->reduced = 0;
    }
    return 0;
}

int zero_pre_forward(zero *z, int unit) {
    ZERO_TRY(check_hook(z, unit));
    unit_state *u = &z->units[unit];
    const char *name = z->layout.units[unit].name;
    if (u->forward_open)
        return zero_fail(ZERO_ERR_MISUSE, "pre_forward: unit %d (%s) is open already", unit, name);
    if (z->mode == ZERO_TRAIN && u->forward_done == z->layout.units[unit].forward_uses)
        return zero_fail(ZERO_ERR_MISUSE,
                         "pre_forward: unit %d (%s) has had all its %d forward uses in this micro-batch",
                         unit, name, u->forward_done);
    ZERO_TRY(params_acquire(z, unit));
    z->device.f->mark(&z->device, "forward", name);
    u->forward_open = 1;
    u->opened_s = trace_now(&z->trace);
    return 0;
}

int zero_post_forward(zero *z, int unit) {
    ZERO_TRY(check_hook(z, unit));
    unit_state *u = &z->units[unit];
    if (!u->forward_open)
        return zero_fail(ZERO_ERR_MISUSE, "post_forward: unit %d (%s) is not open for forward", unit,
                         z->layout.units[unit].name);
    u->forward_open = 0;
    u->forward_done++;
    z->forward_left--;
    z->device.f->mark(&z->device, NULL, NULL);
    trace_add(&z->trace, ZERO_EV_FORWARD, unit, 0, u->opened_s);
    return params_release(z, unit);
}

int zero_pre_backward(zero *z, int unit) {
    ZERO_TRY(check_hook(z, unit));
    unit_state *u = &z->units[unit];
    const layout_unit *l = &z->layout.units[unit];
    if (z->mode != ZERO_TRAIN || !z->begun)
        return zero_fail(ZERO_ERR_MISUSE, "pre_backward: unit %d (%s): this pass is no training pass", unit,
                         l->name);
    if (u->backward_open)
        return zero_fail(ZERO_ERR_MISUSE, "pre_backward: unit %d (%s) is open already", unit, l->name);
    if (u->backward_done == l->backward_uses)
        return zero_fail(ZERO_ERR_MISUSE,
                         "pre_backward: unit %d (%s) has had all its %d backward uses in this micro-batch",
                         unit, l->name, l->backward_uses);
    if (u->backward_done == 0) ZERO_TRY(grads_check(z, unit));  // before anything changes
    u->backward_reads = !(l->backward_no_params >> u->backward_done & 1);
    if (u->backward_reads) ZERO_TRY(params_acquire(z, unit));
    if (u->backward_done == 0) ZERO_TRY(grads_open(z, unit));
    z->device.f->mark(&z->device, "backward", l->name);
    u->backward_open = 1;
    u->opened_s = trace_now(&z->trace);
    return 0;
}

int zero_post_backward(zero *z, int unit) {
    ZERO_TRY(check_hook(z, unit));
    unit_state *u = &z->units[unit];
    if (!u->backward_open)
        return zero_fail(ZERO_ERR_MISUSE, "post_backward: unit %d (%s) is not open for backward", unit,
                         z->layout.units[unit].name);
    u->backward_open = 0;
    u->backward_done++;
    z->device.f->mark(&z->device, NULL, NULL);
    trace_add(&z->trace, ZERO_EV_BACKWARD, unit, 0, u->opened_s);
    ZERO_TRY(params_release(z, unit));
    return u->backward_done == z->layout.units[unit].backward_uses ? grads_finish(z, unit) : 0;
}

const layout_place *find_place(const zero *z, int tensor, int layer) {
    const layout_place *p = layout_find(&z->layout, tensor, layer);
    if (p) return p;
    if (tensor < 0 || tensor >= z->layout.n_tensors)
        zero_fail(ZERO_ERR_MISUSE, "tensor %d: there are tensors 0 to %d", tensor, z->layout.n_tensors - 1);
    else
        zero_fail(ZERO_ERR_MISUSE, "tensor %s has no layer %d, only 0 to %d", z->layout.tensors[tensor].name,
                  layer, z->layout.tensors[tensor].layers - 1);
    return NULL;
}

void *zero_param(zero *z, int tensor, int layer) {
    const layout_place *p = find_place(z, tensor, layer);
    if (!p) return NULL;
    int unit = layout_unit_of(&z->layout, p);
    const unit_state *u = &z->units[unit];
    if (!u->forward_open && !(u->backward_open && u->backward_reads)) {
        zero_fail(ZERO_ERR_MISUSE, "zero_param(%s, layer %d): unit %d (%s) is not open for reading",
                  z->layout.tensors[tensor].name, layer, unit, z->layout.units[unit].name);
        return NULL;
    }
    return u->params + p->offset * dtype_bytes(z->config.dtype);
}

void *zero_grad(zero *z, int tensor, int layer) {
    const layout_place *p = find_place(z, tensor, layer);
    if (!p) return NULL;
    int unit = layout_unit_of(&z->layout, p);
    const unit_state *u = &z->units[unit];
    if (!u->backward_open) {
        zero_fail(ZERO_ERR_MISUSE, "zero_grad(%s, layer %d): unit %d (%s) is not open for backward",
                  z->layout.tensors[tensor].name, layer, unit, z->layout.units[unit].name);
        return NULL;
    }
    return u->grads + p->offset * dtype_bytes(z->config.dtype);
}

// -------- memory and traffic

void *zero_alloc(zero *z, zero_memory_class class_, const char *purpose, size_t bytes) {
    return memory_alloc(&z->memory, class_, purpose, bytes);
}

int zero_memory(const zero *z, int i, zero_memory_line *line) {
    if (i < 0 || i >= z->memory.n_lines)
        return zero_fail(ZERO_ERR_ARGUMENT, "the memory table has %d lines", z->memory.n_lines);
    *line = z->memory.lines[i];
    return 0;
}

size_t zero_memory_bytes(const zero *z, zero_memory_class class_) { return memory_bytes(&z->memory, class_); }

size_t zero_states_bytes(const zero_config *c, int64_t parameters, int ranks, int stage) {
    int mixed = c->dtype != ZERO_F32, sums = c->micro_batches > 1;
    double psi = (double)parameters, n = ranks;
    double params = mixed ? 2 : 4, grads = sums || !mixed ? 4 : 2,
           optimizer = mixed && !c->no_master ? 12 : 8;  // bytes a parameter
    return (size_t)ceil(psi * (params / (stage == 3 ? n : 1) + grads / (stage >= 2 ? n : 1) +
                               optimizer / (stage >= 1 ? n : 1)));
}

size_t zero_states_formula(const zero *z, int stage) {
    return zero_states_bytes(&z->config, z->layout.elems, z->comm.ranks, stage);
}

static int run_traffic(void *ctx, job *j) {
    (void)j;
    scalar_request *s = ctx;
    *(zero_traffic *)s->data = s->z->comm.traffic;
    return 0;
}
void zero_get_traffic(zero *z, zero_traffic *t) {
    scalar_request s = { .z = z, .data = t };
    if (progress_run(&z->progress, run_traffic, &s)) *t = z->comm.traffic;
    for (int i = 0; i < ZERO_TRAFFIC_PURPOSES; i++) t->all_gather[i] += z->counted_late[i];
}

// How often stage 3 gathers a unit in a micro-batch: at each use that reads it, but once for the last forward
// use and the backward use that follows it. The tables do not say where a unit's further uses stand: forward
// is taken to end with the unit that is used again (tied weights), else with the table's last.
static int gathers_per_pass(const layout *l, int unit) {
    const layout_unit *u = &l->units[unit];
    int last = l->n_units - 1, gathers = u->forward_uses;
    for (int i = l->n_units - 1; i >= 0; i--)
        if (l->units[i].forward_uses > 1) last = i;
    for (int i = 0; i < u->backward_uses; i++) gathers += !(u->backward_no_params >> i & 1);
    return gathers - (unit == last && !(u->backward_no_params & 1));
}

zero_step_traffic zero_expected_traffic(const zero *z, int micro_batches) {
    const layout *l = &z->layout;
    int stage = z->config.stage;
    int64_t low = dtype_bytes(z->config.dtype), sum = dtype_bytes(z->grad_type),
            wire = dtype_bytes(wire_type(z)), others = z->comm.ranks - 1;
    zero_step_traffic t = { 0, 0 };
    for (int i = 0; i < l->n_units; i++) {
        int64_t elems = l->units[i].shard * others;
        t.reduce_scatter += elems * wire * (stage < 2 ? 1 : micro_batches);
        t.all_gather += stage == 0  ? elems * sum
                        : stage < 3 ? elems * low
                                    : elems * low * micro_batches * gathers_per_pass(l, i);
    }
    return t;
}

void zero_get_effective(const zero *z, zero_effective *e) {
    size_t size = dtype_bytes(z->config.dtype);
    int64_t bytes = 0;
    for (int i = 0; uses_buckets(z) && i < 2; i++)
        if (z->bucket_buffer[i]) bytes += z->layout.largest_bucket * size;
    for (int i = 0; uses_buckets(z) && i < z->layout.n_units; i++)
        if (z->own_grads[i]) bytes += z->layout.units[i].padded * size;
    *e = (zero_effective){ z->layout.largest_bucket,
                           bytes,
                           z->layout.elems,
                           z->n_slots,
                           z->comm.name,
                           z->device.name,
                           z->device.number,
                           z->comm.ranks_on_node,
                           z->ranks_on_device };
}

// -------- trace

int zero_trace_event(const zero *z, int i, zero_event *e) {
    int n = z->trace.used < z->trace.capacity ? z->trace.used : z->trace.capacity;
    if (i < 0 || i >= n) return zero_fail(ZERO_ERR_ARGUMENT, "the trace holds %d events", n);
    *e = z->trace.events[i];
    return 0;
}

int zero_trace_write(zero *z, const char *path) {
    const char *names[z->layout.n_units];
    for (int i = 0; i < z->layout.n_units; i++) names[i] = z->layout.units[i].name;
    ZERO_TRY(grads_wait(z));
    ZERO_TRY(params_complete(z));
    return trace_write(&z->trace, path, z->comm.rank, names, z->layout.n_units);
}
