// The collectives through NCCL, and their table; see comm/nccl.h.
//
// For each group of a non-blocking communicator, NCCL starts a thread to queue the work; a call outside a
// group counts as a group (group.cc, groupLaunchNonBlocking, NCCL 2.26 to 2.30). Blocking communicators need
// no thread, but their calls cannot be aborted: NCCL's guide allows ncclCommAbort only on non-blocking ones;
// on others, the abort frees memory that a call in another thread still uses. So this file uses few groups:
// one per collective, or one per round if comm.incoming has no room for the largest bucket's shards.
#ifdef ZERO_HAVE_NCCL
#include "host.h"
#include "nccl.h"
#include "nccl_state.h"
#include <stdlib.h>
#include <string.h>

static const ncclDataType_t nccl_type[] = {
    [ZERO_F32] = ncclFloat32, [ZERO_BF16] = ncclBfloat16, [ZERO_F16] = ncclFloat16
};

// -------- reductions

static int exchange_round(nccl_state *n, comm_use use, const comm_round *round, zero_dtype type) {
    comm *c = n->c;
    lane *l = &n->lanes[REDUCE];
    size_t size = dtype_bytes(type);
    ASK(n, GroupStart);
    for (const comm_run *u = round->runs; u < round->runs + round->n_runs; u++) {
        for (int r = 0; r < c->group.ranks; r++) {
            if (r == c->group.rank) continue;
            const char *out = u->piece->full + (r * u->piece->elems + u->from) * size;
            char *in = c->incoming + r * c->incoming_bytes + u->at * size;
            ASK(n, Send, out, u->n, nccl_type[type], r, l->comm, l->stream);
            ASK(n, Recv, in, u->n, nccl_type[type], r, l->comm, l->stream);
            comm_count(c, use, COMM_REDUCE_SCATTER, u->n * size);
        }
    }
    return nccl_end_group(n, l);
}

// Sums in rank order in fp32, times 1/ranks, rounded once, as the host's functions do.
static int reduce_in_order(nccl_state *n, comm_use use, const comm_piece *pieces, int n_pieces,
                           zero_dtype full_type, zero_dtype shard_type, int add) {
    comm *c = n->c;
    comm_run runs[n_pieces];
    comm_round r = { .runs = runs, .next = pieces, .end = pieces + n_pieces };
    while (comm_next_round(&r, c->incoming_bytes / dtype_bytes(full_type))) {
        ZERO_TRY(exchange_round(n, use, &r, full_type));
        ZERO_TRY(comm_sum_round(c, &r, c->incoming, c->incoming_bytes, full_type, shard_type, add));
    }
    return 0;
}

// NCCL sums into this rank's part of each piece's `full`, with its own order and rounding.
static int reduce_by_nccl(nccl_state *n, comm_use use, const comm_piece *pieces, int n_pieces,
                          zero_dtype full_type, zero_dtype shard_type, int add) {
    comm *c = n->c;
    device *d = c->device;
    lane *l = &n->lanes[REDUCE];
    int ranks = c->group.ranks;
    size_t size = dtype_bytes(full_type);
    ASK(n, GroupStart);
    for (const comm_piece *p = pieces; p < pieces + n_pieces; p++) {
        char *own = p->full + c->group.rank * p->elems * size;
        ASK(n, ReduceScatter, p->full, own, p->elems, nccl_type[full_type], ncclSum, l->comm, l->stream);
        comm_count(c, use, COMM_REDUCE_SCATTER, (ranks - 1) * p->elems * size);
    }
    ZERO_TRY(nccl_end_group(n, l));
    for (const comm_piece *p = pieces; p < pieces + n_pieces; p++) {
        const rank_parts sum = { .ranks = 1, .own = p->full + c->group.rank * p->elems * size };
        ZERO_TRY(
            d->f->sum_ranks(d, COMM, shard_type, p->shard, full_type, &sum, 1.0f / ranks, p->elems, add));
    }
    return 0;
}

static int nccl_reduce_scatter(comm *c, comm_use use, const comm_piece *pieces, int n_pieces,
                               zero_dtype full_type, zero_dtype shard_type, int add) {
    nccl_state *n = c->nccl;
    lane *l = &n->lanes[REDUCE];
    collective *w = NULL;
    int rc = nccl_begin(n, l, COMM_REDUCE_SCATTER, use, &w);
    if (!rc && n->nccl_sums)
        rc = reduce_by_nccl(n, use, pieces, n_pieces, full_type, shard_type, add);
    else if (!rc)
        rc = reduce_in_order(n, use, pieces, n_pieces, full_type, shard_type, add);
    return nccl_finish(n, l, w, rc);
}

