// The step: global norm, clipping, and AdamW on the parts that this rank owns.
#include "internal.h"
#include <math.h>
#include <stdlib.h>

static int64_t grad_offset(const zero *z, int unit, int part) { return part_offset(z, unit, part, 2); }

// -------- tables, made once at creation

// This rank's part of every unit, and room for their sums.
static int create_norm(zero *z) {
    int n = z->layout.n_units;
    stretch parts[n];
    int64_t blocks = 0;
    for (int u = 0; u < n; u++) {
        parts[u] = (stretch){ grad_offset(z, u, z->comm.rank), z->layout.units[u].shard, blocks };
        blocks += kernel_sum_squares_partials(parts[u].elems);
    }
    size_t bytes = sizeof parts + (n + blocks) * sizeof(double) + n * sizeof(unsigned);
    stretch *table = memory_alloc(&z->memory, ZERO_WORKING, "tables of the step", bytes);
    if (!table) return ZERO_ERR_MEMORY;
    double *sums = (double *)(table + n), *partial = sums + n;
    z->norm = (norm_table){ { table, n, blocks }, sums, partial, (unsigned *)(partial + blocks) };
    return device_set(&z->device, table, parts, sizeof parts);
}

// Adds what part `part` of a unit has of each tensor, and nothing of its padding.
static void add_segments(const zero *z, int unit, int part, adamw_table *t, adamw_segment *segments) {
    const layout_unit *u = &z->layout.units[unit];
    for (int i = u->first_place; i < u->first_place + u->n_places; i++) {
        const layout_place *p = &z->layout.places[i];
        int64_t from, n;
        layout_intersect(u, part, p->offset, p->elems, &from, &n);
        if (!n) continue;
        int64_t at = from - part * u->shard;
        segments[t->n++] = (adamw_segment){ .param = part_offset(z, unit, part, 3) + at,
                                            .state = part_offset(z, unit, part, 1) + at,
                                            .grad = grad_offset(z, unit, part) + at,
                                            .inside = from - p->offset,
                                            .elems = n,
                                            .first = t->chunks,
                                            .tensor = p->tensor,
                                            .layer = p->layer,
                                            .decay = p->decay != 0 };
        t->chunks += adamw_chunks(n);
    }
}

// A tensor is cut where a part ends: at most once more for each part of each unit.
static int create_update(zero *z) {
    int parts = last_part(z) - first_part(z) + 1;
    int64_t most = z->layout.n_places + (int64_t)z->layout.n_units * (parts - 1);
    adamw_segment *segments = calloc(most, sizeof *segments);
    if (!segments) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the table of the update");
    int n = 0;
    for (int u = 0; u < z->layout.n_units; u++) {
        adamw_table *t = &z->units[u].update;
        for (int part = first_part(z); part <= last_part(z); part++)
            add_segments(z, u, part, t, segments + n);
        n += t->n;
    }
    adamw_segment *table = memory_alloc(&z->memory, ZERO_WORKING, "tables of the step", n * sizeof *table);
    int rc = table ? device_set(&z->device, table, segments, n * sizeof *table) : ZERO_ERR_MEMORY;
    free(segments);
    if (rc) return rc;
    for (int u = 0; u < z->layout.n_units; u++) {
        z->units[u].update.segments = table;
        table += z->units[u].update.n;
    }
    return 0;
}

int optimizer_create(zero *z) {
    ZERO_TRY(create_norm(z));
    return create_update(z);
}

// -------- step

typedef struct {
    zero *z;
    double *mine, *all;
    int n;
} share_request;
static int run_share(void *ctx, job *j) {
    (void)j;
    share_request *s = ctx;
    return comm_share(&s->z->comm, comm_for_scalars, s->mine, s->all, s->n);
}

// fp64 sums of squares of every (unit, rank) part, added in that order on all ranks: the same norm at every
// stage.
static int global_norm(zero *z, double *squares) {
    int n = z->layout.n_units;
    double *mine = z->norm_parts, *all = mine + n, sum = 0;
    device *d = &z->device;
    ZERO_TRY(d->f->sum_squares(d, COMPUTE, &z->norm, z->grad_type, z->grads));
    ZERO_TRY(d->f->copy(d, COMPUTE, mine, z->norm.sums, n * sizeof(double)));
    ZERO_TRY(wait_for_device(z, COMPUTE));
    share_request s = { z, mine, all, n };
    ZERO_TRY(progress_run(&z->progress, run_share, &s));
    for (int u = 0; u < n; u++)
        for (int r = 0; r < z->comm.ranks; r++) sum += all[r * n + u];
    *squares = sum;
    return 0;
}

