// The collectives through NCCL, and their table; see comm/nccl.h.
//
// NCCL starts a thread for each group of a non-blocking communicator. So a collective is one group, or one
// per round if comm.incoming has no room for the largest bucket's shards.
#ifdef ZERO_HAVE_NCCL
#include "nccl.h"
#include "host.h"
#include "nccl_state.h"
#include <stdlib.h>

static const ncclDataType_t nccl_type[] = {
    [ZERO_F32] = ncclFloat32, [ZERO_BF16] = ncclBfloat16, [ZERO_F16] = ncclFloat16
};

cudaStream_t device_cuda_stream(device *d, device_stream s);

// -------- reductions

static int exchange_round(nccl_state *n, const collective *w, const comm_round *round, zero_dtype type) {
    comm *c = n->c;
    const communicator *k = &n->of[REDUCTIONS];
    size_t size = dtype_bytes(type);
    ASK(n, GroupStart);
    for (const comm_run *u = round->runs; u < round->runs + round->n_runs; u++) {
        for (int r = 0; r < c->group.ranks; r++) {
            if (r == c->group.rank) continue;
            const char *out = u->piece->full + (r * u->piece->elems + u->from) * size;
            char *in = c->incoming + r * c->incoming_bytes + u->at * size;
            ASK(n, Send, out, u->n, nccl_type[type], r, k->comm, k->stream);
            ASK(n, Recv, in, u->n, nccl_type[type], r, k->comm, k->stream);
            comm_count(c, w->use, COMM_REDUCE_SCATTER, u->n * size);
        }
    }
    ASK(n, GroupEnd);
    return nccl_settle(n, k, w);
}

// Sums in tree order in fp32, as the host's functions do.
static int reduce_in_order(nccl_state *n, const collective *w, const comm_piece *pieces, int n_pieces,
                           zero_dtype full_type, zero_dtype shard_type, float scale) {
    comm *c = n->c;
    comm_run runs[n_pieces];
    comm_round r = { .runs = runs, .next = pieces, .end = pieces + n_pieces };
    const comm_sum sum = { .ranks = c->group.ranks,
                           .own = c->group.rank,
                           .type = full_type,
                           .others = c->incoming,
                           .stride = c->incoming_bytes,
                           .part = c->group.rank,
                           .shard_type = shard_type,
                           .scale = scale };
    while (comm_next_round(&r, c->incoming_bytes / dtype_bytes(full_type))) {
        ZERO_TRY(exchange_round(n, w, &r, full_type));
        ZERO_TRY(comm_sum_round(c, &r, &sum));
    }
    return 0;
}

// NCCL sums into this rank's part of each piece's `full`, with its own order and rounding.
static int reduce_by_nccl(nccl_state *n, const collective *w, const comm_piece *pieces, int n_pieces,
                          zero_dtype full_type, zero_dtype shard_type, float scale) {
    comm *c = n->c;
    device *d = c->device;
    const communicator *k = &n->of[REDUCTIONS];
    int ranks = c->group.ranks;
    size_t size = dtype_bytes(full_type);
    ASK(n, GroupStart);
    for (const comm_piece *p = pieces; p < pieces + n_pieces; p++) {
        char *own = p->full + c->group.rank * p->elems * size;
        ASK(n, ReduceScatter, p->full, own, p->elems, nccl_type[full_type], ncclSum, k->comm, k->stream);
        comm_count(c, w->use, COMM_REDUCE_SCATTER, (ranks - 1) * p->elems * size);
    }
    ASK(n, GroupEnd);
    ZERO_TRY(nccl_settle(n, k, w));
    for (const comm_piece *p = pieces; p < pieces + n_pieces; p++) {
        const rank_parts sum = { .ranks = 1, .own = p->full + c->group.rank * p->elems * size };
        ZERO_TRY(d->f->sum_ranks(d, COMM, shard_type, p->shard, full_type, &sum, scale, p->elems, p->plus));
    }
    return 0;
}

static int nccl_reduce_scatter(comm *c, comm_use use, const comm_piece *pieces, int n_pieces,
                               zero_dtype full_type, zero_dtype shard_type, float scale) {
    nccl_state *n = c->nccl;
    const communicator *k = &n->of[REDUCTIONS];
    collective *w;
    int rc = nccl_begin(n, k, COMM_REDUCE_SCATTER, use, &w);
    if (!rc && n->sums)
        rc = reduce_by_nccl(n, w, pieces, n_pieces, full_type, shard_type, scale);
    else if (!rc)
        rc = reduce_in_order(n, w, pieces, n_pieces, full_type, shard_type, scale);
    return nccl_finish(n, k, w, rc);
}

// -------- gathers

