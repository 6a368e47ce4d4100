// The collectives on NCCL; see comm/nccl.h. The communicators are non-blocking (ncclConfig_t.blocking = 0): a
// call returns at once, with ncclInProgress while NCCL's own threads go on, and only when
// ncclCommGetAsyncError no longer says so is the work on the stream and may the next call be made. That is
// what makes every wait for the other ranks one that can end.
//
// For each group of a non-blocking communicator NCCL starts a thread, which queues the work; a call outside a
// group counts as one (group.cc, groupLaunchNonBlocking, NCCL 2.26 to 2.30). Blocking communicators would not
// need it, but a call of theirs cannot be ended: NCCL's guide allows ncclCommAbort only on non-blocking ones,
// and it frees what a call in another thread still uses. So groups are kept few: one for each collective,
// since staging has room for the largest bucket's shards (comm_nccl_stage).
#ifdef ZERO_HAVE_NCCL
#define XXH_INLINE_ALL
#include "nccl.h"
#include "../net/failure.h"
#include "../clock.h"
#include "../error.h"
#include "../device/kernels_cuda.h"
#include "nccl_library.h"
#include "../net/sockets.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

cudaStream_t device_cuda_stream(device *d, device_stream s);

enum {
    LEAST_VERSION =
        22600,  // NCCL_LAUNCH_ORDER_IMPLICIT; from 2.22 on a group aborts two communicators at once
    MULTI_RANK_VERSION = 23000,    // NCCL_MULTI_RANK_GPU_ENABLE
    COPY_ENGINE_VERSION = 22800,   // NCCL_CTA_POLICY=2
    NAMED_POLICY_VERSION = 22900,  // NCCL_CTA_POLICY=ZERO
    MOST_CTAS = 16,
    LEAST_CTAS = 4,
    WATCHED = 256,  // collectives of a lane that the host can be ahead of the device
    LOOK_MS = 50
};
enum { SYMMETRIC = 1 };  // NCCL_WIN_COLL_SYMMETRIC, which older headers lack

typedef struct {
    cudaEvent_t begin, end;  // before and after it on its stream
    comm_kind kind;
    comm_use use;
    uint64_t number;
    double began;  // when it was first seen that it could begin; 0: not yet
} collective;

// A communicator, its stream, and what is queued there: collectives first to next, in a ring.
typedef struct {
    ncclComm_t comm;  // NULL: not opened, or aborted
    cudaStream_t stream;
    uint64_t first, next;
    collective queue[WATCHED];
} lane;
enum { REDUCE, GATHERING, LANES };

typedef struct {
    int lane, is_window;
    void *handle;
} registration;

typedef struct {
    comm *c;
    lane lanes[LANES];
    pthread_mutex_t lock;  // around all that follows, and every call of NCCL
    ncclResult_t rc;       // of the calls since the last settle(), and the name of the one that said so
    const char *call;
    int failed, stop, watching;
    enum { OWN_FAULT, REMOTE_FAULT, TIME_OUT } cause;  // of the failure
    int asked;                                         // the others, who is still there
    ncclResult_t aborted;                              // what NCCL said of that
    int unit;                                          // that the failure is about; -1: none
    char sentence[1000];
    size_t names_at;  // in the sentence, where NCCL's words begin
    pthread_t watchdog;
    int nccl_sums;
    char *incoming;  // (ranks, slot_bytes): what the others sent, to be summed; NULL: NCCL sums
    size_t slot_bytes;
    size_t left;                // bytes of the device, before NCCL has taken any
    size_t taken;               // by NCCL since
    int sharing;                // ranks on this rank's device, itself included
    int windows;                // gathers go between symmetric windows
    uint64_t collectives;       // so far
    const collective *current;  // that is being queued
    registration *registered;
    int n_registered, version;
} nccl_state;

// -------- failures

static const char *host_of(const nccl_state *n, int rank) { return net_host(n->c->net, rank); }
static const char *kind_name(comm_kind kind) {
    return kind == COMM_ALL_GATHER ? "all-gather" : "reduce-scatter";
}

// Both at once: NCCL frees memory while it aborts one, and that waits for what the other still runs. Returns
// what NCCL does.
static ncclResult_t abort_lanes(nccl_state *n) {
    if (!n->lanes[REDUCE].comm && !n->lanes[GATHERING].comm)
        return ncclSuccess;  // perhaps the library is not there either
    ncclResult_t rc = ncclGroupStart();
    for (int i = 0; i < LANES; i++) {
        if (!rc && n->lanes[i].comm) rc = ncclCommAbort(n->lanes[i].comm);
        n->lanes[i].comm = NULL;
    }
    ncclResult_t end = ncclGroupEnd();
    if (!rc) rc = end;
    return rc == ncclInProgress ? ncclSuccess : rc;
}

static void *run_abort(void *state) {
    nccl_state *n = state;
    n->c->device->f->enter(
        n->c->device);  // after an error of CUDA it may not let anyone in: NCCL is asked all the same
    n->aborted = abort_lanes(n);
    return NULL;
}

static int relay(const nccl_state *n) {
    zero_failure f = { .code = ZERO_ERR_COMM, .rank = n->c->rank, .unit = n->unit, .lower = -1 };
    snprintf(f.sentence, sizeof f.sentence, "%s", n->sentence);
    return zero_fail_again(&f);
}

// In which NCCL has to end what it runs.
static double abort_s(const nccl_state *n) { return n->c->net->timeout_s < 10 ? n->c->net->timeout_s : 10; }