static int check_complete(const zero *z) {
    if (!z->begun)
        return zero_fail(ZERO_ERR_MISUSE, "zero_reduce: no training pass has run since the last step");
    if (z->micro != z->micro_of - 1)
        return zero_fail(ZERO_ERR_MISUSE, "zero_reduce: after micro-batch %d of %d; the others have not run",
                         z->micro + 1, z->micro_of);
    ZERO_TRY(check_closed(z, "zero_reduce"));
    return check_uses_done(z, "zero_reduce");
}

int zero_reduce(zero *z, zero_step_info *info) {
    double squares;
    if (z->reduced)
        return zero_fail(ZERO_ERR_MISUSE,
                         "zero_reduce: done already in this step; zero_update or zero_discard comes next");
    ZERO_TRY(check_complete(z));
    ZERO_TRY(z->config.debug.naive ? naive_reduce(z) : grads_wait(z));
    ZERO_TRY(global_norm(z, &squares));
    z->grad_norm = sqrt(squares) / z->scale.value;
    z->overflow = z->config.numbers.dtype == ZERO_F16 && !isfinite(squares);
    z->reduced = 1;
    if (info) *info = (zero_step_info){ z->grad_norm, isfinite(squares), z->scale.value };
    return 0;
}

static int check_hyper(const zero *z, const zero_hyper *h) {
    if (!z->reduced) return zero_fail(ZERO_ERR_MISUSE, "zero_update: zero_reduce comes first");
    if (h->t < 1)
        return zero_fail(ZERO_ERR_ARGUMENT, "zero_update: t is %d; updates are counted from 1", h->t);
    if (!(h->beta1 >= 0 && h->beta1 < 1 && h->beta2 >= 0 && h->beta2 < 1))
        return zero_fail(ZERO_ERR_ARGUMENT,
                         "zero_update: beta1 %g and beta2 %g must be at least 0 and below 1", h->beta1,
                         h->beta2);
    return 0;
}

// In the order of forward, so that what forward needs first is on its way while the other units are updated.
static int update_all(zero *z, const zero_hyper *h, double grad_scale) {
    const adamw_constants c = adamw_prepare(h, grad_scale, z->config.numbers.rounding_seed);
    int own_master = z->config.numbers.dtype == ZERO_F32;
    adamw_arrays a = { .m = z->moment1, .v = z->moment2, .g = z->grads, .g_type = z->grad_type };
    a.p = own_master ? (float *)z->params : z->master;
    a.low = own_master ? NULL : z->params;
    a.low_type = z->config.numbers.dtype;
    const int *order = schedule_begin_update(&z->schedule);
    for (int i = 0; i < z->layout.n_units; i++) {
        int u = order[i];
        double start = trace_now(&z->trace);
        ZERO_TRY(z->device.f->adamw(&z->device, COMPUTE, &c, &a, &z->units[u].update));
        trace_add(&z->trace, ZERO_EV_UPDATE, u, 0, start);
        schedule_updated(&z->schedule);
        ZERO_TRY(params_updated(z, u));
    }
    return 0;
}

static int end_step(zero *z) {
    z->reduced = z->begun = z->pass = 0;
    return loss_scale_step(&z->scale, &z->config, z->overflow);
}

int zero_update(zero *z, const zero_hyper *h) {
    ZERO_TRY(check_hyper(z, h));
    if (z->overflow) return zero_discard(z);
    double start = trace_now(&z->trace),
           scale = h->grad_clip > 0 && z->grad_norm > h->grad_clip ? h->grad_clip / z->grad_norm : 1;
    scale /= z->scale.value;
    ZERO_TRY(params_drop_all(z));
    z->device.f->mark(&z->device, "update", "");
    int rc = z->config.debug.naive ? naive_update(z, h, scale) : update_all(z, h, scale);
    z->device.f->mark(&z->device, NULL, NULL);
    ZERO_TRY(rc);
    trace_add(&z->trace, ZERO_EV_UPDATE, -1, 0, start);
    return end_step(z);
}

int zero_discard(zero *z) {
    if (!z->reduced) return zero_fail(ZERO_ERR_MISUSE, "zero_discard: zero_reduce comes first");
    ZERO_TRY(params_drop_all(z));
    return end_step(z);
}

double zero_loss_scale(const zero *z) { return z->scale.value; }

int zero_step(zero *z, const zero_hyper *hyper, zero_step_info *info) {
    ZERO_TRY(zero_reduce(z, info));
    return zero_update(z, hyper);
}