// -------- gathers

static int nccl_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n_pieces, size_t elem_bytes) {
    nccl_state *n = c->nccl;
    lane *l = &n->lanes[GATHERING];
    collective *w = NULL;
    int rc = nccl_begin(n, l, COMM_ALL_GATHER, use, &w);
    if (rc) return nccl_finish(n, l, w, rc);
    ASK(n, GroupStart);
    for (const comm_piece *p = pieces; p < pieces + n_pieces; p++) {
        size_t bytes = p->elems * elem_bytes;
        ASK(n, AllGather, p->shard, p->full, bytes, ncclInt8, l->comm, l->stream);
        comm_count(c, use, COMM_ALL_GATHER, (c->group.ranks - 1) * bytes);
    }
    return nccl_finish(n, l, w, nccl_end_group(n, l));
}

static void nccl_close(comm *c, int clean) {
    comm_close_nccl(c, clean);
    comm_close_host(c, clean);
}

const comm_functions comm_nccl_functions = { .all_gather = nccl_all_gather,
                                             .reduce_scatter = nccl_reduce_scatter,
                                             .failed = nccl_failed,
                                             .prepare = nccl_prepare,
                                             .close = nccl_close };

// -------- opening and closing

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

int comm_open_nccl(comm *c, const zero_config *config, memory *m) {
    nccl_state *n = calloc(1, sizeof *n);
    if (!n || pthread_mutex_init(&n->lock, NULL)) {
        free(n);
        return zero_fail(ZERO_ERR_MEMORY, "out of memory for NCCL's state");
    }
    c->nccl = n;
    n->c = c;
    n->unit = -1;
    n->nccl_sums = config->comm.reduce_nccl;
    ZERO_TRY(comm_barrier(c));  // no rank allocates before all have reached this point
    ZERO_TRY(nccl_connect(n, config));
    ZERO_TRY(comm_barrier(c));
    ZERO_TRY(nccl_count_taken(n, n->left));
    ZERO_TRY(create_events(n));
    ZERO_TRY(nccl_watch(n));
    nccl_set_mover(c, m);
    c->f = &comm_nccl_functions;
    c->gather_stream = GATHER;
    c->only_queues = 1;
    return 0;
}

static int finalize(nccl_state *n) {
    ZERO_TRY(nccl_deregister_all(n));
    for (lane *l = n->lanes; l < n->lanes + LANES; l++) {
        ASK(n, CommFinalize, l->comm);
        ZERO_TRY(nccl_settle(n, l));
        ncclComm_t comm = l->comm;
        l->comm = NULL;
        ncclResult_t rc = nccl.CommDestroy(comm);
        if (rc) return nccl_fail(n, NULL, "ncclCommDestroy failed", nccl.GetErrorString(rc));
    }
    return 0;
}

// The watching thread must still be running, because only it can end a wait for a stalled stream.
static int wait_for_streams(nccl_state *n) {
    device *d = n->c->device;
    ZERO_TRY(d->f->wait(d, COMM));
    ZERO_TRY(d->f->wait(d, GATHER));
    return nccl_failed(n->c);
}

void comm_close_nccl(comm *c, int clean) {
    nccl_state *n = c->nccl;
    if (!n) return;
    int rc = clean && n->watching ? wait_for_streams(n) : ZERO_ERR_COMM;
    nccl_stop_watching(n);
    if (!rc) rc = n->failed ? ZERO_ERR_COMM : finalize(n);
    if (rc) nccl_abort(n);
    for (int i = 0; i < LANES * WATCHED; i++) {
        collective *w = &n->lanes[i / WATCHED].queue[i % WATCHED];
        if (w->begin) cudaEventDestroy(w->begin);
        if (w->end) cudaEventDestroy(w->end);
    }
    pthread_mutex_destroy(&n->lock);
    free(n);
    c->nccl = NULL;
    c->f = &comm_host_functions;
    c->gather_stream = COMM;
    c->only_queues = 0;
}
#endif
