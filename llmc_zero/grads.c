// Gradients: get, ready, reduce. A unit's gradient is final at its last post_backward; when all units of a
// bucket are final the bucket's reduction starts, while backward goes on with the other buffer. Where the
// reduced gradients end: stage 0 everywhere, stage 1 in this rank's part of the whole buffer, stages 2 and 3
// in the shard, added to those of earlier micro-batches.
#include "internal.h"
#include <stdlib.h>
#include <string.h>

// Stage 0: what was reduced goes to everyone, after the reduction and before what comes after the job. Its
// events have been used by now or will be recorded again.
static int gather_reduced(zero *z, job *j, size_t elem_bytes) {
    bucket_state *b = &z->buckets[j->index];
    device *d = &z->device;
    ZERO_TRY(d->f->record(d, j->done, COMM));
    ZERO_TRY(d->f->order(d, z->comm.gather_stream, j->done));
    ZERO_TRY(comm_all_gather(&z->comm, b->use, b->pieces, b->n_pieces, elem_bytes));
    ZERO_TRY(d->f->record(d, j->ready, z->comm.gather_stream));
    return d->f->order(d, COMM, j->ready);
}

// To their sum: as they are, or widened on the way. One wire buffer does: reductions follow one another on
// their stream.
static int reduce_scatter(zero *z, const bucket_state *b) {
    device *d = &z->device;
    zero_dtype from = reduced_type(z);
    if (!z->wire_buffer)
        return comm_reduce_scatter(&z->comm, b->use, b->pieces, b->n_pieces, from, grad_type(z), b->add);
    comm_piece wide[b->n_pieces];
    float *at = (float *)z->wire_buffer;
    for (int i = 0; i < b->n_pieces; i++) {
        const comm_piece *p = &b->pieces[i];
        int64_t elems = p->elems * z->comm.ranks;
        ZERO_TRY(
            d->f->accumulate(d, COMM, at, from, p->full, elems, 1));  // the first: nothing is added to it
        wide[i] = (comm_piece){ (char *)at, p->shard, p->elems };
        at += elems;
    }
    ZERO_TRY(comm_reduce_scatter(&z->comm, b->use, wide, b->n_pieces, ZERO_F32, grad_type(z), b->add));
    return z->config.debug.poison
               ? d->f->fill_nan(d, COMM, z->wire_buffer, (at - (float *)z->wire_buffer) * sizeof(float))
               : 0;
}

// Stages 2 and 3 put the sum into this rank's shard, or add it to that. Stages 0 and 1 reduce in place.
static int open_sums(zero *z, int bucket, state_part *parts, int *n) {
    bucket_state *b = &z->buckets[bucket];
    state *grads = &z->states[ZERO_GRADIENT];
    state_intent intent = grads->sharded && !b->add ? STATE_WRITE : STATE_CHANGE;
    *n = 0;
    for (int u = b->last_unit; u >= b->first_unit; u--) {
        if (z->layout.units[u].bucket != bucket) continue;
        comm_piece *piece = &b->pieces[*n];
        state_part *part = &parts[*n];
        ZERO_TRY(state_open(part, grads, COMM, u, state_held(grads), intent));
        ++*n;
        piece->shard = state_own(part);
        if (!grads->sharded) piece->full = part->at;
    }
    return 0;
}

static int reduce_bucket(zero *z, job *j) {
    bucket_state *b = &z->buckets[j->index];
    state_part parts[b->n_pieces];
    int n;
    int rc = open_sums(z, j->index, parts, &n);
    if (!rc) rc = reduce_scatter(z, b);
    if (!rc && z->config.stage == 0) rc = gather_reduced(z, j, dtype_bytes(reduced_type(z)));
    return state_close_after(rc, parts, n);
}

static int run_reduce(void *ctx, job *j) {
    zero *z = ctx;
    bucket_state *b = &z->buckets[j->index];
    double start = trace_now(&z->trace);
    int whole = z->config.stage < 2;  // reduced in place
    size_t size = dtype_bytes(reduced_type(z));
    int rc = reduce_bucket(z, j);
    for (int i = 0; z->config.debug.poison && !whole && i < b->n_pieces; i++)
        if (!rc)
            rc = z->device.f->fill_nan(&z->device, COMM, b->pieces[i].full,
                                       b->pieces[i].elems * z->comm.ranks * size);
    for (int i = 0; i < z->layout.n_units; i++)
        if (z->layout.units[i].bucket == j->index)
            trace_add(&z->trace, ZERO_EV_REDUCE, i, z->config.overlap, start);
    return rc;
}

