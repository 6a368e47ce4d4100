// Gradients: opened at a unit's first pre_backward, complete at its last post_backward. When all units of a
// bucket are complete, its reduction starts while backward fills the other buffer. Stage 0 sends the reduced
// gradients to every rank, stage 1 keeps them in this rank's part of the whole buffer, and stages 2 and 3
// keep them in this rank's shard, added to the sum of earlier micro-batches.
#include "grads.h"
#include "internal.h"
#include <string.h>

// -------- the reduction of a bucket: one task, or two at stage 0

static struct grads_buffer *buffer_of(const zero *z, int bucket) {
    return &z->grads.buffers[z->layout.buckets[bucket].turn % z->grads.n_buffers];
}

static char *bucket_memory(const zero *z, int unit) {
    const layout_unit *u = &z->layout.units[unit];
    if (z->grads.units[unit].own) return z->grads.units[unit].own;
    return buffer_of(z, u->bucket)->memory + u->bucket_offset * dtype_bytes(plan_bucket_type(&z->config));
}

// The sum goes to this rank's part of the state, or is added to it. Stages 0 and 1 may reduce it in place.
static int open_sums(zero *z, struct grads_bucket *b, device_stream stream, state_part *parts, int in_place) {
    state *grads = rank_state(z, ZERO_GRADIENT);
    const int adds = b->add && !z->config.accumulate_layers;
    state_intent intent = grads->sharded && !adds ? STATE_WRITE : STATE_CHANGE;
    for (int i = 0; i < b->n_pieces; i++) {
        const state_range all = state_all(grads, b->units[i], state_held(grads));
        ZERO_TRY(state_begin(&parts[i], grads, stream, all, intent, NULL));
    }
    for (int i = 0; i < b->n_pieces; i++) {
        ZERO_TRY(state_ready(&parts[i]));
        b->pieces[i].shard = state_own(&parts[i]);
        b->pieces[i].plus = adds ? (const float *)b->pieces[i].shard : NULL;
        b->pieces[i].full = in_place ? parts[i].at : bucket_memory(z, b->units[i]);
    }
    return 0;
}

// accumulate_layers: a unit with several backward uses is alone in its bucket. Each use is reduced
// separately, because the sum over the micro-batches and ranks must not depend on how they are divided.
static void add_earlier(zero *z, struct grads_bucket *b) {
    float *earlier = z->grads.units[b->units[0]].earlier;
    b->pieces->plus = b->add ? earlier : NULL;
    if (!b->is_earlier) return;
    b->pieces->full = bucket_memory(z, b->units[0]);
    b->pieces->shard = (char *)earlier;
}

// Converts to fp32. One wire buffer is enough, because reductions run one after another on their stream.
static int widen(zero *z, const struct grads_bucket *b, comm_piece *wide) {
    device *d = &z->device;
    char *at = z->grads.wire;
    for (int i = 0; i < b->n_pieces; i++) {
        const comm_piece *p = &b->pieces[i];
        int64_t elems = p->elems * z->comm.group.ranks;
        ZERO_TRY(device_convert(d, COMM, ZERO_F32, at, plan_reduced_type(&z->config), p->full, elems, 0));
        wide[i] = (comm_piece){ at, p->shard, p->elems, p->plus };
        at += elems * sizeof(float);
    }
    return 0;
}

// After the reduction the bucket's gradients are no longer needed, unless they were reduced in place.
static int poison_reduced(zero *z, const struct grads_bucket *b) {
    device *d = &z->device;
    size_t size = dtype_bytes(plan_reduced_type(&z->config)), wide = 0;
    for (int i = 0; i < b->n_pieces; i++) {
        int64_t elems = b->pieces[i].elems * z->comm.group.ranks;
        wide += elems * sizeof(float);
        if (!plan_reduces_in_place(&z->config))
            ZERO_TRY(d->f->fill_nan(d, COMM, b->pieces[i].full, elems * size));
    }
    return z->grads.wire ? d->f->fill_nan(d, COMM, z->grads.wire, wide) : 0;
}