// The caller may be in a wait for the device that nothing ends, so no other thread can end the job.
static void end_job(nccl_state *n) {
    char sentence[1200];
    if (!n->failed)
        snprintf(n->sentence, sizeof n->sentence, "rank %d on %s: %s", n->c->rank, host_of(n, n->c->rank),
                 zero_last_error());
    relay(n);
    snprintf(sentence, sizeof sentence, "llmc_zero: %s; and NCCL did not abort within %.3g s: the job ends",
             n->sentence, abort_s(n));
    failure_end(n->c->net, 1, sentence);
}

// Both communicators, so that the streams go on.
static void abort_within_limit(nccl_state *n) {
    pthread_t thread;
    double until = clock_now() + abort_s(n);
    if (pthread_create(&thread, NULL, run_abort, n)) {
        run_abort(n);
        return;
    }
    while (pthread_tryjoin_np(thread, NULL)) {
        if (clock_now() > until) end_job(n);
        clock_nap(1e-3);
    }
}

// The first failure is kept; w: the collective it is about.
static int fail(nccl_state *n, const collective *w, const char *what, const char *said) {
    char about[96] = "", units[NET_UNITS];
    if (n->failed) return relay(n);
    if (w)
        snprintf(about, sizeof about, "the %s of %s (collective %lld): ", kind_name(w->kind),
                 net_units(w->use.unit, w->use.units, units), (long long)w->number);
    snprintf(n->sentence, sizeof n->sentence, "rank %d on %s: %s%s", n->c->rank, host_of(n, n->c->rank),
             about, what);
    n->unit = w && w->use.units ? w->use.unit : -1;
    n->names_at = strlen(n->sentence);
    if (*said)
        snprintf(n->sentence + n->names_at, sizeof n->sentence - n->names_at, "; NCCL says: %.400s", said);
    n->failed = 1;
    abort_within_limit(n);
    size_t used = strlen(n->sentence);
    if (n->aborted)
        snprintf(n->sentence + used, sizeof n->sentence - used, "; and NCCL could not abort: %s",
                 ncclGetErrorString(n->aborted));
    return relay(n);
}

// NCCL cannot say which rank stalled, so the ranks ask each other. The answer comes before NCCL's own words.
static void name_silent(nccl_state *n) {
    comm *c = n->c;
    char silent[c->ranks], list[NET_LIST], words[sizeof n->sentence];
    int asked = failure_ask(c->net, n->cause == TIME_OUT, silent);
    if (!asked) return;
    memcpy(words, n->sentence + n->names_at, sizeof n->sentence - n->names_at);
    snprintf(n->sentence + n->names_at, sizeof n->sentence - n->names_at, "; %s%s%s",
             asked > 0 ? "no word from " : "", asked > 0 ? net_list(c->net, silent, list) : zero_last_error(),
             words);
}

// To the caller, whose thread alone exchanges with the other ranks.
static int report(nccl_state *n) {
    if (n->cause != OWN_FAULT && !n->asked++) name_silent(n);
    return relay(n);
}

static const collective *oldest(const nccl_state *n) {
    const collective *w = NULL;
    for (const lane *l = n->lanes; l < n->lanes + LANES; l++) {
        const collective *own = l->first < l->next ? &l->queue[l->first % WATCHED] : NULL;
        if (own && (!w || own->number < w->number)) w = own;
    }
    return w;
}

static int fail_in_nccl(nccl_state *n, const lane *l, const collective *w, const char *what,
                        ncclResult_t rc) {
    char said[400];
    const char *last = ncclGetLastError(l->comm);
    snprintf(said, sizeof said, "%s%s%s", ncclGetErrorString(rc), last && *last ? ": " : "",
             last ? last : "");
    return fail(n, w, what, said);
}

static int fail_in_cuda(nccl_state *n, const collective *w, const char *call, cudaError_t rc) {
    char what[160];
    snprintf(what, sizeof what, "CUDA: %s: %s (%s)", call, cudaGetErrorString(rc), cudaGetErrorName(rc));
    return fail(n, w, what, "");
}

// -------- calls of NCCL

// Nothing more is asked after a failure.
#define ASK(n, f, ...)                               \
    do {                                             \
        if (!(n)->rc || (n)->rc == ncclInProgress) { \
            (n)->call = #f;                          \
            (n)->rc = f(__VA_ARGS__);                \
        }                                            \
    } while (0)

// What has become of the calls.
static ncclResult_t progress_of(nccl_state *n, const lane *l) {
    ncclResult_t asked = n->rc == ncclInProgress ? ncclCommGetAsyncError(l->comm, &n->rc) : ncclSuccess;
    return asked ? n->rc = asked : n->rc;
}

// Of an error; of one that is not there, though the time is over.
static int cause_of(ncclResult_t rc) {
    return rc == ncclInProgress ? TIME_OUT : rc == ncclRemoteError ? REMOTE_FAULT : OWN_FAULT;
}

// rc of the calls is not success.
static int fail_to_settle(nccl_state *n, const lane *l, ncclResult_t rc) {
    char what[160];
    n->rc = ncclSuccess;
    if (!n->failed) n->cause = cause_of(rc);
    if (rc == ncclInProgress)
        snprintf(what, sizeof what,
                 "%s did not end within %g s: another rank died, hangs, or does something else", n->call,
                 n->c->net->timeout_s);
    else
        snprintf(what, sizeof what, "%s failed", n->call);
    return fail_in_nccl(n, l, n->current, what, rc);
}

// Another rank is known to be gone: sooner than NCCL notices, if it does.
static int is_one_lost(const nccl_state *n) { return failure_lost(n->c->net, "") >= 0; }

