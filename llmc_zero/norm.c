#include "norm.h"
#include "internal.h"
#include <string.h>

// Allocates one stretch per unit, for this rank's part of its gradients, and the words of the sum. If the
// gradients are one array, one launch processes all stretches; otherwise each unit needs its own.
int norm_create(zero *z) {
    const state *grads = rank_state(z, ZERO_GRADIENT);
    const layout *l = &z->layout;
    int n = l->n_units;
    stretch parts[n], *list;
    int64_t blocks = 0;
    for (int u = 0; u < n; u++) {
        parts[u] = (stretch){ .elems = l->units[u].shard };
        if (grads->array) parts[u].offset = layout_offset(l, u, grads->rank, grads->group);
        if (grads->array) parts[u].first = blocks;
        blocks += sum_blocks(parts[u].elems);
    }
    ZERO_TRY_ALLOC(list = allocate(z, PLAN_NORM));
    z->norm = (struct norm){ { list, n, blocks }, (uint64_t *)(list + n) };
    return device_set(&z->device, list, parts, sizeof parts);
}

int norm_begin_step(zero *z) {
    return z->device.f->clear(&z->device, COMPUTE, z->norm.words, EXACT_WORDS * sizeof(uint64_t));
}

int norm_goes_along(const zero *z) {
    const state *grads = rank_state(z, ZERO_GRADIENT);
    return grads->sharded && !grads->array;
}

int norm_sum_unit(zero *z, device_stream on, int unit, const void *grads) {
    const stretches one = { z->norm.parts.list + unit, 1, sum_blocks(z->layout.units[unit].shard) };
    return z->device.f->add_squares(&z->device, on, z->norm.words, &one, rank_state(z, ZERO_GRADIENT)->dtype,
                                    grads);
}

// Adds the squares of the units that were not added during their reduction.
static int sum_rest(zero *z) {
    device *d = &z->device;
    state *grads = rank_state(z, ZERO_GRADIENT);
    state_part part;
    if (norm_goes_along(z)) return 0;
    const trace_span span = trace_begin(&z->trace, COMPUTE);
    if (grads->array)
        ZERO_TRY(d->f->add_squares(d, COMPUTE, z->norm.words, &z->norm.parts, grads->dtype, grads->array));
    for (int u = 0; u < z->layout.n_units && !grads->array; u++) {
        if (!z->layout.units[u].shard) continue;
        ZERO_TRY(state_open(&part, grads, COMPUTE, u, grads->rank, STATE_READ));
        ZERO_TRY(state_close_after(norm_sum_unit(z, COMPUTE, u, part.at), &part, 1));
    }
    trace_end(&z->trace, &span, &(trace_event){ .kind = EVENT_SQUARES, .unit = -1, .lane = LANE_SQUARES });
    return 0;
}

// The ranks share the words, which are below 2^32 and so exact as doubles, and the values of the last update.
int norm_sum_all(zero *z, const double last[HYPER_VALUES], const double **of_all, double *squares) {
    uint64_t words[EXACT_WORDS], sum[EXACT_WORDS] = { 0 };
    double *mine = rank_states_scalars(z), *all = mine + NORM_VALUES;
    device *d = &z->device;
    ZERO_TRY(sum_rest(z));
    ZERO_TRY(d->f->copy(d, COMPUTE, mine, z->norm.words, sizeof words));
    ZERO_TRY(wait_for_device(z, COMPUTE));
    memcpy(words, mine, sizeof words);
    exact_carry(words);
    for (int i = 0; i < EXACT_WORDS; i++) mine[i] = (double)words[i];
    memcpy(mine + EXACT_WORDS, last, HYPER_VALUES * sizeof *last);
    ZERO_TRY(zero_gather(z, mine, all, NORM_VALUES));
    for (int r = 0; r < z->comm.group.ranks; r++)
        for (int i = 0; i < EXACT_WORDS; i++) sum[i] += (uint64_t)all[r * NORM_VALUES + i];
    *squares = exact_value(sum);
    *of_all = all + EXACT_WORDS;
    return 0;
}
