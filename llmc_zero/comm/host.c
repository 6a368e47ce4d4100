// Each rank packs the data it sends into staging, all ranks exchange it, and each rank unpacks gathered data
// or sums its part in tree order: in rounds of as many elements as fit. With two groups (comm/staging.h) a
// reduction first sums within a host, and a gather first passes between hosts.
#include "staging.h"
#include "../base/error.h"
#include <string.h>

// Either `to` or `from` is staging.
static int move(comm *c, device *d, void *to, const void *from, size_t bytes) {
    c->host->queued |= d->asynchronous;
    return d->f->copy(d, COMM, to, from, bytes);
}

// others: how many other ranks use the bytes.
static int exchange(comm *c, staging *s, comm_use use, exchange_kind x, comm_kind kind, int others,
                    size_t bytes) {
    comm_count(c, use, kind, others * bytes);
    return staging_exchange(c, s, use, x, 0, bytes);
}

// -------- reductions

// Returns how many elements of a part fit into a round. In a round of two groups a rank sends each rank of
// its host the elements of a part for every host, and then fp32 sums to its equals on the other hosts.
static int64_t scatter_room(const comm_host *h, size_t size) {
    enum { ALIGNED = 16 };  // the parts for the hosts are packed
    const int64_t near = h->near->scatter_bytes / h->hosts / size;
    if (!h->far) return near;
    const int64_t far = h->far->scatter_bytes / sizeof(float);
    return (near < far ? near : far) / ALIGNED * ALIGNED;
}

// Packs every other rank's part of the round into staging: for a near rank, those of its equals on all hosts.
static int pack(comm *c, const comm_round *round, size_t size) {
    const staging *near = c->host->near;
    for (int part = 0; part < c->group.ranks; part++) {
        const int dest = part % near->of.ranks, host = part / near->of.ranks;
        char *out = staging_out(near, EXCHANGE_SCATTER, dest) + host * round->elems * size;
        if (dest == near->of.rank) continue;
        for (const comm_run *u = round->runs; u < round->runs + round->n_runs; u++) {
            const char *from = u->piece->full + (part * u->piece->elems + u->from) * size;
            ZERO_TRY(move(c, c->device, out + u->at * size, from, u->n * size));
        }
    }
    return 0;
}

// Copies the other ranks' data to where the device can read it.
static int receive(comm *c, size_t bytes, comm_sum *s) {
    c->host->queued |= c->device->asynchronous;
    if (!c->incoming) return 0;
    for (int r = 0; r < c->group.ranks; r++)
        if (r != c->group.rank)
            ZERO_TRY(
                move(c, c->device, c->incoming + r * c->incoming_bytes, s->others + r * s->stride, bytes));
    s->others = c->incoming;
    s->stride = c->incoming_bytes;
    return 0;
}

// Adds the ranks of this host, for each host's part, and exchanges the sums.
static int sum_near(comm *c, comm_use use, const comm_round *round, comm_sum *s) {
    staging *far = c->host->far;
    const int hosts = far->of.ranks;
    s->sums = staging_out(far, EXCHANGE_SCATTER, 0);
    ZERO_TRY(comm_sum_hosts(c, round, *s, hosts, round->elems * dtype_bytes(s->type), far->part));
    ZERO_TRY(exchange(c, far, use, EXCHANGE_SCATTER, COMM_REDUCE_SCATTER, hosts - 1,
                      round->elems * sizeof(float)));
    comm_sum_of(s, far->of, ZERO_F32, staging_in(far, EXCHANGE_SCATTER, 0), far->in_stride);
    s->mine = staging_out(far, EXCHANGE_SCATTER, far->of.rank);
    return 0;
}