// Until the calls are done, which for work on a stream means: it is on the stream.
static int settle(nccl_state *n, const lane *l) {
    double now = clock_now(), limit = now + n->c->net->timeout_s, look_at = now + LOOK_MS * 1e-3;
    ncclResult_t rc = n->rc;
    while (rc == ncclInProgress && (now = clock_now()) < limit) {
        sched_yield();
        rc = progress_of(n, l);
        if (rc != ncclInProgress || now < look_at) continue;
        look_at = now + LOOK_MS * 1e-3;
        if (!is_one_lost(n)) continue;
        n->rc = ncclSuccess;
        return fail(n, n->current, zero_last_error(), "");
    }
    return rc ? fail_to_settle(n, l, rc) : 0;
}

// ncclGroupEnd must follow, whatever failed in between.
static int end_group(nccl_state *n, lane *l) {
    ncclResult_t rc = ncclGroupEnd();
    if (!n->rc || n->rc == ncclInProgress) {
        n->rc = rc;
        n->call = "ncclGroupEnd";
    }
    return settle(n, l);
}

// -------- watchdog

// A long computation before it on its stream does not count: the time runs from when `begin` was seen done.
static int look_at_queue(nccl_state *n, lane *l) {
    while (l->first < l->next) {
        collective *w = &l->queue[l->first % WATCHED];
        cudaError_t rc = cudaEventQuery(w->end);
        if (rc == cudaErrorNotReady && !w->began) {
            rc = cudaEventQuery(w->begin);
            if (rc == cudaSuccess) {
                w->began = clock_now();
                rc = cudaErrorNotReady;
            }
        } else if (rc == cudaSuccess) {
            l->first++;
            continue;
        }
        if (rc != cudaErrorNotReady) return fail_in_cuda(n, w, "cudaEventQuery", rc);
        cudaGetLastError();  // "not ready" is no error to come up again
        if (!w->began || clock_now() - w->began <= n->c->net->timeout_s) return 0;
        char what[160];
        snprintf(what, sizeof what,
                 "did not end within %g s: another rank died, hangs, or is in another collective",
                 n->c->net->timeout_s);
        const char *last = ncclGetLastError(l->comm);
        n->cause = TIME_OUT;
        return fail(n, w, what, last ? last : "");
    }
    return 0;
}

static int look(nccl_state *n) {
    if (n->failed) return relay(n);
    if (is_one_lost(n)) return fail(n, oldest(n), zero_last_error(), "");
    for (lane *l = n->lanes; l < n->lanes + LANES; l++) ZERO_TRY(look_at_queue(n, l));
    for (lane *l = n->lanes; l < n->lanes + LANES; l++) {
        ncclResult_t state = ncclSuccess, rc = ncclCommGetAsyncError(l->comm, &state);
        if (!rc) rc = state;
        if (!rc || rc == ncclInProgress) continue;
        n->cause = cause_of(rc);
        return fail_in_nccl(n, l, oldest(n), "another rank, or the way to it, failed", rc);
    }
    return 0;
}

static void *watch(void *state) {
    nccl_state *n = state;
    int stop = n->c->device->f->enter(n->c->device);
    pthread_mutex_lock(&n->lock);
    if (stop) fail(n, NULL, "the thread that watches over NCCL cannot use the device: ", zero_last_error());
    pthread_mutex_unlock(&n->lock);
    while (!stop) {
        clock_nap(LOOK_MS * 1e-3);
        pthread_mutex_lock(&n->lock);
        stop = n->stop || look(n);
        pthread_mutex_unlock(&n->lock);
    }
    return NULL;
}

// Takes the lock. The watchdog may find the host WATCHED collectives ahead: CUDA's own queue has about as
// many places.
static int begin(nccl_state *n, lane *l, comm_kind kind, comm_use use, collective **out) {
    pthread_mutex_lock(&n->lock);
    while (!n->failed && l->next - l->first == WATCHED && !look(n)) {
        pthread_mutex_unlock(&n->lock);
        clock_nap(1e-3);
        pthread_mutex_lock(&n->lock);
    }
    if (n->failed) return relay(n);
    collective *w = *out = &l->queue[l->next % WATCHED];
    n->current = w;
    w->kind = kind;
    w->use = n->c->use = use;
    w->number = ++n->collectives;
    w->began = 0;
    cudaError_t rc = cudaEventRecord(w->begin, l->stream);
    return rc == cudaSuccess ? 0 : fail_in_cuda(n, w, "cudaEventRecord", rc);
}

static int finish(nccl_state *n, lane *l, collective *w, int rc) {
    if (!rc) {
        cudaError_t recorded = cudaEventRecord(w->end, l->stream);
        if (recorded == cudaSuccess)
            l->next++;
        else
            rc = fail_in_cuda(n, w, "cudaEventRecord", recorded);
    }
    n->current = NULL;
    if (rc && n->failed) rc = report(n);
    pthread_mutex_unlock(&n->lock);
    return rc;
}

// -------- collectives

static const ncclDataType_t nccl_type[] = {
    [ZERO_F32] = ncclFloat32, [ZERO_BF16] = ncclBfloat16, [ZERO_F16] = ncclFloat16
};

// Elements [from, from + n) of a piece's shard, which lie at `at` in a slot of staging.
typedef struct {
    const comm_piece *piece;
    int64_t from, n, at;
} run;
// How far the rounds have come.
typedef struct {
    int piece;
    int64_t inside;
} place;

// The next `room` elements of the pieces' shards, in at most one run a piece; returns how many runs.
static int next_round(place *at, const comm_piece *pieces, int n, int64_t room, run *runs) {
    int count = 0;
    for (int64_t used = 0; at->piece < n && used < room; count++) {
        const comm_piece *p = &pieces[at->piece];
        int64_t left = p->elems - at->inside, take = left < room - used ? left : room - used;
        runs[count] = (run){ p, at->inside, take, used };
        used += take;
        at->inside += take;
        if (at->inside == p->elems) *at = (place){ at->piece + 1, 0 };
    }
    return count;
}

