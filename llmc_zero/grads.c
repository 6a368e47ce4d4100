// Gradients: opened at a unit's first pre_backward, final at its last post_backward. When all units of a
// bucket are final the bucket's reduction starts, while backward goes on with the other buffer. Where the
// reduced gradients end: stage 0 everywhere, stage 1 in this rank's part of the whole buffer, stages 2 and 3
// in the shard, added to those of earlier micro-batches.
#include "grads.h"
#include "internal.h"
#include "norm.h"
#include <stdlib.h>
#include <string.h>

// -------- the reduction of a bucket: one task, at stage 0 two

// Stages 2 and 3 put the sum into this rank's shard, or add it to that. Stages 0 and 1 reduce in place.
static int open_sums(zero *z, bucket_state *b, device_stream stream, state_part *parts) {
    state *grads = states_get(z, ZERO_GRADIENT);
    state_intent intent = grads->sharded && !b->add ? STATE_WRITE : STATE_CHANGE;
    for (int i = 0; i < b->n_pieces; i++) {
        const state_range all = state_all(grads, b->units[i], state_held(grads));
        ZERO_TRY(state_begin(&parts[i], grads, stream, all, intent, NULL));
    }
    for (int i = 0; i < b->n_pieces; i++) {
        ZERO_TRY(state_ready(&parts[i]));
        b->pieces[i].shard = state_own(&parts[i]);
        if (!grads->sharded) b->pieces[i].full = parts[i].at;
    }
    return 0;
}

// Into the wire buffer, as fp32. One buffer does, since reductions follow one another on their stream.
static int widen(zero *z, const bucket_state *b, comm_piece *wide) {
    device *d = &z->device;
    float *at = (float *)z->wire_buffer;
    for (int i = 0; i < b->n_pieces; i++) {
        const comm_piece *p = &b->pieces[i];
        int64_t elems = p->elems * z->comm.group.ranks;
        // 1: the first summand, which replaces what is there
        ZERO_TRY(d->f->accumulate(d, COMM, at, reduced_type(z), p->full, elems, 1));
        wide[i] = (comm_piece){ (char *)at, p->shard, p->elems };
        at += elems;
    }
    return 0;
}

// What was reduced is used up, unless it was reduced in place.
static int poison_reduced(zero *z, const bucket_state *b) {
    device *d = &z->device;
    size_t size = dtype_bytes(reduced_type(z)), wide = 0;
    for (int i = 0; i < b->n_pieces; i++) {
        int64_t elems = b->pieces[i].elems * z->comm.group.ranks;
        wide += elems * sizeof(float);
        if (z->config.stage >= 2) ZERO_TRY(d->f->fill_nan(d, COMM, b->pieces[i].full, elems * size));
    }
    return z->wire_buffer ? d->f->fill_nan(d, COMM, z->wire_buffer, wide) : 0;
}

static int reduce_opened(zero *z, const bucket_state *b) {
    const comm_piece *pieces = b->pieces;
    comm_piece wide[b->n_pieces];
    zero_dtype type = reduced_type(z);
    if (z->wire_buffer) {
        ZERO_TRY(widen(z, b, wide));
        pieces = wide;
        type = ZERO_F32;
    }
    ZERO_TRY(comm_reduce_scatter(&z->comm, b->use, pieces, b->n_pieces, type, grad_type(z), b->add));
    return z->config.debug.poison ? poison_reduced(z, b) : 0;
}

// The squares of what the step has summed up, while it is open.
static int sum_squares(zero *z, const bucket_state *b, device_stream stream) {
    if (!b->is_last || !norm_goes_along(z)) return 0;
    for (int i = 0; i < b->n_pieces; i++) {
        const zero_event e = { .kind = ZERO_EV_SQUARES, .unit = b->units[i], .thread = TRACE_SQUARES };
        const trace_span span = trace_begin(&z->trace, stream);
        ZERO_TRY(norm_sum_unit(z, stream, b->units[i], b->pieces[i].shard));
        trace_end(&z->trace, &span, &e);
    }
    return 0;
}

static void trace_beginning(zero *z, bucket_state *b, device_stream stream) {
    for (int i = 0; i < b->n_pieces; i++) b->spans[i] = trace_begin(&z->trace, stream);
}