static int reduce_opened(zero *z, const struct grads_bucket *b) {
    const comm_piece *pieces = b->pieces;
    comm_piece wide[b->n_pieces];
    zero_dtype type = plan_reduced_type(&z->config), to = rank_state(z, ZERO_GRADIENT)->dtype;
    if (z->grads.wire) {
        ZERO_TRY(widen(z, b, wide));
        pieces = wide;
        type = ZERO_F32;
    }
    if (b->is_earlier) to = ZERO_F32;
    ZERO_TRY(comm_reduce_scatter(&z->comm, b->use, pieces, b->n_pieces, type, to, b->scale));
    return z->config.debug.poison ? poison_reduced(z, b) : 0;
}

// Sums the squares of the step's gradients for the norm, while they are open.
static int sum_squares(zero *z, const struct grads_bucket *b, device_stream stream) {
    if (!b->is_last || !norm_goes_along(z)) return 0;
    for (int i = 0; i < b->n_pieces; i++) {
        const trace_event e = { .kind = EVENT_SQUARES, .unit = b->units[i], .lane = LANE_SQUARES };
        const trace_span span = trace_begin(&z->trace, stream);
        ZERO_TRY(norm_sum_unit(z, stream, b->units[i], b->pieces[i].shard));
        trace_end(&z->trace, &span, &e);
    }
    return 0;
}

// Stage 0 sends the complete sums to every rank.
static int gathers(const zero *z, const struct grads_bucket *b) {
    return z->config.stage == 0 && !b->is_earlier;
}

// Counts the bytes that this rank sends. Stage 0 also sends the sums to every rank.
static void trace_end_of_reduction(zero *z, struct grads_bucket *b, const task *k) {
    const comm_way *way = &z->plan.of.way;
    const int wire = dtype_bytes(plan_wire_type(&z->config));
    const int64_t size = dtype_bytes(rank_state(z, ZERO_GRADIENT)->dtype);
    const int64_t sums = gathers(z, b) ? size * (way->ranks - 1) : 0;
    trace_event e = { .kind = EVENT_REDUCE, .lane = traced_lane(z, k->lane) };
    for (int i = 0; i < b->n_pieces; i++) {
        e.unit = b->units[i];
        const int64_t elems = b->pieces[i].elems;
        e.bytes = comm_reduction_bytes(way, elems, wire) + elems * sums;
        b->spans[i].on = k->stream;
        trace_end(&z->trace, &b->spans[i], &e);
    }
}

static int run_reduce(void *ctx, task *k) {
    zero *z = ctx;
    struct grads_bucket *b = &z->grads.buckets[k->index];
    state_part sums[b->n_pieces];
    memset(sums, 0, sizeof sums);
    for (int i = 0; i < b->n_pieces; i++) b->spans[i] = trace_begin(&z->trace, k->stream);
    int rc = b->is_earlier ? 0 : open_sums(z, b, k->stream, sums, plan_reduces_in_place(&z->config));
    if (z->grads.units[b->units[0]].earlier) add_earlier(z, b);
    if (!rc) rc = reduce_opened(z, b);
    if (!rc) rc = sum_squares(z, b, k->stream);
    rc = state_close_after(rc, sums, b->n_pieces);
    if (!gathers(z, b)) trace_end_of_reduction(z, b, k);
    return rc;
}

// Stage 0: sends all sums to every rank.
static int run_gather_sums(void *ctx, task *k) {
    zero *z = ctx;
    struct grads_bucket *b = &z->grads.buckets[k->index];
    state_part sums[b->n_pieces];
    memset(sums, 0, sizeof sums);
    int rc = open_sums(z, b, k->stream, sums, 1);
    if (!rc)
        rc = comm_all_gather(&z->comm, b->use, b->pieces, b->n_pieces,
                             dtype_bytes(rank_state(z, ZERO_GRADIENT)->dtype));
    rc = state_close_after(rc, sums, b->n_pieces);
    trace_end_of_reduction(z, b, k);
    return rc;
}

// Returns the last task of the last update that reads these sums.
static const task *last_reader(const zero *z, const struct grads_bucket *b) {
    const task *last = z->grads.units[b->units[0]].read_by;
    for (int i = 1; i < b->n_pieces; i++) {
        const task *k = z->grads.units[b->units[i]].read_by;
        if (k->number > last->number) last = k;
    }
    return last;
}