static int host_reduce_scatter(comm *c, comm_use use, const comm_piece *pieces, int n, zero_dtype full_type,
                               zero_dtype shard_type, float scale) {
    const size_t size = dtype_bytes(full_type);
    const comm_host *h = c->host;
    staging *near = h->near;
    comm_run runs[n];
    comm_round round = { .runs = runs, .next = pieces, .end = pieces + n };
    comm_sum sum = { .shard_type = shard_type, .scale = scale };
    while (comm_next_round(&round, scatter_room(h, size))) {
        const size_t bytes = h->hosts * round.elems * size;
        ZERO_TRY(pack(c, &round, size));
        ZERO_TRY(exchange(c, near, use, EXCHANGE_SCATTER, COMM_REDUCE_SCATTER, near->of.ranks - 1, bytes));
        comm_sum_of(&sum, near->of, full_type, staging_in(near, EXCHANGE_SCATTER, 0), near->in_stride);
        ZERO_TRY(receive(c, bytes, &sum));
        if (h->far) ZERO_TRY(sum_near(c, use, &round, &sum));
        ZERO_TRY(comm_sum_round(c, &round, &sum));
    }
    return 0;
}

// -------- gathers

// Copies into staging and to `own`, which may equal `from`: on a CPU in pieces that stay in the cache.
static int copy_twice(comm *c, device *d, char *out, char *own, const char *from, size_t bytes) {
    size_t piece = d->asynchronous ? bytes : 16 << 10;
    for (size_t at = 0; at < bytes; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        ZERO_TRY(move(c, d, out + at, from + at, n));
        if (own != from) ZERO_TRY(move(c, d, own + at, from + at, n));
    }
    return 0;
}

// Between which ranks, and through which staging, the data of a gather passes.
typedef struct {
    comm_use use;
    comm_kind kind;
    device *device;
    size_t size;  // of an element
    comm_route by;
    staging far;    // of by.far, unless that is this rank alone
    staging *near;  // the window of by.near and the other ranks of this host
} gathering;

// Copies what a round has gathered of a rank to its place in full. part: its number among those that take
// part.
static int unpack(comm *c, const gathering *g, const comm_round *round, int part, const char *in) {
    for (const comm_run *u = round->runs; u < round->runs + round->n_runs; u++) {
        char *to = u->piece->full + (part * u->piece->elems + u->from) * g->size;
        ZERO_TRY(move(c, g->device, to, in + u->at * g->size, u->n * g->size));
    }
    return 0;
}

// Passes this rank's data, and what has come from the other hosts, to the ranks of this one.
static int gather_near(comm *c, const gathering *g, const comm_round *round) {
    const net_group *far = &g->by.far, *near = &g->by.near;
    const size_t bytes = round->elems * g->size;
    char *out = staging_out(g->near, EXCHANGE_GATHER, 0);
    for (int i = 0; i < far->ranks && far->ranks > 1; i++) {
        const int own = i == far->rank;
        const char *from = own ? staging_out(&g->far, EXCHANGE_GATHER, 0)
                               : staging_in(&g->far, EXCHANGE_GATHER, i);
        ZERO_TRY(move(c, g->device, out + i * bytes, from, bytes));
    }
    ZERO_TRY(exchange(c, g->near, g->use, EXCHANGE_GATHER, g->kind, near->ranks - 1, far->ranks * bytes));
    for (int k = 0; k < near->ranks; k++) {
        const int rank = near->first + k * near->step - g->near->of.first;
        for (int i = 0; i < far->ranks && k != near->rank; i++)
            ZERO_TRY(unpack(c, g, round, i * near->ranks + k,
                            staging_in(g->near, EXCHANGE_GATHER, rank) + i * bytes));
    }
    return 0;
}

static int gather_round(comm *c, gathering *g, const comm_round *round) {
    const net_group *far = &g->by.far, *near = &g->by.near;
    const int own_part = far->rank * near->ranks + near->rank;
    char *out = staging_out(far->ranks > 1 ? &g->far : g->near, EXCHANGE_GATHER, 0);
    for (const comm_run *u = round->runs; u < round->runs + round->n_runs; u++) {
        char *own = u->piece->full + (own_part * u->piece->elems + u->from) * g->size;
        ZERO_TRY(copy_twice(c, g->device, out + u->at * g->size, own, u->piece->shard + u->from * g->size,
                            u->n * g->size));
    }
    if (far->ranks > 1)
        ZERO_TRY(
            exchange(c, &g->far, g->use, EXCHANGE_GATHER, g->kind, far->ranks - 1, round->elems * g->size));
    for (int i = 0; i < far->ranks; i++)
        if (i != far->rank)
            ZERO_TRY(
                unpack(c, g, round, i * near->ranks + near->rank, staging_in(&g->far, EXCHANGE_GATHER, i)));
    return near->ranks > 1 ? gather_near(c, g, round) : 0;
}