static int exchange_round(nccl_state *n, const run *runs, int n_runs, zero_dtype type) {
    comm *c = n->c;
    lane *l = &n->lanes[REDUCE];
    size_t size = dtype_bytes(type);
    ASK(n, ncclGroupStart);
    for (int i = 0; i < n_runs; i++) {
        const run *u = &runs[i];
        for (int r = 0; r < c->ranks; r++) {
            if (r == c->rank) continue;
            ASK(n, ncclSend, u->piece->full + (r * u->piece->elems + u->from) * size, u->n, nccl_type[type],
                r, l->comm, l->stream);
            ASK(n, ncclRecv, n->incoming + r * n->slot_bytes + u->at * size, u->n, nccl_type[type], r,
                l->comm, l->stream);
            comm_count(c, COMM_REDUCE_SCATTER, u->n * size);
        }
    }
    return end_group(n, l);
}

// In rank order in fp32, times 1/ranks, rounded once: as comm.c does.
static int reduce_in_order(nccl_state *n, const comm_piece *pieces, int n_pieces, zero_dtype full_type,
                           zero_dtype shard_type, int add) {
    comm *c = n->c;
    device *d = c->device;
    size_t size = dtype_bytes(full_type);
    const void *parts[c->ranks];
    run runs[n_pieces];
    place at = { 0, 0 };
    for (int n_runs; (n_runs = next_round(&at, pieces, n_pieces, n->slot_bytes / size, runs));) {
        ZERO_TRY(exchange_round(n, runs, n_runs, full_type));
        for (const run *u = runs; u < runs + n_runs; u++) {
            for (int r = 0; r < c->ranks; r++) parts[r] = n->incoming + r * n->slot_bytes + u->at * size;
            parts[c->rank] = u->piece->full + (c->rank * u->piece->elems + u->from) * size;
            ZERO_TRY(d->f->sum_ranks(d, COMM, shard_type, u->piece->shard + u->from * dtype_bytes(shard_type),
                                     full_type, parts, c->ranks, 1.0f / c->ranks, u->n, add));
        }
    }
    return 0;
}

// NCCL sums, in an order and with roundings of its own, in place in full.
static int reduce_by_nccl(nccl_state *n, const comm_piece *pieces, int n_pieces, zero_dtype full_type,
                          zero_dtype shard_type, int add) {
    comm *c = n->c;
    device *d = c->device;
    lane *l = &n->lanes[REDUCE];
    size_t size = dtype_bytes(full_type);
    ASK(n, ncclGroupStart);
    for (const comm_piece *p = pieces; p < pieces + n_pieces; p++) {
        char *own = p->full + c->rank * p->elems * size;
        ASK(n, ncclReduceScatter, p->full, own, p->elems, nccl_type[full_type], ncclSum, l->comm, l->stream);
        comm_count(c, COMM_REDUCE_SCATTER, (c->ranks - 1) * p->elems * size);
    }
    ZERO_TRY(end_group(n, l));
    for (const comm_piece *p = pieces; p < pieces + n_pieces; p++) {
        const void *sum = p->full + c->rank * p->elems * size;
        ZERO_TRY(d->f->sum_ranks(d, COMM, shard_type, p->shard, full_type, &sum, 1, 1.0f / c->ranks, p->elems,
                                 add));
    }
    return 0;
}

int comm_nccl_reduce_scatter(comm *c, comm_use use, const comm_piece *pieces, int n_pieces,
                             zero_dtype full_type, zero_dtype shard_type, int add) {
    nccl_state *n = c->nccl;
    lane *l = &n->lanes[REDUCE];
    collective *w = NULL;
    int rc = begin(n, l, COMM_REDUCE_SCATTER, use, &w);
    if (!rc)
        rc = (n->nccl_sums ? reduce_by_nccl : reduce_in_order)(n, pieces, n_pieces, full_type, shard_type,
                                                               add);
    return finish(n, l, w, rc);
}

// In place where the shard lies in full where it belongs.
static int gather(nccl_state *n, const comm_piece *pieces, int n_pieces, size_t elem_bytes) {
    comm *c = n->c;
    lane *l = &n->lanes[GATHERING];
    ASK(n, ncclGroupStart);
    for (const comm_piece *p = pieces; p < pieces + n_pieces; p++) {
        ASK(n, ncclAllGather, p->shard, p->full, p->elems * elem_bytes, ncclInt8, l->comm, l->stream);
        comm_count(c, COMM_ALL_GATHER, (c->ranks - 1) * p->elems * elem_bytes);
    }
    return end_group(n, l);
}

int comm_nccl_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n_pieces, size_t elem_bytes) {
    nccl_state *n = c->nccl;
    lane *l = &n->lanes[GATHERING];
    collective *w = NULL;
    int rc = begin(n, l, COMM_ALL_GATHER, use, &w);
    if (!rc) rc = gather(n, pieces, n_pieces, elem_bytes);
    return finish(n, l, w, rc);
}

// -------- start

static int bytes_left(size_t *left) {
    size_t all;
    cudaError_t rc = cudaMemGetInfo(left, &all);
    if (rc == cudaSuccess) return 0;
    return zero_fail(ZERO_ERR_DEVICE, "CUDA: cudaMemGetInfo: %s", cudaGetErrorString(rc));
}