// The bytes are those that this rank sends. Stage 0 sends what was reduced to everyone.
static void trace_end_of_reduction(zero *z, bucket_state *b, const task *k) {
    int64_t size = dtype_bytes(wire_type(z));
    zero_event e = { .kind = ZERO_EV_REDUCE, .thread = traced_lane(z, k->lane) };
    if (z->config.stage == 0) size += dtype_bytes(reduced_type(z));
    for (int i = 0; i < b->n_pieces; i++) {
        e.unit = b->units[i];
        e.bytes = b->pieces[i].elems * size * (z->comm.group.ranks - 1);
        b->spans[i].on = k->stream;
        trace_end(&z->trace, &b->spans[i], &e);
    }
}

static int run_reduce(void *ctx, task *k) {
    zero *z = ctx;
    bucket_state *b = &z->buckets[k->index];
    state_part sums[b->n_pieces];
    memset(sums, 0, sizeof sums);
    trace_beginning(z, b, k->stream);
    int rc = open_sums(z, b, k->stream, sums);
    if (!rc) rc = reduce_opened(z, b);
    if (!rc) rc = sum_squares(z, b, k->stream);
    rc = state_close_after(rc, sums, b->n_pieces);
    if (z->config.stage > 0) trace_end_of_reduction(z, b, k);
    return rc;
}

// Stage 0: everyone gets all of what was reduced.
static int run_gather_sums(void *ctx, task *k) {
    zero *z = ctx;
    bucket_state *b = &z->buckets[k->index];
    state_part sums[b->n_pieces];
    memset(sums, 0, sizeof sums);
    int rc = open_sums(z, b, k->stream, sums);
    if (!rc) rc = comm_all_gather(&z->comm, b->use, b->pieces, b->n_pieces, dtype_bytes(grad_type(z)));
    rc = state_close_after(rc, sums, b->n_pieces);
    trace_end_of_reduction(z, b, k);
    return rc;
}

// The update that reads these sums of the last step, if it was delayed; of several the one that its lane runs
// last.
static const task *last_update(const zero *z, const bucket_state *b) {
    const task *last = &z->units[b->units[0]].adamw;
    for (int i = 1; i < b->n_pieces; i++) {
        const task *k = &z->units[b->units[i]].adamw;
        if (k->number > last->number) last = k;
    }
    return last;
}

static int start_reduction(zero *z, bucket_state *b, int64_t *counter) {
    int first = b->units[b->n_pieces - 1], last = b->units[0];
    b->use = (comm_use){ ZERO_FOR_STEP, first, last - first + 1, counter };
    const task *update = z->delays ? last_update(z, b) : &z->tasks.trainer;
    ZERO_TRY(tasks_submit(&z->tasks, &b->reduce, AFTER(&z->tasks.trainer, update)));
    return z->config.stage == 0 ? tasks_submit(&z->tasks, &b->gather, AFTER(&b->reduce)) : 0;
}

static int wait_for_reduction(zero *z, bucket_state *b) {
    return tasks_wait(&z->tasks, z->config.stage == 0 ? &b->gather : &b->reduce);
}

int grads_wait(zero *z) {
    for (int i = 0; i < z->layout.n_buckets; i++) ZERO_TRY(wait_for_reduction(z, &z->buckets[i]));
    return 0;
}

// -------- in backward: opened, and finished into a bucket

