// Each rank packs the data it sends into staging, all ranks exchange it, and each rank unpacks gathered data
// or sums its part in tree order: in rounds of as many elements as fit.
#include "host.h"
#include "../base/error.h"
#include "staging.h"
#include <string.h>

// Either `to` or `from` is staging.
static int move(comm *c, device *d, void *to, const void *from, size_t bytes) {
    c->host->queued |= d->asynchronous;
    return d->f->copy(d, COMM, to, from, bytes);
}

// -------- reductions

// Packs the round's elements of every other rank's part into staging.
static int pack(comm *c, const comm_round *round, size_t size) {
    for (int dest = 0; dest < c->group.ranks; dest++) {
        char *out = staging_out(c, EXCHANGE_SCATTER, dest);
        if (dest == c->group.rank) continue;
        for (const comm_run *u = round->runs; u < round->runs + round->n_runs; u++) {
            const char *from = u->piece->full + (dest * u->piece->elems + u->from) * size;
            ZERO_TRY(move(c, c->device, out + u->at * size, from, u->n * size));
        }
    }
    return 0;
}

// Copies the other ranks' data to where the device can read it.
static int receive(comm *c, size_t bytes, const char **in, size_t *stride) {
    c->host->queued |= c->device->asynchronous;
    if (!c->incoming) return 0;
    for (int r = 0; r < c->group.ranks; r++)
        if (r != c->group.rank)
            ZERO_TRY(move(c, c->device, c->incoming + r * c->incoming_bytes, *in + r * *stride, bytes));
    *in = c->incoming;
    *stride = c->incoming_bytes;
    return 0;
}

static int host_reduce_scatter(comm *c, comm_use use, const comm_piece *pieces, int n, zero_dtype full_type,
                               zero_dtype shard_type, float scale) {
    const size_t size = dtype_bytes(full_type);
    comm_run runs[n];
    comm_round round = { .runs = runs, .next = pieces, .end = pieces + n };
    while (comm_next_round(&round, c->host->scatter_bytes / size)) {
        const size_t bytes = round.elems * size;
        ZERO_TRY(pack(c, &round, size));
        ZERO_TRY(staging_exchange(c, use, EXCHANGE_SCATTER, 0, bytes));
        comm_count(c, use, COMM_REDUCE_SCATTER, (c->group.ranks - 1) * bytes);
        const char *in = staging_in(c, EXCHANGE_SCATTER, 0);
        size_t stride = staging_in(c, EXCHANGE_SCATTER, 1) - in;
        ZERO_TRY(receive(c, bytes, &in, &stride));
        ZERO_TRY(comm_sum_round(c, &round, in, stride, full_type, shard_type, scale));
    }
    return 0;
}

// -------- gathers

// Copies into staging and into this rank's part of full; own may equal from. On a CPU it copies in pieces,
// which stay in the cache for the second copy.
static int copy_twice(comm *c, device *d, char *out, char *own, const char *from, size_t bytes) {
    size_t piece = d->asynchronous ? bytes : 16 << 10;
    for (size_t at = 0; at < bytes; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        ZERO_TRY(move(c, d, out + at, from + at, n));
        if (own != from) ZERO_TRY(move(c, d, own + at, from + at, n));
    }
    return 0;
}

static int gather_round(comm *c, comm_use use, device *d, const comm_round *round, size_t size) {
    const comm_run *end = round->runs + round->n_runs;
    char *out = staging_out(c, EXCHANGE_GATHER, 0);
    for (const comm_run *u = round->runs; u < end; u++) {
        char *own = u->piece->full + (c->group.rank * u->piece->elems + u->from) * size;
        ZERO_TRY(copy_twice(c, d, out + u->at * size, own, u->piece->shard + u->from * size, u->n * size));
    }
    ZERO_TRY(staging_exchange(c, use, EXCHANGE_GATHER, 0, round->elems * size));
    for (int r = 0; r < c->group.ranks; r++) {
        const char *in = staging_in(c, EXCHANGE_GATHER, r);
        if (r == c->group.rank) continue;
        for (const comm_run *u = round->runs; u < end; u++) {
            char *to = u->piece->full + (r * u->piece->elems + u->from) * size;
            ZERO_TRY(move(c, d, to, in + u->at * size, u->n * size));
        }
    }
    return 0;
}

static int gather(comm *c, comm_use use, comm_kind kind, device *d, const comm_piece *pieces, int n,
                  size_t size) {
    comm_run runs[n];
    comm_round round = { .runs = runs, .next = pieces, .end = pieces + n };
    while (comm_next_round(&round, c->host->gather_bytes / size)) {
        ZERO_TRY(gather_round(c, use, d, &round, size));
        comm_count(c, use, kind, (c->group.ranks - 1) * round.elems * size);
    }
    return 0;
}

static int host_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n, size_t elem_bytes) {
    return gather(c, use, COMM_ALL_GATHER, c->device, pieces, n, elem_bytes);
}

// -------- in host memory

int comm_broadcast(comm *c, comm_use use, int root, void *data, size_t bytes) {
    if (c->group.ranks == 1) return 0;
    for (size_t pos = 0; pos < bytes; pos += c->host->gather_bytes) {
        size_t n = bytes - pos < c->host->gather_bytes ? bytes - pos : c->host->gather_bytes;
        if (c->group.rank == root) memcpy(staging_out(c, EXCHANGE_ROOT, 0), (char *)data + pos, n);
        ZERO_TRY(staging_exchange(c, use, EXCHANGE_ROOT, root, n));
        if (c->group.rank == root)
            comm_count(c, use, COMM_OTHER, n * (c->group.ranks - 1));
        else
            memcpy((char *)data + pos, staging_in(c, EXCHANGE_ROOT, root), n);
    }
    return 0;
}

// Counts its bytes as COMM_OTHER, because it does not gather parameters.
int comm_share(comm *c, comm_use use, const double *mine, double *all, int n) {
    const comm_piece p = { (char *)all, (char *)mine, n };
    if (c->group.ranks > 1) return gather(c, use, COMM_OTHER, &device_host, &p, 1, sizeof *mine);
    memcpy(all, mine, n * sizeof *mine);
    return 0;
}

int comm_barrier(comm *c) {
    return c->group.ranks == 1 ? 0 : staging_exchange(c, comm_for_scalars, EXCHANGE_BARRIER, 0, 0);
}

// -------- opening and closing

const comm_functions comm_host_functions = { .all_gather = host_all_gather,
                                             .reduce_scatter = host_reduce_scatter,
                                             .close = comm_close_host };

int comm_open_host(comm *c, const zero_config *config, memory *m) {
    c->f = &comm_host_functions;
    return net_agree(c->net, staging_open(c, config, m));
}

void comm_close_host(comm *c, int clean) { staging_close(c); }