static int gather(comm *c, comm_use use, comm_kind kind, device *d, const comm_piece *pieces, int n,
                  size_t size) {
    staging *near = c->host->near;
    const net_group of = use.of.ranks ? use.of : comm_near(c->group.rank, c->group.ranks);
    const comm_route by = comm_route_of(near->window ? near->of.ranks : 0, c->group.rank, of);
    gathering g = { use, kind, d, size, by, .near = near };
    size_t room = near->gather_bytes / by.far.ranks;
    comm_run runs[n];
    comm_round round = { .runs = runs, .next = pieces, .end = pieces + n };
    if (by.far.ranks > 1) {
        g.far = staging_between(c, by.far);
        if (by.near.ranks == 1 || g.far.gather_bytes < room) room = g.far.gather_bytes;
    }
    while (comm_next_round(&round, room / size)) ZERO_TRY(gather_round(c, &g, &round));
    return 0;
}

static int host_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n, size_t elem_bytes) {
    return gather(c, use, COMM_ALL_GATHER, c->device, pieces, n, elem_bytes);
}

// -------- in host memory

int comm_gather_in_host(comm *c, comm_use use, const comm_piece *piece, size_t elem_bytes) {
    if (c->device->time) return comm_virtual_gather(c, PROCESSOR, use, piece, 1, elem_bytes);
    return gather(c, use, COMM_ALL_GATHER, &device_host, piece, 1, elem_bytes);
}

int comm_broadcast(comm *c, comm_use use, int root, void *data, size_t bytes) {
    if (!c->host) return 0;
    staging *s = &c->host->all;
    for (size_t pos = 0; pos < bytes; pos += s->gather_bytes) {
        size_t n = bytes - pos < s->gather_bytes ? bytes - pos : s->gather_bytes;
        if (c->group.rank == root) memcpy(staging_out(s, EXCHANGE_ROOT, 0), (char *)data + pos, n);
        ZERO_TRY(staging_exchange(c, s, use, EXCHANGE_ROOT, root, n));
        if (c->group.rank == root)
            comm_count(c, use, COMM_OTHER, n * (c->group.ranks - 1));
        else
            memcpy((char *)data + pos, staging_in(s, EXCHANGE_ROOT, root), n);
    }
    return 0;
}

// Counts its bytes as COMM_OTHER, because it does not gather parameters.
int comm_share(comm *c, comm_use use, const double *mine, double *all, int n) {
    const comm_piece p = { (char *)all, (char *)mine, n };
    if (c->host) return gather(c, use, COMM_OTHER, &device_host, &p, 1, sizeof *mine);
    if (c->device->time) comm_virtual_share(c, mine, all, n);
    memcpy(all, mine, n * sizeof *mine);
    return 0;
}

int comm_barrier(comm *c) {
    if (!c->host) return 0;
    return staging_exchange(c, &c->host->all, comm_for_scalars, EXCHANGE_BARRIER, 0, 0);
}

// -------- opening and closing

const comm_functions comm_host_functions = { .all_gather = host_all_gather,
                                             .reduce_scatter = host_reduce_scatter,
                                             .close = comm_close_host };

int comm_open_host(comm *c, const zero_config *config, memory *m) {
    c->f = &comm_host_functions;
    return net_agree(c->net, staging_open(c, config, m));
}

void comm_close_host(comm *c, int clean) {
    const staging *near = c->host ? c->host->near : NULL;
    if (near && near->window) {
        c->device->f->unpin(c->device, near->in);
        window_close(near->window);
    }
    c->host = NULL;
}
