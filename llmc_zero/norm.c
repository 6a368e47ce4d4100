// The sums of squares. A unit's sum has the same bits whether it is computed alone, during its bucket's
// reduction, or in one launch with all others.
#include "norm.h"
#include "internal.h"
#include <string.h>

// Allocates one stretch per unit, for this rank's part of its gradients, and memory for the sums. If the
// gradients are one array, the stretches are offsets into it and one launch processes them all. Otherwise
// each unit needs its own launch.
int norm_create(zero *z) {
    const state *grads = rank_state(z, ZERO_GRADIENT);
    const layout *l = &z->layout;
    int n = l->n_units;
    stretch parts[n];
    int64_t blocks = 0;
    for (int u = 0; u < n; u++) {
        parts[u] = (stretch){ .elems = l->units[u].shard };
        if (grads->array) parts[u].offset = layout_offset(l, u, grads->rank, grads->sharded);
        if (grads->array) parts[u].first = blocks;
        blocks += kernel_sum_squares_partials(parts[u].elems);
    }
    stretch *table;
    ZERO_TRY_ALLOC(table = allocate(z, PLAN_NORM));
    double *sums = (double *)(table + n), *partial = sums + n;
    z->norm.table = (norm_table){ { table, n, blocks }, sums, partial, (unsigned *)(partial + blocks) };
    return device_set(&z->device, table, parts, sizeof parts);
}

int norm_goes_along(const zero *z) {
    const state *grads = rank_state(z, ZERO_GRADIENT);
    return grads->sharded && !grads->array;
}

// Writes the sum to the place where the single launch would write it.
int norm_sum_unit(zero *z, device_stream on, int unit, const void *grads) {
    const norm_table *all = &z->norm.table;
    device *d = &z->device;
    int64_t blocks_before = 0;
    for (int u = 0; u < unit; u++) blocks_before += kernel_sum_squares_partials(z->layout.units[u].shard);
    const norm_table one = {
        .parts = { all->parts.list + unit, 1, kernel_sum_squares_partials(z->layout.units[unit].shard) },
        .sums = all->sums + unit,
        .partial = all->partial + blocks_before,
        .done = all->done + unit,
    };
    return d->f->sum_squares(d, on, &one, rank_state(z, ZERO_GRADIENT)->dtype, grads);
}

// Queues the sums of the units that were not summed during their reduction.
static int sum_rest(zero *z) {
    device *d = &z->device;
    state *grads = rank_state(z, ZERO_GRADIENT);
    state_part part;
    if (norm_goes_along(z)) return 0;
    const trace_span span = trace_begin(&z->trace, COMPUTE);
    if (grads->array) ZERO_TRY(d->f->sum_squares(d, COMPUTE, &z->norm.table, grads->dtype, grads->array));
    for (int u = 0; u < z->layout.n_units && !grads->array; u++) {
        if (!z->layout.units[u].shard) continue;
        ZERO_TRY(state_open(&part, grads, COMPUTE, u, grads->rank, STATE_READ));
        ZERO_TRY(state_close_after(norm_sum_unit(z, COMPUTE, u, part.at), &part, 1));
    }
    trace_end(&z->trace, &span, &(trace_event){ .kind = EVENT_SQUARES, .unit = -1, .lane = LANE_SQUARES });
    return 0;
}

// Each (unit, rank) part has a sum of squares in fp64. All ranks add these sums in the same order, so the
// norm has the same bits at every stage. The values of the last update are sent along with the sums.
int norm_sum_all(zero *z, const double last[HYPER_VALUES], const double **of_all, double *squares) {
    const int n = z->layout.n_units, shared = n + HYPER_VALUES;
    double *mine = rank_states_scalars(z), *all = mine + shared, sum = 0;
    device *d = &z->device;
    ZERO_TRY(sum_rest(z));
    ZERO_TRY(d->f->copy(d, COMPUTE, mine, z->norm.table.sums, n * sizeof(double)));
    ZERO_TRY(wait_for_device(z, COMPUTE));
    memcpy(mine + n, last, HYPER_VALUES * sizeof *last);
    ZERO_TRY(zero_gather(z, mine, all, shared));
    for (int u = 0; u < n; u++)
        for (int r = 0; r < z->comm.group.ranks; r++) sum += all[r * shared + u];
    *squares = sum;
    *of_all = all + n;
    return 0;
}