static int create_buffers(zero *z) {
    const layout *l = &z->layout;
    for (int i = 0; i < 2; i++) {
        z->buffer_bucket[i] = -1;
        if (i >= z->plan.own[PLAN_BUCKETS].blocks) continue;
        z->bucket_buffer[i] = allocate(z, PLAN_BUCKETS);
        if (!z->bucket_buffer[i]) return ZERO_ERR_MEMORY;
    }
    for (int i = 0; i < l->n_units; i++) {
        if (!l->units[i].shared) continue;
        z->own_grads[i] = allocate_for_unit(z, PLAN_SHARED_BUCKETS, i);
        if (!z->own_grads[i]) return ZERO_ERR_MEMORY;
    }
    return 0;
}

static int create_wire_buffer(zero *z) {
    if (!z->plan.own[PLAN_WIRE].blocks) return 0;
    z->wire_buffer = allocate(z, PLAN_WIRE);
    return z->wire_buffer ? 0 : ZERO_ERR_MEMORY;
}

static char *bucket_memory(const zero *z, int unit) {
    const layout_unit *u = &z->layout.units[unit];
    if (z->own_grads[unit]) return z->own_grads[unit];
    return z->bucket_buffer[z->layout.buckets[u->bucket].buffer] +
           u->bucket_offset * dtype_bytes(z->config.numbers.dtype);
}

// For each unit that is cleared in several stretches.
static int create_cleared(zero *z) {
    const layout *l = &z->layout;
    const layout_unit *last = &l->units[l->n_units - 1];
    int n = last->first_cleared + last->n_cleared;
    stretch *list = calloc(n + 1, sizeof *list), *table;
    if (!list) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the table of what is cleared");
    table = allocate(z, PLAN_CLEARED);
    for (int u = 0; u < l->n_units; u++) {
        int first = l->units[u].first_cleared;
        stretches *t = &z->units[u].cleared;
        t->list = table ? table + first : NULL;
        for (; t->n < l->units[u].n_cleared; t->n++) {
            const layout_range *r = &l->cleared[first + t->n];
            list[first + t->n] = (stretch){ r->offset, r->elems, t->pieces };
            t->pieces += clear_chunks(r->elems);
        }
    }
    int rc = table ? device_set(&z->device, table, list, n * sizeof *list) : ZERO_ERR_MEMORY;
    free(list);
    return rc;
}

int grads_create(zero *z) {
    const layout *l = &z->layout;
    int whole = z->config.stage < 2;
    ZERO_TRY(create_state(z, ZERO_GRADIENT));
    if (uses_buckets(z)) ZERO_TRY(create_buffers(z));
    ZERO_TRY(create_wire_buffer(z));
    ZERO_TRY(create_cleared(z));
    for (int i = 0; i < l->n_buckets; i++) {
        z->buckets[i].reduce = (job){ .run = run_reduce, .ctx = z, .index = i };
        if (!(z->buckets[i].pieces = calloc(l->buckets[i].n_units, sizeof(comm_piece))))
            return zero_fail(ZERO_ERR_MEMORY, "out of memory for the buckets");
        ZERO_TRY(progress_prepare(&z->progress, &z->buckets[i].reduce, COMM));
    }
    for (int i = l->n_units - 1; i >= 0; i--) {
        bucket_state *b = &z->buckets[l->units[i].bucket];
        char *full = whole ? NULL : bucket_memory(z, i);  // what is in the state is known once it is open
        b->pieces[b->n_pieces++] = (comm_piece){ full, NULL, l->units[i].shard };
        b->first_unit = b->reduce.unit = i;
        if (b->n_pieces == 1) b->last_unit = i;
    }
    return 0;
}

static int is_full(const zero *z, int bucket) {
    return z->buckets[bucket].filled == z->layout.buckets[bucket].n_units;
}

int grads_check(const zero *z, int unit) {
    int bucket = z->layout.units[unit].bucket, before = z->buffer_bucket[z->layout.buckets[bucket].buffer];
    if (!uses_buckets(z) || z->own_grads[unit] || before == bucket || before < 0 || is_full(z, before))
        return 0;
    return zero_fail(
        ZERO_ERR_MISUSE,
        "unit %d (%s): backward came here before it finished the units of the bucket that is being filled; "
        "backward goes through units in the reverse of the table's order",
        unit, z->layout.units[unit].name);
}

