// The collectives of one rank, which gathers and reduces only its own data.
#include "../base/error.h"
#include "comm.h"
#include <stdio.h>

int comm_copy_own(comm *c, comm_use use, const comm_piece *pieces, int n, size_t elem_bytes) {
    for (const comm_piece *p = pieces; p < pieces + n; p++) {
        if (p->shard == p->full) continue;
        ZERO_TRY(c->device->f->copy(c->device, c->gather_stream, p->full, p->shard, p->elems * elem_bytes));
    }
    return 0;
}

int comm_reduce_own(comm *c, comm_use use, const comm_piece *pieces, int n, zero_dtype full_type,
                    zero_dtype shard_type, float scale) {
    device *d = c->device;
    for (const comm_piece *p = pieces; p < pieces + n; p++) {
        const char *own = p->full + c->group.rank * p->elems * dtype_bytes(full_type);
        const rank_parts part = { .ranks = 1, .own = own };
        if (p->shard == own && scale == 1 && !p->plus) continue;
        ZERO_TRY(d->f->sum_ranks(d, COMM, shard_type, p->shard, full_type, &part, scale, p->elems, p->plus));
    }
    return 0;
}

static const comm_functions functions = { .all_gather = comm_copy_own, .reduce_scatter = comm_reduce_own };

int comm_open_self(comm *c) {
    c->f = &functions;
    c->only_queues = c->device->asynchronous;
    snprintf(c->name, sizeof c->name, c->net->link ? "%s, one rank" : "%s", c->net->name);
    return 0;
}
