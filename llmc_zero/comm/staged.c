// Collectives through staging, in rounds of as many elements as fit. Each rank packs the data it sends, all
// ranks exchange it, and each rank unpacks gathered data or sums its part in rank order.
#include "../base/error.h"
#include "host.h"

// Either `to` or `from` is staging.
static int move(comm *c, device *d, void *to, const void *from, size_t bytes) {
    c->host->queued |= d->asynchronous;
    return d->f->copy(d, COMM, to, from, bytes);
}

// -------- reductions

// Packs the round's elements of every other rank's part into staging.
static int pack(comm *c, const comm_call *call, const comm_round *r) {
    const size_t size = call->elem_bytes;
    for (int dest = 0; dest < c->group.ranks; dest++) {
        if (dest == c->group.rank) continue;
        char *out = host_out(c, call, EXCHANGE_SCATTER, dest, 0, r->elems * size);
        for (const comm_run *u = r->runs; u < r->runs + r->n_runs; u++) {
            const char *from = u->piece->full + (dest * u->piece->elems + u->from) * size;
            ZERO_TRY(move(c, c->device, out + u->at * size, from, u->n * size));
        }
        comm_count(c, call->use, call->kind, r->elems * size);
    }
    return 0;
}

// Copies the other ranks' data to where the device can read it.
static int receive(comm *c, size_t bytes, const char **in, size_t *stride) {
    if (!c->incoming) return 0;
    for (int r = 0; r < c->group.ranks; r++)
        if (r != c->group.rank)
            ZERO_TRY(move(c, c->device, c->incoming + r * c->incoming_bytes, *in + r * *stride, bytes));
    *in = c->incoming;
    *stride = c->incoming_bytes;
    return 0;
}

int host_staged_reduce(comm *c, const comm_call *call) {
    const size_t size = call->elem_bytes;
    comm_run runs[call->n];
    comm_round r = { .runs = runs, .next = call->pieces, .end = call->pieces + call->n };
    while (comm_next_round(&r, (c->host->scatter_bytes - STAMP_BYTES) / size)) {
        const int half = c->host->half;
        ZERO_TRY(pack(c, call, &r));
        ZERO_TRY(host_exchange(c, call, EXCHANGE_SCATTER, 0, r.elems * size));
        const char *in = host_in(c, EXCHANGE_SCATTER, half, 0);
        size_t stride = host_in(c, EXCHANGE_SCATTER, half, 1) - in;
        ZERO_TRY(receive(c, r.elems * size, &in, &stride));
        c->host->queued |= c->device->asynchronous;
        ZERO_TRY(comm_sum_round(c, &r, in, stride, call->full_type, call->shard_type, call->add));
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

static int gather_round(comm *c, const comm_call *call, device *d, const comm_round *round) {
    const size_t size = call->elem_bytes;
    const comm_run *end = round->runs + round->n_runs;
    const int half = c->host->half;
    char *out = host_out(c, call, EXCHANGE_GATHER, 0, 0, round->elems * size);
    for (const comm_run *u = round->runs; u < end; u++) {
        char *own = u->piece->full + (c->group.rank * u->piece->elems + u->from) * size;
        ZERO_TRY(copy_twice(c, d, out + u->at * size, own, u->piece->shard + u->from * size, u->n * size));
    }
    ZERO_TRY(host_exchange(c, call, EXCHANGE_GATHER, 0, round->elems * size));
    for (int r = 0; r < c->group.ranks; r++) {
        if (r == c->group.rank) continue;
        const char *in = host_in(c, EXCHANGE_GATHER, half, r);
        for (const comm_run *u = round->runs; u < end; u++) {
            char *to = u->piece->full + (r * u->piece->elems + u->from) * size;
            ZERO_TRY(move(c, d, to, in + u->at * size, u->n * size));
        }
        // rank r receives the same number of bytes from this rank
        comm_count(c, call->use, call->kind, round->elems * size);
    }
    return 0;
}

int host_staged_gather(comm *c, const comm_call *call, device *d) {
    comm_run runs[call->n];
    comm_round r = { .runs = runs, .next = call->pieces, .end = call->pieces + call->n };
    while (comm_next_round(&r, (c->host->gather_bytes - STAMP_BYTES) / call->elem_bytes))
        ZERO_TRY(gather_round(c, call, d, &r));
    return 0;
}
