/* The step: global norm, clipping, and AdamW on the parts that this rank owns. */
#include "internal.h"
#include "numbers.h"
#include <math.h>

static int64_t grad_offset(const zero *z, int unit, int part) { return part_offset(z, unit, part, 2); }

/* ---------------------------------------------------------------------------------------- tables, made once at creation */

/* This rank's part of every unit, and room for their sums. */
static int create_norm(zero *z) {
    int n = z->layout.n_units;
    stretch parts[n];
    int64_t blocks = 0;
    for (int u = 0; u < n; u++) {
        parts[u] = (stretch){ grad_offset(z, u, z->comm.rank), z->layout.units[u].shard, blocks };
        blocks += kernel_sum_squares_partials(parts[u].elems);
    }
    size_t bytes = sizeof parts + (n + blocks) * sizeof(double) + n * sizeof(unsigned);
    stretch *table = memory_alloc(&z->memory, ZERO_WORKING, "gradient norm", bytes);
    if (!table) return ZERO_ERR_MEMORY;
    double *sums = (double *)(table + n), *partial = sums + n;
    z->norm = (norm_table){ table, n, blocks, sums, partial, (unsigned *)(partial + blocks) };
    return device_set(&z->device, table, parts, sizeof parts);
}

int optimizer_create(zero *z) { return create_norm(z); }

/* ----------------------------------------------------------------------------------------------------------------- step */

typedef struct { zero *z; double *mine, *all; int n; } share_request;
static int run_share(void *ctx, job *j) {
    (void)j;
    share_request *s = ctx;
    s->z->comm.purpose = ZERO_FOR_SCALARS;
    return comm_share(&s->z->comm, s->mine, s->all, s->n);
}

/* fp64 sums of squares of every (unit, rank) part, added in that order on all ranks: the same norm at every stage. */
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
    if (!z->begun) return zero_fail(ZERO_ERR_MISUSE, "zero_reduce: no training pass has run since the last step");
    if (z->micro != z->micro_of - 1)
        return zero_fail(ZERO_ERR_MISUSE, "zero_reduce: after micro-batch %d of %d; the others have not run", z->micro + 1, z->micro_of);
    ZERO_TRY(check_closed(z, "zero_reduce"));
    return check_uses_done(z, "zero_reduce");
}

int zero_reduce(zero *z, zero_info *info) {
    double squares;
    if (z->reduced) return zero_fail(ZERO_ERR_MISUSE, "zero_reduce: done already in this step; zero_update or zero_discard comes next");
    ZERO_TRY(check_complete(z));
    ZERO_TRY(z->config.naive ? naive_reduce(z) : grads_wait(z));
    ZERO_TRY(global_norm(z, &squares));
    z->grad_norm = sqrt(squares) / z->scale.value;
    z->overflow = z->config.dtype == ZERO_F16 && !isfinite(squares);
    z->reduced = 1;
    if (info) *info = (zero_info){ z->grad_norm, isfinite(squares), z->scale.value };
    return 0;
}

/* Noise for stochastic rounding: of this step, tensor and layer; the element inside it is added in the kernel. */
uint32_t noise_key(const zero *z, const layout_place *p, int t) {
    return noise_mix(noise_mix(noise_mix(z->config.rounding_seed + 0x9e3779b9u * t) ^ (uint32_t)p->tensor) ^ (uint32_t)p->layer);
}

/* AdamW on part `part` of a unit, tensor by tensor: the layout says where decay applies and where there is only padding. */
static int update_part(zero *z, int unit, int part, const adamw_constants constants[2], int t) {
    const layout_unit *u = &z->layout.units[unit];
    int64_t param = part_offset(z, unit, part, 3), state = part_offset(z, unit, part, 1), grad = grad_offset(z, unit, part);
    size_t grad_size = dtype_bytes(z->grad_type);
    for (int i = u->first_place; i < u->first_place + u->n_places; i++) {
        const layout_place *p = &z->layout.places[i];
        int64_t from, n;
        layout_intersect(u, part, p->offset, p->elems, &from, &n);
        if (!n) continue;
        uint32_t inside = (uint32_t)(from - p->offset);
        from -= part * u->shard;
        char *stored = z->params + (param + from) * dtype_bytes(z->config.dtype);
        adamw_arrays a = { .m = z->moment1 + state + from, .v = z->moment2 + state + from, .g = z->grads + (grad + from) * grad_size,
                           .g_type = z->grad_type, .low_type = z->config.dtype, .noise_key = noise_key(z, p, t), .noise_first = inside };
        a.p = z->config.dtype == ZERO_F32 ? (float *)stored : z->master ? z->master + state + from : NULL;
        a.low = z->config.dtype == ZERO_F32 ? NULL : stored;
        ZERO_TRY(z->device.f->adamw(&z->device, COMPUTE, &constants[p->decay != 0], &a, n));
    }
    return 0;
}

static int check_hyper(const zero *z, const zero_hyper *h) {
    if (!z->reduced) return zero_fail(ZERO_ERR_MISUSE, "zero_update: zero_reduce comes first");
    if (h->t < 1) return zero_fail(ZERO_ERR_ARGUMENT, "zero_update: t is %d; updates are counted from 1", h->t);
    if (!(h->beta1 >= 0 && h->beta1 < 1 && h->beta2 >= 0 && h->beta2 < 1))
        return zero_fail(ZERO_ERR_ARGUMENT, "zero_update: beta1 %g and beta2 %g must be at least 0 and below 1", h->beta1, h->beta2);
    return 0;
}

static int update_all(zero *z, const zero_hyper *h, double grad_scale) {
    const adamw_constants constants[2] = { adamw_prepare(h, grad_scale, 0), adamw_prepare(h, grad_scale, 1) };
    for (int u = 0; u < z->layout.n_units; u++)
        for (int part = first_part(z); part <= last_part(z); part++) ZERO_TRY(update_part(z, u, part, constants, h->t));
    return 0;
}

static int end_step(zero *z) {
    z->reduced = z->begun = z->pass = 0;
    return loss_scale_step(&z->scale, &z->config, z->overflow);
}

int zero_update(zero *z, const zero_hyper *h) {
    ZERO_TRY(check_hyper(z, h));
    if (z->overflow) return zero_discard(z);
    double start = trace_now(&z->trace), scale = h->grad_clip > 0 && z->grad_norm > h->grad_clip ? h->grad_clip / z->grad_norm : 1;
    scale /= z->scale.value;
    ZERO_TRY(params_drop_all(z));
    z->device.f->mark(&z->device, "update", "");
    int rc = z->config.naive ? naive_update(z, h, scale) : update_all(z, h, scale);
    z->device.f->mark(&z->device, NULL, NULL);
    ZERO_TRY(rc);
    for (int u = 0; u < z->layout.n_units; u++) z->units[u].stale = z->config.stage != 0 && z->comm.ranks > 1;
    trace_add(&z->trace, ZERO_EV_UPDATE, -1, 0, start);
    return end_step(z);
}

int zero_discard(zero *z) {
    if (!z->reduced) return zero_fail(ZERO_ERR_MISUSE, "zero_discard: zero_reduce comes first");
    ZERO_TRY(params_drop_all(z));
    return end_step(z);
}

double zero_loss_scale(const zero *z) { return z->scale.value; }

int zero_step(zero *z, const zero_hyper *hyper, zero_info *info) {
    ZERO_TRY(zero_reduce(z, info));
    return zero_update(z, hyper);
}