static int start_reduction(zero *z, struct grads_bucket *b, int64_t *counter) {
    int first = b->units[b->n_pieces - 1], last = b->units[0];
    b->use = (comm_use){ ZERO_FOR_STEP, first, last - first + 1, counter };
    b->scale = 1.0f / ((float)z->comm.group.ranks * pass_micro_batches(z));
    ZERO_TRY(tasks_submit(&z->tasks, &b->reduce, AFTER(&z->tasks.trainer, last_reader(z, b))));
    return gathers(z, b) ? tasks_submit(&z->tasks, &b->gather, AFTER(&b->reduce)) : 0;
}

static int wait_for_reduction(zero *z, struct grads_bucket *b) {
    return tasks_wait(&z->tasks, gathers(z, b) ? &b->gather : &b->reduce);
}

int grads_wait(zero *z) {
    if (z->config.inference) return 0;
    for (int i = 0; i < z->layout.n_buckets; i++) ZERO_TRY(wait_for_reduction(z, &z->grads.buckets[i]));
    return 0;
}

// -------- during backward: opening a unit, and finishing it into its bucket

static int is_full(const zero *z, int bucket) {
    return z->grads.buckets[bucket].filled == z->layout.buckets[bucket].n_units;
}

// Returns 0 if all tensors of the unit are frozen.
static int has_gradient(const zero *z, int unit) { return z->layout.units[unit].bucket >= 0; }

int grads_check(const zero *z, int unit) {
    if (has_gradient(z, unit)) ZERO_TRY(accumulate_check(z, unit));
    if (!has_gradient(z, unit) || !plan_uses_buckets(&z->config) || z->grads.units[unit].own) return 0;
    const int bucket = z->layout.units[unit].bucket, before = buffer_of(z, bucket)->holder;
    if (before == bucket || before < 0 || is_full(z, before)) return 0;
    return zero_fail(
        ZERO_ERR_MISUSE,
        "unit %d (%s): backward reached it before finishing the units of the bucket that is being filled; "
        "backward must use the units in the reverse of the table's order, at most max_open (%d) at once",
        unit, z->layout.units[unit].name, z->config.max_open);
}

// Waits until the bucket that holds the buffer is reduced, and gives the buffer to the unit's bucket.
static int claim_buffer(zero *z, int unit) {
    int bucket = z->layout.units[unit].bucket;
    const int is_private = z->grads.units[unit].own != NULL;
    int *holder = is_private ? &bucket : &buffer_of(z, bucket)->holder;
    if (!is_private && *holder == bucket && !is_full(z, bucket))
        return 0;  // the bucket has the buffer already
    if (*holder >= 0) ZERO_TRY(wait_for_reduction(z, &z->grads.buckets[*holder]));
    *holder = bucket;
    z->grads.buckets[bucket].filled = 0;
    return 0;
}

// With poison, a gradient that the trainer promised to overwrite (by layers, in the first use) is NaN before.
static int clear_gradient(zero *z, int unit) {
    const int is_later = z->config.accumulate_layers && pass_done(z, unit, PASS_BACKWARD) > 0;
    const layout_unit *u = &z->layout.units[unit];
    const layout_range *only = &z->layout.cleared[u->first_cleared];
    size_t size = dtype_bytes(z->config.numbers.dtype);
    char *grads = z->grads.units[unit].at;
    device *d = &z->device;
    if (z->config.debug.poison) ZERO_TRY(d->f->fill_nan(d, COMPUTE, grads, u->padded * size));
    if (is_later) return d->f->clear(d, COMPUTE, grads, u->padded * size);
    if (u->n_cleared == 1) return d->f->clear(d, COMPUTE, grads + only->offset * size, only->elems * size);
    return d->f->clear_stretches(d, COMPUTE, z->config.numbers.dtype, grads, &z->grads.units[unit].cleared);
}

int grads_open(zero *z, int unit) {
    struct grads_unit *u = &z->grads.units[unit];
    if (!has_gradient(z, unit)) return 0;
    if (plan_uses_buckets(&z->config)) {
        ZERO_TRY(claim_buffer(z, unit));
        u->at = accumulate_open(z, unit);
        if (!u->at) u->at = bucket_memory(z, unit);
    } else {
        state *grads = rank_state(z, ZERO_GRADIENT);
        ZERO_TRY(tasks_wait(&z->tasks, u->read_by));
        ZERO_TRY(state_open(&u->opened, grads, COMPUTE, unit, STATE_WHOLE, STATE_WRITE));
        u->at = u->opened.at;
    }
    return clear_gradient(z, unit);
}