// Makes the unit's bucket the one that fills its buffer: what was in there must have been reduced. A shared
// unit's buffer is its own.
static int claim_buffer(zero *z, int unit) {
    int bucket = z->layout.units[unit].bucket, own = z->own_grads[unit] != NULL;
    int *holder = &z->buffer_bucket[z->layout.buckets[bucket].buffer], before = own ? bucket : *holder;
    if (!own && before == bucket && !is_full(z, bucket)) return 0;
    if (before >= 0) ZERO_TRY(progress_wait(&z->progress, &z->buckets[before].reduce));
    if (!own) *holder = bucket;
    z->buckets[bucket].filled = 0;
    return 0;
}

// With poison, a gradient that the trainer says it writes, and does not, is NaN.
static int clear(zero *z, int unit) {
    const layout_unit *u = &z->layout.units[unit];
    const layout_range *only = &z->layout.cleared[u->first_cleared];
    size_t size = dtype_bytes(z->config.numbers.dtype);
    char *grads = z->units[unit].grads;
    device *d = &z->device;
    if (z->config.debug.poison) ZERO_TRY(d->f->fill_nan(d, COMPUTE, grads, u->padded * size));
    if (u->n_cleared == 1) return d->f->clear(d, COMPUTE, grads + only->offset * size, only->elems * size);
    return d->f->clear_stretches(d, COMPUTE, z->config.numbers.dtype, grads, &z->units[unit].cleared);
}

int grads_open(zero *z, int unit) {
    unit_state *u = &z->units[unit];
    if (uses_buckets(z)) {
        ZERO_TRY(claim_buffer(z, unit));
        u->grads = bucket_memory(z, unit);
    } else {
        state *grads = &z->states[ZERO_GRADIENT];
        ZERO_TRY(state_open(&u->opened_grads, grads, COMPUTE, unit, STATE_WHOLE, STATE_WRITE));
        u->grads = u->opened_grads.at;
    }
    return clear(z, unit);
}

// Stages 0 and 1: this micro-batch's gradient goes to the sum of the earlier ones, or is the first.
static int add_to_sum(zero *z, int unit) {
    const layout_unit *u = &z->layout.units[unit];
    device *d = &z->device;
    zero_dtype type = z->config.numbers.dtype;
    char *grads = z->units[unit].grads;
    int first = z->micro == 0;
    state_part sum;
    ZERO_TRY(state_open(&sum, &z->states[ZERO_GRADIENT], COMPUTE, unit, STATE_WHOLE,
                        first ? STATE_WRITE : STATE_CHANGE));
    int rc = d->f->accumulate(d, COMPUTE, (float *)sum.at, type, grads, u->padded, first);
    ZERO_TRY(state_close_after(rc, &sum, 1));
    return z->config.debug.poison ? d->f->fill_nan(d, COMPUTE, grads, u->padded * dtype_bytes(type)) : 0;
}

static comm_use use_of(const bucket_state *b, int64_t *counter) {
    return (comm_use){ ZERO_FOR_STEP, b->first_unit, b->last_unit - b->first_unit + 1, counter };
}

int grads_finish(zero *z, int unit) {
    const layout_unit *u = &z->layout.units[unit];
    bucket_state *b = &z->buckets[u->bucket];
    int last = z->micro == z->micro_of - 1, n_units = z->layout.buckets[u->bucket].n_units;
    if (z->config.stage < 2 && sums_micro_batches(z)) ZERO_TRY(add_to_sum(z, unit));
    ZERO_TRY(state_close(&z->units[unit].opened_grads));
    z->units[unit].grads = NULL;
    if (!uses_buckets(z) && b->filled == n_units) b->filled = 0;  // a new step
    b->filled++;
    if (b->filled < n_units || z->config.debug.naive || (z->config.stage < 2 && !last)) return 0;
    b->add = z->config.stage >= 2 && z->micro > 0;
    b->use = use_of(b, NULL);
    return progress_submit(&z->progress, &b->reduce);
}

int grads_rehearse(zero *z, int bucket, int64_t *counter) {
    bucket_state *b = &z->buckets[bucket];
    b->use = use_of(b, counter);
    ZERO_TRY(progress_submit(&z->progress, &b->reduce));
    return progress_wait(&z->progress, &b->reduce);
}

int grads_wait(zero *z) {
    for (int i = 0; i < z->layout.n_buckets; i++)
        ZERO_TRY(progress_wait(&z->progress, &z->buckets[i].reduce));
    return 0;
}

int grads_begin_step(zero *z) {
    ZERO_TRY(grads_wait(z));
    for (int i = 0; i < z->layout.n_units; i++) {
        ZERO_TRY(state_close(&z->units[i].opened_grads));
        z->units[i].grads = NULL;
    }
    for (int i = 0; i < z->layout.n_buckets; i++) z->buckets[i].filled = 0;
    z->buffer_bucket[0] = z->buffer_bucket[1] = -1;
    return 0;
}