static char *bucket_memory(const zero *z, int unit) {
    const layout_unit *u = &z->layout.units[unit];
    if (z->own_grads[unit]) return z->own_grads[unit];
    return z->bucket_buffer[z->layout.buckets[u->bucket].buffer] +
           u->bucket_offset * dtype_bytes(z->config.numbers.dtype);
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

// Makes the unit's bucket the one that fills its buffer, once what was in the buffer has been reduced. A
// shared unit has a buffer of its own.
static int claim_buffer(zero *z, int unit) {
    int bucket = z->layout.units[unit].bucket;
    int *holder = &z->buffer_bucket[z->layout.buckets[bucket].buffer];
    if (z->own_grads[unit])
        holder = &bucket;
    else if (*holder == bucket && !is_full(z, bucket))
        return 0;  // it is filling it
    if (*holder >= 0) ZERO_TRY(wait_for_reduction(z, &z->buckets[*holder]));
    *holder = bucket;
    z->buckets[bucket].filled = 0;
    return 0;
}

// With poison, a gradient that the trainer says it writes, and does not, is NaN.
static int clear_gradient(zero *z, int unit) {
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
    const int reduction_waits = z->delays && uses_buckets(z);
    if (!reduction_waits) ZERO_TRY(tasks_wait(&z->tasks, &u->adamw));  // it reads the last step's gradients
    if (uses_buckets(z)) {
        ZERO_TRY(claim_buffer(z, unit));
        u->grads = bucket_memory(z, unit);
    } else {
        state *grads = states_get(z, ZERO_GRADIENT);
        ZERO_TRY(state_open(&u->opened_grads, grads, COMPUTE, unit, STATE_WHOLE, STATE_WRITE));
        u->grads = u->opened_grads.at;
    }
    return clear_gradient(z, unit);
}

// Stages 0 and 1: this micro-batch's gradient goes to the sum of the earlier ones, or is the first.
static int add_to_sum(zero *z, int unit) {
    const layout_unit *u = &z->layout.units[unit];
    device *d = &z->device;
    zero_dtype type = z->config.numbers.dtype;
    char *grads = z->units[unit].grads;
    int first = pass_is_first(z);
    state_part sum;
    ZERO_TRY(tasks_wait(&z->tasks, &z->units[unit].adamw));  // it reads the sum of the last step
    ZERO_TRY(state_open(&sum, states_get(z, ZERO_GRADIENT), COMPUTE, unit, STATE_WHOLE,
                        first ? STATE_WRITE : STATE_CHANGE));
    int rc = d->f->accumulate(d, COMPUTE, (float *)sum.at, type, grads, u->padded, first);
    ZERO_TRY(state_close_after(rc, &sum, 1));
    return z->config.debug.poison ? d->f->fill_nan(d, COMPUTE, grads, u->padded * dtype_bytes(type)) : 0;
}

int grads_finish(zero *z, int unit) {
    int bucket = z->layout.units[unit].bucket;
    bucket_state *b = &z->buckets[bucket];
    // stages 0 and 1 reduce once a step, 2 and 3 with each micro-batch
    int is_last = pass_is_last(z), reduces = z->config.stage >= 2 || is_last;
    if (z->config.stage < 2 && sums_micro_batches(z)) ZERO_TRY(add_to_sum(z, unit));
    ZERO_TRY(state_close(&z->units[unit].opened_grads));
    z->units[unit].grads = NULL;
    b->filled++;
    if (!is_full(z, bucket) || !reduces || z->config.debug.naive) return 0;
    b->add = z->config.stage >= 2 && !pass_is_first(z);
    b->is_last = is_last;
    return start_reduction(z, b, NULL);
}

int grads_begin_step(zero *z) {
    ZERO_TRY(grads_wait(z));
    for (int i = 0; i < z->layout.n_units; i++) {
        ZERO_TRY(state_close(&z->units[i].opened_grads));
        z->units[i].grads = NULL;
    }
    for (int i = 0; i < z->layout.n_buckets; i++) z->buckets[i].filled = z->buckets[i].is_last = 0;
    z->buffer_bucket[0] = z->buffer_bucket[1] = -1;
    return 0;
}

// -------- creation

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
    ZERO_TRY(states_create(z, ZERO_GRADIENT));
    if (uses_buckets(z)) ZERO_TRY(create_buffers(z));
    ZERO_TRY(create_wire_buffer(z));
    ZERO_TRY(create_cleared(z));
    for (int i = 0; i < l->n_buckets; i++) {
        bucket_state *b = &z->buckets[i];
        b->reduce = (task){ .run = run_reduce, .ctx = z, .lane = LANE_COLLECTIVES, .index = i };
        b->gather = (task){ .run = run_gather_sums, .ctx = z, .lane = LANE_COLLECTIVES, .index = i };
        b->pieces = calloc(l->buckets[i].n_units, sizeof *b->pieces);
        b->units = calloc(l->buckets[i].n_units, sizeof *b->units);
        b->spans = calloc(l->buckets[i].n_units, sizeof *b->spans);
        if (!b->pieces || !b->units || !b->spans)
            return zero_fail(ZERO_ERR_MEMORY, "out of memory for the buckets");
        ZERO_TRY(tasks_prepare(&z->tasks, &b->reduce, COMM));
        if (z->config.stage == 0) ZERO_TRY(tasks_prepare(&z->tasks, &b->gather, z->comm.gather_stream));
    }
    for (int i = l->n_units - 1; i >= 0; i--) {
        bucket_state *b = &z->buckets[l->units[i].bucket];
        char *full = whole ? NULL : bucket_memory(z, i);  // what is in the state is known once it is open
        b->units[b->n_pieces] = i;
        b->pieces[b->n_pieces++] = (comm_piece){ full, NULL, l->units[i].shard };
        b->reduce.unit = b->gather.unit = i;
    }
    return 0;
}

int grads_rehearse(zero *z, int bucket, int64_t *counter) {
    ZERO_TRY(start_reduction(z, &z->buckets[bucket], counter));
    return wait_for_reduction(z, &z->buckets[bucket]);
}