// Stages 0 and 1: adds this micro-batch's gradient to the sum of the earlier ones, or starts the sum with it.
static int add_to_sum(zero *z, int unit) {
    const layout_unit *u = &z->layout.units[unit];
    device *d = &z->device;
    zero_dtype type = z->config.numbers.dtype;
    char *grads = z->grads.units[unit].at;
    int first = pass_is_first(z);
    state_part sum;
    ZERO_TRY(tasks_wait(&z->tasks, z->grads.units[unit].read_by));
    ZERO_TRY(state_open(&sum, rank_state(z, ZERO_GRADIENT), COMPUTE, unit, STATE_WHOLE,
                        first ? STATE_WRITE : STATE_CHANGE));
    int rc = device_convert(d, COMPUTE, ZERO_F32, sum.at, type, grads, u->padded, !first);
    ZERO_TRY(state_close_after(rc, &sum, 1));
    return z->config.debug.poison ? d->f->fill_nan(d, COMPUTE, grads, u->padded * dtype_bytes(type)) : 0;
}

// -------- the end of a micro-batch, and of a unit's gradient

int grads_finish_micro(zero *z, int unit, int micro) {
    if (!has_gradient(z, unit) || !plan_sums_in_buckets(&z->config)) return 0;
    ZERO_TRY(accumulate_add(z, unit, micro, (float *)bucket_memory(z, unit)));
    return micro < pass_micro_batches(z) - 1 ? clear_gradient(z, unit) : 0;
}

int grads_finish(zero *z, int unit) {
    if (!has_gradient(z, unit)) return 0;
    int bucket = z->layout.units[unit].bucket;
    struct grads_bucket *b = &z->grads.buckets[bucket];
    const int use = pass_done(z, unit, PASS_BACKWARD), uses = z->layout.units[unit].backward_uses;
    // stages 0 and 1 reduce once per step, stages 2 and 3 once per micro-batch
    int is_last = pass_is_last(z) && use == uses, reduces = z->config.stage >= 2 || pass_is_last(z);
    if (z->config.stage < 2 && plan_sums(&z->config)) ZERO_TRY(add_to_sum(z, unit));
    ZERO_TRY(state_close(&z->grads.units[unit].opened));
    z->grads.units[unit].at = NULL;
    b->filled++;
    if (!is_full(z, bucket) || !reduces || z->config.debug.naive) return 0;
    b->add = (z->config.stage >= 2 && !pass_is_first(z)) || (z->config.accumulate_layers && use > 1);
    b->is_last = is_last;
    b->is_earlier = use < uses;
    return start_reduction(z, b, NULL);
}

int grads_begin_step(zero *z) {
    ZERO_TRY(grads_wait(z));
    for (int i = 0; i < z->layout.n_units; i++) {
        ZERO_TRY(state_close(&z->grads.units[i].opened));
        z->grads.units[i].at = NULL;
    }
    for (int i = 0; i < z->layout.n_buckets; i++)
        z->grads.buckets[i].filled = z->grads.buckets[i].is_last = z->grads.buckets[i].is_earlier = 0;
    accumulate_begin_step(z);
    for (int i = 0; i < z->grads.n_buffers; i++) z->grads.buffers[i].holder = -1;
    return 0;
}

// -------- creation

static int create_buffers(zero *z) {
    const layout *l = &z->layout;
    z->grads.n_buffers = z->plan.own[PLAN_BUCKETS].blocks;
    ZERO_TRY_ALLOC(z->grads.buffers = allocate_array(z, z->grads.n_buffers, sizeof *z->grads.buffers));
    for (struct grads_buffer *b = z->grads.buffers; b < z->grads.buffers + z->grads.n_buffers; b++) {
        b->holder = -1;
        ZERO_TRY_ALLOC(b->memory = allocate(z, PLAN_BUCKETS));
    }
    for (int i = 0; i < l->n_units; i++)
        if (l->units[i].shared && has_gradient(z, i))
            ZERO_TRY_ALLOC(z->grads.units[i].own = allocate_for_unit(z, PLAN_SHARED_BUCKETS, i));
    return 0;
}

static int create_earlier(zero *z) {
    for (int i = 0; z->plan.own[PLAN_EARLIER].blocks && i < z->layout.n_units; i++)
        if (z->layout.units[i].backward_uses > 1 && has_gradient(z, i))
            ZERO_TRY_ALLOC(z->grads.units[i].earlier = allocate_for_unit(z, PLAN_EARLIER, i));
    return 0;
}

