// The collectives through NCCL, and their table; see comm/nccl.h.
//
// NCCL starts a thread for each group of a non-blocking communicator. So a collective is one group, or one
// per round if comm.incoming has no room for the largest bucket's shards.
#ifdef ZERO_HAVE_NCCL
#include "nccl.h"
#include "nccl_state.h"

static const ncclDataType_t nccl_type[] = {
    [ZERO_F32] = ncclFloat32, [ZERO_BF16] = ncclBfloat16, [ZERO_F16] = ncclFloat16
};

cudaStream_t device_cuda_stream(device *d, device_stream s);

// -------- reductions

// Returns the data of a host's part that a rank of this host has sent.
static char *incoming_at(const nccl_state *n, int rank, int host) {
    const comm *c = n->c;
    return c->incoming + (rank * n->of[BETWEEN].of.ranks + host) * c->incoming_bytes;
}

// Between the ranks of this host: each gets its part and those of its equals on the other hosts.
static int exchange_near(nccl_state *n, const collective *w, const comm_round *round, zero_dtype type) {
    comm *c = n->c;
    const communicator *k = &n->of[REDUCTIONS];
    const size_t size = dtype_bytes(type);
    ASK(n, GroupStart);
    for (const comm_run *u = round->runs; u < round->runs + round->n_runs; u++) {
        for (int part = 0; part < c->group.ranks; part++) {
            const int r = part % k->of.ranks;
            if (r == k->of.rank) continue;
            const char *out = u->piece->full + (part * u->piece->elems + u->from) * size;
            char *in = incoming_at(n, r, part / k->of.ranks) + u->at * size;
            ASK(n, Send, out, u->n, nccl_type[type], r, k->comm, k->stream);
            ASK(n, Recv, in, u->n, nccl_type[type], r, k->comm, k->stream);
            comm_count(c, w->use, COMM_REDUCE_SCATTER, u->n * size);
        }
    }
    ASK(n, GroupEnd);
    return nccl_settle(n, k, w);
}

// Between hosts: fp32 sums, `apart` bytes from each other. They replace the data that has been summed.
static int exchange_far(nccl_state *n, const collective *w, int64_t elems, const char *sums, size_t apart) {
    comm *c = n->c;
    const communicator *k = &n->of[BETWEEN];
    ASK(n, GroupStart);
    for (int host = 0; host < k->of.ranks; host++) {
        if (host == k->of.rank) continue;
        ASK(n, Send, sums + host * apart, elems, ncclFloat32, host, k->comm, k->stream);
        ASK(n, Recv, c->incoming + host * apart, elems, ncclFloat32, host, k->comm, k->stream);
        comm_count(c, w->use, COMM_REDUCE_SCATTER, elems * sizeof(float));
    }
    ASK(n, GroupEnd);
    return nccl_settle(n, k, w);
}

// Adds the ranks of this host, for each host's part, and exchanges the sums.
static int sum_near(nccl_state *n, const collective *w, const comm_round *round, comm_sum *s) {
    comm *c = n->c;
    const communicator *far = &n->of[BETWEEN];
    const size_t apart = 2 * c->incoming_bytes;
    char *sums = s->sums = incoming_at(n, s->ranks, 0);
    ZERO_TRY(comm_sum_hosts(c, round, *s, far->of.ranks, c->incoming_bytes, apart));
    ZERO_TRY(exchange_far(n, w, round->elems, sums, apart));
    comm_sum_of(s, far->of, ZERO_F32, c->incoming, apart);
    s->mine = sums + far->of.rank * apart;
    return 0;
}

// Sums in tree order in fp32, as the host's functions do.
static int reduce_in_order(nccl_state *n, const collective *w, const comm_piece *pieces, int n_pieces,
                           zero_dtype full_type, zero_dtype shard_type, float scale) {
    comm *c = n->c;
    const int hosts = n->of[BETWEEN].of.ranks;
    comm_run runs[n_pieces];
    comm_round r = { .runs = runs, .next = pieces, .end = pieces + n_pieces };
    comm_sum sum = { .shard_type = shard_type, .scale = scale };
    while (comm_next_round(&r, c->incoming_bytes / dtype_bytes(full_type))) {
        ZERO_TRY(exchange_near(n, w, &r, full_type));
        comm_sum_of(&sum, n->of[REDUCTIONS].of, full_type, c->incoming, hosts * c->incoming_bytes);
        if (hosts > 1) ZERO_TRY(sum_near(n, w, &r, &sum));
        ZERO_TRY(comm_sum_round(c, &r, &sum));
    }
    return 0;
}

// NCCL sums into this rank's part of each piece's `full`, with its own order and rounding.
static int reduce_by_nccl(nccl_state *n, const collective *w, const comm_piece *pieces, int n_pieces,
                          zero_dtype full_type, zero_dtype shard_type, float scale) {
    comm *c = n->c;
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
    return comm_reduce_own(c, w->use, pieces, n_pieces, full_type, shard_type, scale);
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

static const communicator *gathers_of(const nccl_state *n, net_group of) {
    if (!of.ranks || of.ranks == n->c->group.ranks) return &n->of[GATHERS];
    return &n->of[of.step == 1 ? GROUP_GATHERS : EQUALS_GATHERS];
}

static int nccl_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n_pieces, size_t elem_bytes) {
    nccl_state *n = c->nccl;
    const communicator *k = gathers_of(n, use.of);
    collective *w;
    int rc = nccl_begin(n, k, COMM_ALL_GATHER, use, &w);
    if (rc) return nccl_finish(n, k, w, rc);
    ASK(n, GroupStart);
    for (const comm_piece *p = pieces; p < pieces + n_pieces; p++) {
        size_t bytes = p->elems * elem_bytes;
        ASK(n, AllGather, p->shard, p->full, bytes, ncclInt8, k->comm, k->stream);
        comm_count(c, use, COMM_ALL_GATHER, (k->of.ranks - 1) * bytes);
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
        if (!k->comm) continue;
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
    const int rank = c->group.rank, ranks = c->group.ranks,
              on_node = c->net->hosts ? c->net->ranks_on_node : 1;
    const cudaStream_t sums = device_cuda_stream(d, COMM), gathers = device_cuda_stream(d, GATHER);
    nccl_state *n = memory_array(m, 1, sizeof *n);
    ZERO_TRY_ALLOC(n);
    const int S = config->param_group ? config->param_group : ranks;
    c->way.nccl = comm_way_asked(config, ranks, on_node).nccl;
    *n = (nccl_state){
        .c = c,
        .of = { [GATHERS] = { comm_near(rank, ranks), NULL, GATHER, gathers, ZERO_MOVED_BY_GATHERS },
                [REDUCTIONS] = { comm_near(rank, c->way.nccl), NULL, COMM, sums, ZERO_MOVED_BY_REDUCTIONS },
                [BETWEEN] = { comm_far(rank, ranks, c->way.nccl), NULL, COMM, sums,
                              ZERO_MOVED_BY_REDUCTIONS },
                [GROUP_GATHERS] = { comm_near(rank, S), NULL, GATHER, gathers, ZERO_MOVED_BY_GATHERS },
                [EQUALS_GATHERS] = { comm_far(rank, ranks, S), NULL, GATHER, gathers,
                                     ZERO_MOVED_BY_GATHERS } },
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
