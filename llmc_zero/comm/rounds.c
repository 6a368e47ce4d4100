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

static int sum_run(comm *c, const comm_run *u, const comm_sum *s) {
    const size_t size = dtype_bytes(s->type);
    const comm_piece *p = u->piece;
    device *d = c->device;
    const char *own = s->mine ? s->mine + u->at * size : p->full + (s->part * p->elems + u->from) * size;
    const rank_parts parts = { s->ranks, s->own, own, s->others + u->at * size, s->stride };
    if (s->sums)
        return d->f->sum_ranks(d, COMM, ZERO_F32, s->sums + u->at * sizeof(float), s->type, &parts, 1, u->n,
                               NULL);
    return d->f->sum_ranks(d, COMM, s->shard_type, p->shard + u->from * dtype_bytes(s->shard_type), s->type,
                           &parts, s->scale, u->n, p->plus ? p->plus + u->from : NULL);
}

int comm_sum_round(comm *c, const comm_round *r, const comm_sum *s) {
    for (const comm_run *u = r->runs; u < r->runs + r->n_runs; u++) ZERO_TRY(sum_run(c, u, s));
    return 0;
}

int comm_sum_hosts(comm *c, const comm_round *r, comm_sum s, int hosts, size_t step, size_t apart) {
    for (int host = 0; host < hosts; host++) {
        ZERO_TRY(comm_sum_round(c, r, &s));
        s.part += s.ranks;
        s.others += step;
        s.sums += apart;
    }
    return 0;
}