// Builds the table of stretches to clear, for units with more than one.
static int create_cleared(zero *z) {
    const layout *l = &z->layout;
    const layout_unit *last = &l->units[l->n_units - 1];
    const int n = last->first_cleared + last->n_cleared;
    stretch *table, list[n + 1];
    ZERO_TRY_ALLOC(table = allocate(z, PLAN_CLEARED));
    for (int u = 0; u < l->n_units; u++) {
        int first = l->units[u].first_cleared;
        stretches *t = &z->grads.units[u].cleared;
        t->list = table + first;
        for (; t->n < l->units[u].n_cleared; t->n++) {
            const layout_range *r = &l->cleared[first + t->n];
            list[first + t->n] = (stretch){ r->offset, r->elems, t->pieces };
            t->pieces += clear_chunks(r->elems);
        }
    }
    return device_set(&z->device, table, list, n * sizeof *list);
}

static int create_bucket(zero *z, int bucket) {
    struct grads_bucket *b = &z->grads.buckets[bucket];
    const int n = z->layout.buckets[bucket].n_units;
    b->reduce = (task){ .run = run_reduce, .ctx = z, .lane = LANE_COLLECTIVES, .index = bucket };
    b->gather = (task){ .run = run_gather_sums, .ctx = z, .lane = LANE_COLLECTIVES, .index = bucket };
    ZERO_TRY_ALLOC(b->pieces = allocate_array(z, n, sizeof *b->pieces));
    ZERO_TRY_ALLOC(b->units = allocate_array(z, n, sizeof *b->units));
    ZERO_TRY_ALLOC(b->spans = allocate_array(z, n, sizeof *b->spans));
    ZERO_TRY(tasks_prepare(&z->tasks, &b->reduce, COMM));
    return z->config.stage == 0 ? tasks_prepare(&z->tasks, &b->gather, z->comm.gather_stream) : 0;
}

static void put_into_bucket(zero *z, int unit) {
    struct grads_bucket *b = &z->grads.buckets[z->layout.units[unit].bucket];
    b->units[b->n_pieces] = unit;
    b->pieces[b->n_pieces++].elems = z->layout.units[unit].shard;
    b->reduce.unit = b->gather.unit = unit;
}

int grads_create(zero *z) {
    const layout *l = &z->layout;
    ZERO_TRY_ALLOC(z->grads.units = allocate_array(z, l->n_units, sizeof *z->grads.units));
    ZERO_TRY_ALLOC(z->grads.buckets = allocate_array(z, l->n_buckets, sizeof *z->grads.buckets));
    ZERO_TRY(rank_state_create(z, ZERO_GRADIENT));
    if (plan_uses_buckets(&z->config)) ZERO_TRY(create_buffers(z));
    ZERO_TRY(accumulate_create(z));
    ZERO_TRY(create_earlier(z));
    if (z->plan.own[PLAN_WIRE].blocks) ZERO_TRY_ALLOC(z->grads.wire = allocate(z, PLAN_WIRE));
    ZERO_TRY(create_cleared(z));
    for (int i = 0; i < l->n_buckets; i++) ZERO_TRY(create_bucket(z, i));
    for (int i = l->n_units - 1; i >= 0; i--)
        if (has_gradient(z, i)) put_into_bucket(z, i);
    return 0;
}

int grads_rehearse(zero *z, int bucket, int64_t *counter) {
    ZERO_TRY(start_reduction(z, &z->grads.buckets[bucket], counter));
    return wait_for_reduction(z, &z->grads.buckets[bucket]);
}

// -------- for the update

void grads_read_with(zero *z, int unit, task *by) { z->grads.units[unit].read_by = by; }

static const struct grads_bucket *bucket_of(const zero *z, int unit) {
    return &z->grads.buckets[z->layout.units[unit].bucket];
}

int grads_are_last(const zero *z, int unit) {
    return has_gradient(z, unit) ? bucket_of(z, unit)->is_last : pass_is_last(z);
}

const task *grads_reduction(const zero *z, int unit) {
    return has_gradient(z, unit) ? &bucket_of(z, unit)->reduce : &z->tasks.trainer;
}

char *grads_at(const zero *z, int unit) { return z->grads.units[unit].at; }