// What the ranks tell each other before NCCL is asked for more than its version.
typedef struct {
    double failed, version, gpu_high, gpu_low;
    double device;   // several MIG instances are on one GPU
    double gpus;     // that the rank sees
    double shares;   // whether it lets NCCL put several ranks on one GPU
    double windows;  // whether gathers go between symmetric windows
} introduction;

// Of what NCCL's own check for shared GPUs goes by: the host (its name and boot, or NCCL_HOSTID) and the
// GPU's place on its bus.
static uint64_t gpu_hash(const char *bus_id) {
    const char *id = getenv("NCCL_HOSTID");
    char host[NET_NAME];
    return XXH3_64bits_withSeed(bus_id, strlen(bus_id),
                                id && *id ? XXH3_64bits(id, strlen(id)) : net_machine(host));
}

// As many bits as a double holds.
static double device_hash(const device *d) {
    char host[NET_NAME];
    return (double)(XXH3_64bits_withSeed(d->uuid, sizeof d->uuid, net_machine(host)) >> 11);
}

static void version_name(char name[32], double version) {
    int v = (int)version;
    snprintf(name, 32, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

// Ranks that share a GPU wait for each other's turns on it: only where it was asked for.
static int may_share(const zero_config *config) {
    const char *v = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return v && *v ? atoi(v) != 0 : config->comm.nccl > 0;
}

// NCCL gathers by copy engines only between symmetric windows, which are registered only where NCCL was told
// to use copy engines: what goes between windows waits without a look at the abort flag (NCCL 2.27 to 2.30,
// its kernels for windows too), so an abort does not end it, and the job has to end by end_job.
static int wants_windows(int version) {
    const char *policy = getenv("NCCL_CTA_POLICY");
    if (!policy || version < COPY_ENGINE_VERSION) return 0;
    if (!ncclCommWindowRegister || !ncclCommWindowDeregister) return 0;
    return !strcmp(policy, "2") || (version >= NAMED_POLICY_VERSION && strcasestr(policy, "ZERO"));
}

static int look_at_self(nccl_state *n, const zero_config *config, introduction *own) {
    char bus_id[64], name[32];
    int gpus = 0;
    ZERO_TRY(nccl_load());
    ncclResult_t rc = ncclGetVersion(&n->version);
    if (rc) return zero_fail(ZERO_ERR_COMM, "NCCL: ncclGetVersion: %s", ncclGetErrorString(rc));
    version_name(name, own->version = n->version);
    if (n->version < LEAST_VERSION)
        return zero_fail(ZERO_ERR_COMM, "NCCL %s is too old; 2.26 or newer is needed", name);
    cudaError_t cuda = cudaGetDeviceCount(&gpus);
    if (cuda == cudaSuccess) cuda = cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, n->c->device->number);
    if (cuda != cudaSuccess)
        return zero_fail(ZERO_ERR_DEVICE, "CUDA: cudaDeviceGetPCIBusId: %s", cudaGetErrorString(cuda));
    uint64_t h = gpu_hash(bus_id);
    own->gpu_high = (double)(h >> 32);
    own->gpu_low = (double)(h & 0xffffffff);
    own->gpus = gpus;
    own->shares = n->version >= MULTI_RANK_VERSION && may_share(config);
    own->windows = wants_windows(n->version);
    own->device = device_hash(n->c->device);
    return bytes_left(&n->left);
}

static int on_one_gpu(const introduction *a, const introduction *b) {
    return a->gpu_high == b->gpu_high && a->gpu_low == b->gpu_low;
}

// Ranks i and r are on one GPU, and NCCL refuses that before 2.30, from then on unless it is told to.
static int refuse_sharing(const nccl_state *n, const introduction *all, int i, int r) {
    char version[32], most[64] = "give each a GPU of its own";
    int ranks = 0, gpus = 0, old = n->version < MULTI_RANK_VERSION;
    for (int k = 0; k < n->c->ranks; k++) {
        if (strcmp(host_of(n, k), host_of(n, r))) continue;
        ranks++;
        if (all[k].gpus > gpus) gpus = (int)all[k].gpus;
    }
    version_name(version, n->version);
    if (gpus < ranks)
        snprintf(most, sizeof most, "start at most %d rank%s there", gpus, gpus == 1 ? "" : "s");
    return zero_fail(ZERO_ERR_COMM,
                     "ranks %d and %d are on one GPU of %s, which has %d for %d ranks, and NCCL %s %s; %s, "
                     "or let the bytes "
                     "go through the host (--comm host, nccl 0), or %s",
                     i, r, host_of(n, r), gpus, ranks, version,
                     old ? "needs one for each" : "was not told to share it", most,
                     old ? "use NCCL 2.30 or newer, with NCCL_MULTI_RANK_GPU_ENABLE=1"
                         : "set NCCL_MULTI_RANK_GPU_ENABLE=1");
}

static int refuse_policies(const nccl_state *n, int asks, int other) {
    return zero_fail(ZERO_ERR_COMM,
                     "NCCL_CTA_POLICY asks for copy engines on rank %d (host %s), but not on rank %d "
                     "(host %s): set it alike on all ranks",
                     asks, host_of(n, asks), other, host_of(n, other));
}

static int compare(nccl_state *n, const introduction *all) {
    char first[32], other[32];
    int sharing = 0, shares = 1, own = n->c->rank;
    for (int r = 0; r < n->c->ranks; r++) shares &= all[r].shares != 0;
    for (int r = 0; r < n->c->ranks; r++) n->sharing += all[r].device == all[own].device;
    for (int r = 0; r < n->c->ranks; r++) {
        version_name(first, all[0].version);
        version_name(other, all[r].version);
        if (all[r].version != all[0].version)
            return zero_fail(ZERO_ERR_COMM,
                             "rank 0 on %s has NCCL %s and rank %d on %s %s: they must be the same",
                             host_of(n, 0), first, r, host_of(n, r), other);
        if (all[r].windows != all[0].windows)
            return refuse_policies(n, all[0].windows ? 0 : r, all[0].windows ? r : 0);
        for (int i = 0; i < r; i++) {
            if (!on_one_gpu(&all[i], &all[r])) continue;
            if (!shares) return refuse_sharing(n, all, i, r);
            sharing = 1;
        }
    }
    if (sharing) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    n->windows = all[0].windows != 0;
    return 0;
}

// All ranks fail alike: with what the first that cannot has to say.
static int introduce(nccl_state *n, const zero_config *config) {
    comm *c = n->c;
    introduction own = { 0 }, all[c->ranks];
    struct {
        int rc;
        char sentence[500];
    } why = { look_at_self(n, config, &own), "" };
    int first = 0;
    own.failed = why.rc != 0;
    if (why.rc)
        snprintf(why.sentence, sizeof why.sentence, "rank %d on %s: %s", c->rank, host_of(n, c->rank),
                 zero_last_error());
    ZERO_TRY(comm_share(c, comm_for_scalars, (double *)&own, (double *)all, sizeof own / sizeof(double)));
    while (first < c->ranks && !all[first].failed) first++;
    if (first == c->ranks) return compare(n, all);
    ZERO_TRY(comm_broadcast(c, comm_for_scalars, first, &why, sizeof why));
    return zero_fail(why.rc, "%s", why.sentence);
}

// Rank 0 makes the names under which the ranks find each other.
static int share_ids(nccl_state *n, ncclUniqueId ids[LANES]) {
    struct {
        ncclUniqueId ids[LANES];
        int rc;
    } message;
    memset(&message, 0, sizeof message);
    for (int i = 0; i < LANES && n->c->rank == 0 && !message.rc; i++)
        message.rc = ncclGetUniqueId(&message.ids[i]);
    ZERO_TRY(comm_broadcast(n->c, comm_for_scalars, 0, &message, sizeof message));
    if (message.rc)
        return zero_fail(ZERO_ERR_COMM, "NCCL: ncclGetUniqueId on rank 0: %s%s%s",
                         ncclGetErrorString(message.rc), n->c->rank ? "" : ": ",
                         n->c->rank ? "" : ncclGetLastError(NULL));
    memcpy(ids, message.ids, sizeof message.ids);
    return 0;
}

// How far a rank is; the worst of all, and which rank says so.
enum { DONE, BUSY, LATE, FAILED };
static int worst_of(comm *c, double mine, double *worst, int *who) {
    double all[c->ranks];
    ZERO_TRY(comm_share(c, comm_for_scalars, &mine, all, 1));
    *worst = all[*who = 0];
    for (int r = 1; r < c->ranks; r++)
        if (all[r] > *worst) *worst = all[*who = r];
    return 0;
}

// Until the communicator is there on all ranks. If one cannot, all fail at once, with what that one has to
// say.
static int connect_together(nccl_state *n, const lane *l) {
    comm *c = n->c;
    double limit = clock_now() + c->net->timeout_s, mine = BUSY, worst = BUSY;
    int who = 0;
    for (; worst == BUSY; clock_nap(2e-3)) {
        ncclResult_t rc = progress_of(n, l);
        mine = !rc ? DONE : rc != ncclInProgress ? FAILED : clock_now() < limit ? BUSY : LATE;
        ZERO_TRY(worst_of(c, mine, &worst, &who));
    }
    if (worst == DONE) return 0;
    if (mine > BUSY) fail_to_settle(n, l, n->rc);
    ZERO_TRY(comm_broadcast(c, comm_for_scalars, who, n->sentence, sizeof n->sentence));
    return relay(n);
}

// A channel is a CTA, so an SM that the trainer's kernels lack while a collective runs. Sends and receives
// connect every channel with every peer, and a connection over NVLink or PCIe has buffers of 0.5 + 4.7 MiB +
// NCCL_BUFFSIZE: by NCCL's defaults, up to 32 channels and 4 MiB, 2.2 GiB for 8 GPUs. With 2 MiB, so 8 MiB a
// connection as the driver rounds, and these limits it is 0.9 GiB for 8 ranks of one NVLink domain, 2 GiB for
// 64. Over a network the peers share a channel's buffers. NCCL_MAX_CTAS and NCCL_BUFFSIZE in the environment
// go first.
static int most_ctas(const nccl_state *n, int lane) {
    int most = MOST_CTAS;
    if (lane != REDUCE || n->nccl_sums) return most;  // only neighbours of rings and trees are connected
    for (int ranks = 8; ranks < n->c->ranks && most > LEAST_CTAS; ranks *= 2) most /= 2;
    return most;
}

static int connect_lanes(nccl_state *n) {
    static const device_stream streams[LANES] = { [REDUCE] = COMM, [GATHERING] = GATHER };
    ncclUniqueId ids[LANES];
    // kernels of two communicators on one GPU: in the order in which the host queues them, which is the same
    // on all ranks
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    setenv("NCCL_BUFFSIZE", "2097152", 0);
    ZERO_TRY(share_ids(n, ids));
    for (int i = 0; i < LANES; i++) {
        lane *l = &n->lanes[i];
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        config.maxCTAs = most_ctas(n, i);
        l->stream = device_cuda_stream(n->c->device, streams[i]);
        ASK(n, ncclCommInitRankConfig, &l->comm, n->c->ranks, ids[i], n->c->rank, &config);
        ZERO_TRY(connect_together(n, l));
    }
    return 0;
}

static int create_events(nccl_state *n) {
    for (int i = 0; i < LANES * WATCHED; i++) {
        collective *w = &n->lanes[i / WATCHED].queue[i % WATCHED];
        cudaError_t rc = cudaEventCreateWithFlags(&w->begin, cudaEventDisableTiming);
        if (rc == cudaSuccess) rc = cudaEventCreateWithFlags(&w->end, cudaEventDisableTiming);
        if (rc != cudaSuccess)
            return zero_fail(ZERO_ERR_DEVICE, "CUDA: cudaEventCreateWithFlags: %s", cudaGetErrorString(rc));
    }
    return 0;
}

// -------- memory

// As the device's own, but memory that NCCL can reach from other GPUs and from the network.
static void *alloc_for_nccl(device *d, size_t bytes, const char **why) {
    static _Thread_local char text[160];
    void *p = NULL;
    ncclResult_t rc = ncclMemAlloc(&p, bytes);
    *why = text;
    if (rc) {
        const char *last = ncclGetLastError(NULL);
        int known = last && *last;
        snprintf(text, sizeof text, "ncclMemAlloc: %s%s%.100s", ncclGetErrorString(rc), known ? ": " : "",
                 known ? last : "");
        cudaGetLastError();  // told here: it must not come up again at the next launch
        return NULL;
    }
    if (!d->f->clear(d, COMPUTE, p, bytes) && !d->f->wait(d, COMPUTE)) return p;
    snprintf(text, sizeof text, "%.159s", zero_last_error());
    ncclMemFree(p);
    return NULL;
}
static void release_for_nccl(device *d, void *p, size_t bytes) {
    (void)d;
    (void)bytes;
    ncclMemFree(p);
}

static void set_mover(comm *c, device *d, memory *m) {
    c->nccl_functions = *d->f;
    c->nccl_functions.alloc = alloc_for_nccl;
    c->nccl_functions.release = release_for_nccl;
    c->nccl_device = *d;
    c->nccl_device.f = &c->nccl_functions;
    m->mover = &c->nccl_device;
}

// The difference is that of all ranks on the device together: before and now none of them allocates.
static int count_taken(nccl_state *n, size_t before) {
    size_t left;
    ZERO_TRY(bytes_left(&left));
    if (left < before) n->taken += (before - left) / n->sharing;
    return 0;
}

int comm_nccl_open(comm *c, const zero_config *config, device *d, memory *m) {
    nccl_state *n = c->nccl = calloc(1, sizeof *n);
    if (!n) return zero_fail(ZERO_ERR_MEMORY, "out of memory for NCCL's state");
    c->device = d;
    n->c = c;
    n->unit = -1;
    pthread_mutex_init(&n->lock, NULL);
    n->nccl_sums = config->comm.reduce_nccl;
    ZERO_TRY(comm_barrier(c));  // no rank allocates
    ZERO_TRY(introduce(n, config));
    ZERO_TRY(connect_lanes(n));
    ZERO_TRY(comm_barrier(c));
    ZERO_TRY(count_taken(n, n->left));
    ZERO_TRY(create_events(n));
    int rc = pthread_create(&n->watchdog, NULL, watch, n);
    if (rc) return zero_fail(ZERO_ERR_COMM, "no thread can be started to watch over NCCL: %s", strerror(rc));
    n->watching = 1;
    set_mover(c, d, m);
    return 0;
}

int comm_nccl_stage(comm *c, memory *m) {
    nccl_state *n = c->nccl;
    if (!n || n->nccl_sums) return 0;
    n->slot_bytes = c->planned[COMM_INCOMING].bytes / c->ranks;
    n->incoming = memory_alloc(m, &c->planned[COMM_INCOMING]);
    return n->incoming ? 0 : ZERO_ERR_MEMORY;
}

// The call may return at once and go on all the same.
static int register_window(nccl_state *n, const lane *l, const memory_block *b, void **handle) {
    ASK(n, ncclCommWindowRegister, l->comm, b->base, b->bytes, handle, SYMMETRIC);
    if (!n->rc) n->rc = ncclInProgress;
    return settle(n, l);
}

// A refusal does not matter: NCCL then copies through buffers of its own.
static int register_buffer(nccl_state *n, const lane *l, const memory_block *b, void **handle) {
    if (!ncclCommRegister || !ncclCommDeregister) return 0;
    ASK(n, ncclCommRegister, l->comm, b->base, b->bytes, handle);
    if (n->rc != ncclInProgress) n->rc = ncclSuccess;
    return settle(n, l);
}

static int register_in(nccl_state *n, int i, const memory_block *b) {
    registration *more = realloc(n->registered, (n->n_registered + 1) * sizeof *more);
    if (!more) return zero_fail(ZERO_ERR_MEMORY, "out of memory for NCCL's list of buffers");
    n->registered = more;
    registration *r = &more[n->n_registered];
    *r = (registration){ i, n->windows && i == GATHERING, NULL };
    ZERO_TRY((r->is_window ? register_window : register_buffer)(n, &n->lanes[i], b, &r->handle));
    if (r->handle) n->n_registered++;
    return 0;
}

// Each block with the communicator that moves it.
static int register_moved(nccl_state *n, const memory *m) {
    int rc = 0;
    pthread_mutex_lock(&n->lock);
    if (n->failed) rc = relay(n);
    for (const memory_block *b = m->blocks; b && !rc; b = b->next) {
        if (b->owner != m->mover) continue;
        if (b->moved_by & ZERO_MOVED_BY_REDUCTIONS) rc = register_in(n, REDUCE, b);
        if (b->moved_by & ZERO_MOVED_BY_GATHERS && !rc) rc = register_in(n, GATHERING, b);
    }
    pthread_mutex_unlock(&n->lock);
    return rc;
}

static int deregister_all(nccl_state *n) {
    while (n->n_registered) {
        const registration *r = &n->registered[--n->n_registered];
        lane *l = &n->lanes[r->lane];
        if (r->is_window)
            ASK(n, ncclCommWindowDeregister, l->comm, r->handle);
        else
            ASK(n, ncclCommDeregister, l->comm, r->handle);
        ZERO_TRY(settle(n, l));
    }
    return 0;
}

// A failure of the rehearsal: rc, or what the watchdog has found since.
static int rehearsal_failed(nccl_state *n, int rc, char sentence[1000]) {
    if (rc) snprintf(sentence, 1000, "%.999s", zero_last_error());
    pthread_mutex_lock(&n->lock);
    if (!rc && n->failed) snprintf(sentence, 1000, "%.999s", n->sentence);
    int failed = rc || n->failed;
    pthread_mutex_unlock(&n->lock);
    return failed;
}

static int are_lanes_done(const nccl_state *n) {
    int done = 1;
    for (const lane *l = n->lanes; l < n->lanes + LANES; l++)
        done &= cudaStreamQuery(l->stream) == cudaSuccess;
    cudaGetLastError();  // "not ready" is no error to come up again; another one, the watchdog sees
    return done;
}

// The last error came after a failure, and says which rank does not answer any more.
static int fail_after(const char *failure) {
    char said[500];
    snprintf(said, sizeof said, "%s", zero_last_error());
    return zero_fail(ZERO_ERR_COMM, "%s; %s", failure, said);
}

// Until what was queued has been done on all ranks. A failure of one is told at once: no rank waits for the
// device meanwhile, which NCCL's own limit alone would end on the others.
static int end_rehearsal(nccl_state *n, int rc) {
    double worst = BUSY;
    int who = 0;
    char sentence[1000] = "";
    for (; worst == BUSY; clock_nap(2e-3)) {
        int failed = rehearsal_failed(n, rc, sentence);
        int share = worst_of(n->c, failed ? FAILED : are_lanes_done(n) ? DONE : BUSY, &worst, &who);
        if (share && failed) return fail_after(sentence);
        ZERO_TRY(share);
    }
    if (worst == DONE) return 0;
    ZERO_TRY(comm_broadcast(n->c, comm_for_scalars, who, sentence, sizeof sentence));
    return zero_fail(ZERO_ERR_COMM, "%s", sentence);
}

int comm_nccl_prepare(comm *c, memory *m, int (*rehearse)(void *), void *ctx) {
    nccl_state *n = c->nccl;
    size_t before = 0;
    if (!n) return 0;
    ZERO_TRY(comm_nccl_failed(c));
    ZERO_TRY(comm_barrier(c));  // no rank allocates
    ZERO_TRY(failure_agree(c->net, bytes_left(&before)));
    ZERO_TRY(failure_agree(c->net, register_moved(n, m)));
    ZERO_TRY(failure_agree(c->net, end_rehearsal(n, rehearse(ctx))));
    ZERO_TRY(failure_agree(c->net, count_taken(n, before)));
    c->planned[COMM_NCCL].bytes = n->taken;
    return memory_note(m, &c->planned[COMM_NCCL]);
}

int comm_nccl_has_windows(const comm *c) { return c->nccl && ((const nccl_state *)c->nccl)->windows; }

// -------- end

int comm_nccl_failed(comm *c) {
    nccl_state *n = c->nccl;
    if (!n) return 0;
    pthread_mutex_lock(&n->lock);
    int rc = n->failed ? report(n) : 0;
    pthread_mutex_unlock(&n->lock);
    return rc;
}

static int finalize(nccl_state *n) {
    ZERO_TRY(deregister_all(n));
    for (lane *l = n->lanes; l < n->lanes + LANES; l++) {
        ASK(n, ncclCommFinalize, l->comm);
        ZERO_TRY(settle(n, l));
        ncclComm_t comm = l->comm;
        l->comm = NULL;
        ncclResult_t rc = ncclCommDestroy(comm);
        if (rc) return fail(n, NULL, "ncclCommDestroy failed", ncclGetErrorString(rc));
    }
    return 0;
}

// The watchdog is there until the streams have been waited for: it can still end that wait.
static int wait_for_streams(nccl_state *n) {
    device *d = n->c->device;
    ZERO_TRY(d->f->wait(d, COMM));
    ZERO_TRY(d->f->wait(d, GATHER));
    return comm_nccl_failed(n->c);
}

void comm_nccl_close(comm *c, int clean) {
    nccl_state *n = c->nccl;
    if (!n) return;
    int rc = clean && n->watching ? wait_for_streams(n) : ZERO_ERR_COMM;
    if (n->watching) {
        pthread_mutex_lock(&n->lock);
        n->stop = 1;
        pthread_mutex_unlock(&n->lock);
        pthread_join(n->watchdog, NULL);
    }
    if (!rc) rc = n->failed ? ZERO_ERR_COMM : finalize(n);
    if (rc) abort_within_limit(n);
    for (int i = 0; i < LANES * WATCHED; i++) {
        collective *w = &n->lanes[i / WATCHED].queue[i % WATCHED];
        if (w->begin) cudaEventDestroy(w->begin);
        if (w->end) cudaEventDestroy(w->end);
    }
    pthread_mutex_destroy(&n->lock);
    free(n->registered);
    free(n);
    c->nccl = NULL;
}
#endif
