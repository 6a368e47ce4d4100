// Splits a collective into rounds if its data does not fit into the staging.
#include "../base/error.h"
#include "comm.h"

int comm_next_round(comm_round *r, int64_t room) {
    r->n_runs = 0;
    r->elems = 0;
    while (r->next < r->end && r->elems < room) {
        const comm_piece *p = r->next;
        const int64_t left = p->elems - r->inside, most = room - r->elems, n = left < most ? left : most;
        r->runs[r->n_runs++] = (comm_run){ p, r->inside, n, r->elems };
        r->elems += n;
        r->inside += n;
        if (r->inside < p->elems) break;
        r->next++;
        r->inside = 0;
    }
    return r->n_runs;
}

int comm_sum_round(comm *c, const comm_round *r, const char *others, size_t stride, zero_dtype full_type,
                   zero_dtype shard_type, float scale) {
    const int own = c->group.rank, ranks = c->group.ranks;
    const size_t size = dtype_bytes(full_type);
    device *d = c->device;
    for (const comm_run *u = r->runs; u < r->runs + r->n_runs; u++) {
        const rank_parts parts = { ranks, own, u->piece->full + (own * u->piece->elems + u->from) * size,
                                   others + u->at * size, stride };
        const float *plus = u->piece->plus ? u->piece->plus + u->from : NULL;
        ZERO_TRY(d->f->sum_ranks(d, COMM, shard_type, u->piece->shard + u->from * dtype_bytes(shard_type),
                                 full_type, &parts, scale, u->n, plus));
    }
    return 0;
}