static int nccl_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n_pieces, size_t elem_bytes) {
    nccl_state *n = c->nccl;
    const communicator *k = &n->of[GATHERS];
    collective *w;
    int rc = nccl_begin(n, k, COMM_ALL_GATHER, use, &w);
    if (rc) return nccl_finish(n, k, w, rc);
    ASK(n, GroupStart);
    for (const comm_piece *p = pieces; p < pieces + n_pieces; p++) {
        size_t bytes = p->elems * elem_bytes;
        ASK(n, AllGather, p->shard, p->full, bytes, ncclInt8, k->comm, k->stream);
        comm_count(c, use, COMM_ALL_GATHER, (c->group.ranks - 1) * bytes);
    }
    ASK(n, GroupEnd);
    return nccl_finish(n, k, w, nccl_settle(n, k, w));
}

// -------- NCCL's own memory

// Adds the memory that NCCL has allocated since `before` bytes were free. If ranks share a GPU, the driver
// reports the memory of all of them, so each records an equal share, and no rank may allocate meanwhile.
static int count_taken(nccl_state *n, size_t before) {
    size_t left;
    ZERO_TRY(comm_barrier(n->c));
    ZERO_TRY(device_cuda_left(&left));
    if (left < before) n->taken += (before - left) / n->c->ranks_on_device;
    return comm_barrier(n->c);
}

static int wait_for_streams(const nccl_state *n) {
    device *d = n->c->device;
    ZERO_TRY(d->f->wait(d, COMM));
    return d->f->wait(d, GATHER);
}

// NCCL connects ranks during the first collective of each kind, so the rehearsal runs each kind once.
static int nccl_prepare(comm *c, memory *m, int (*rehearse)(void *), void *ctx) {
    nccl_state *n = c->nccl;
    size_t before;
    ZERO_TRY(comm_barrier(c));
    ZERO_TRY(device_cuda_left(&before));
    if (m->mover) ZERO_TRY(nccl_register_moved(n, m));
    ZERO_TRY(rehearse(ctx));
    ZERO_TRY(wait_for_streams(n));
    ZERO_TRY(count_taken(n, before));
    c->planned[COMM_NCCL].bytes = n->taken;
    return memory_note(m, &c->planned[COMM_NCCL]);
}

// -------- opening and closing

static int finalize(nccl_state *n) {
    ZERO_TRY(n->failure.fields.code);
    ZERO_TRY(wait_for_streams(n));
    ZERO_TRY(nccl_deregister_all(n));
    for (communicator *k = n->of; k < n->of + COMMUNICATORS; k++) {
        ASK(n, CommFinalize, k->comm);
        ZERO_TRY(nccl_settle(n, k, NULL));
        if (nccl.CommDestroy(k->comm)) return ZERO_ERR_COMM;
    }
    return 0;
}

// After a failure the communicators stay: NCCL could only abort them, which may hang as well.
static void nccl_close(comm *c, int clean) {
    nccl_state *n = c->nccl;
    device *d = c->device;
    if (!clean || finalize(n))
        for (const communicator *k = n->of; k < n->of + COMMUNICATORS; k++)
            c->mover.is_stalled = d->is_stalled |= cudaStreamQuery(k->stream) == cudaErrorNotReady;
    d->check = NULL;
    for (collective *w = n->queue; w < n->queue + QUEUED; w++) {
        d->f->destroy_event(d, w->begin);
        d->f->destroy_event(d, w->end);
    }
    free(n);
    c->nccl = NULL;
    comm_close_host(c, clean);
}

static const comm_functions functions = { .all_gather = nccl_all_gather,
                                          .reduce_scatter = nccl_reduce_scatter,
                                          .prepare = nccl_prepare,
                                          .close = nccl_close };

int comm_open_nccl(comm *c, const zero_config *config, memory *m) {
    size_t before;
    device *d = c->device;
    nccl_state *n = calloc(1, sizeof *n);
    if (!n) return zero_fail(ZERO_ERR_MEMORY, "out of memory for NCCL's state");
    *n = (nccl_state){
        .c = c,
        .of = { [REDUCTIONS] = { NULL, COMM, device_cuda_stream(d, COMM), ZERO_MOVED_BY_REDUCTIONS },
                [GATHERS] = { NULL, GATHER, device_cuda_stream(d, GATHER), ZERO_MOVED_BY_GATHERS } },
        .sums = config->comm.reduce_nccl,
        .overlaps = config->overlap,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .waited = patience_start(),
    };
    c->f = &functions;
    c->nccl = n;
    c->gather_stream = GATHER;
    c->only_queues = 1;
    d->check_ctx = n;
    d->check = nccl_check;
    for (collective *w = n->queue; w < n->queue + QUEUED; w++) {
        ZERO_TRY(d->f->create_event(d, &w->begin));
        ZERO_TRY(d->f->create_event(d, &w->end));
    }
    ZERO_TRY(comm_barrier(c));
    ZERO_TRY(device_cuda_left(&before));
    ZERO_TRY(nccl_connect(n));
    ZERO_TRY(count_taken(n, before));
    if (config->comm.nccl_memory) nccl_set_mover(c, m);
    return 0;
}
#endif
