// Checks of the trainer. One digest per layer of a tensor is enough to notice and name a change. Holding a
// gradient until the next hook does not change the order of the collectives.
#include "check.h"
#include "internal.h"
#define XXH_INLINE_ALL
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static const comm_use for_digests = { .purpose = ZERO_FOR_HASH };

// Checks that cost almost nothing run once, in the first step, unless ZERO_CHECK or check_steps is 0.
static int runs_once(const zero *z) { return z->config.debug.check_steps != 0; }
static int is_on(const zero *z) { return z->check.set && z->check.steps <= z->config.debug.check_steps; }

int check_create(zero *z) {
    struct check *c = &z->check;
    const int n = z->layout.n_places;
    c->held = -1;
    if (z->config.debug.check_steps <= 0) return 0;
    ZERO_TRY_ALLOC(c->first = allocate_array(z, n, sizeof *c->first));
    ZERO_TRY_ALLOC(c->n_set = allocate_array(z, n, sizeof *c->n_set));
    ZERO_TRY_ALLOC(c->params = allocate_array(z, n, sizeof *c->params));
    ZERO_TRY_ALLOC(c->is_read = allocate_array(z, z->layout.n_units, sizeof *c->is_read));
    ZERO_TRY_ALLOC(c->grads = allocate_array(z, n, sizeof *c->grads));
    ZERO_TRY_ALLOC(c->set = allocate_array(z, n, sizeof *c->set));
    return 0;
}

// -------- values set by the trainer

// Adds to the digest, so that the order of the calls does not matter.
void check_set(zero *z, zero_value what, const layout_place *p, int64_t offset, int64_t n,
               const float *values) {
    const int64_t place = p - z->layout.places;
    if (!is_on(z)) return;
    memset(z->check.is_read, 0, z->layout.n_units);
    z->check.set[place] += XXH3_64bits_withSeed(values, (size_t)n * sizeof *values,
                                                (uint64_t)(offset * STATES + what));
    if (rank_state_with(z, what, p->unit) == rank_state(z, ZERO_PARAM)) z->check.n_set[place] += n;
}

// The checkpoint replaces all values, on all ranks.
void check_loaded(zero *z) {
    if (is_on(z)) memset(z->check.is_read, 0, z->layout.n_units);
    for (int i = 0; is_on(z) && i < z->layout.n_places; i++) {
        z->check.set[i] = 0;
        z->check.n_set[i] = z->layout.places[i].elems;
    }
}

static int compare_set(const zero *z) {
    const char *host = net_host(&z->net, z->net.rank);
    for (int i = 0; i < z->layout.n_places; i++) {
        const layout_place *p = &z->layout.places[i];
        const char *name = z->layout.tensors[p->tensor].name;
        if (z->check.n_set[i] < p->elems)
            return zero_fail_rank(ZERO_ERR_MISUSE, z->net.rank, host,
                                  " has set %lld of the %lld elements of %s, layer %d: pass every element "
                                  "to zero_set before the first step, including zeros",
                                  (long long)z->check.n_set[i], (long long)p->elems, name, p->layer);
        if (z->check.set[i] != z->check.first[i])
            return zero_fail_rank(ZERO_ERR_ARGUMENT, z->net.rank, host,
                                  " set %s, layer %d, to different values than rank 0 (host %s): all ranks "
                                  "must make the same zero_set calls, with the same random seed",
                                  name, p->layer, net_host(&z->net, 0));
    }
    return 0;
}

int check_begin(zero *z, int is_step) {
    struct check *c = &z->check;
    if (!is_on(z)) return 0;
    memset(c->is_read, 0, z->layout.n_units);
    c->steps += is_step;
    if (!is_step || !is_on(z)) return 0;
    memcpy(c->first, c->set, z->layout.n_places * sizeof *c->set);
    ZERO_TRY(end_collectives(z));
    const size_t bytes = z->layout.n_places * sizeof *c->first;
    ZERO_TRY(tasks_fail(&z->tasks, comm_broadcast(&z->comm, for_digests, 0, c->first, bytes)));
    return agree(z, compare_set(z));
}

// -------- values that the trainer may not change

static int digest(zero *z, const char *at, size_t bytes, uint64_t *out) {
    const size_t most = VALUES_CHUNK * sizeof(float);
    *out = 0;
    for (size_t n; bytes; bytes -= n, at += n) {
        n = bytes < most ? bytes : most;
        const void *view = device_view(&z->device, at, n, rank_states_room(z));
        if (!view) return ZERO_ERR_DEVICE;
        *out = XXH3_64bits_withSeed(view, n, *out);
    }
    return 0;
}

// Digests the unit's tensors at `whole`. is_known: fails if `digests` differ. what, rule: for the message.
static int look(zero *z, int unit, const char *whole, uint64_t *digests, int is_known, const char *what,
                const char *rule) {
    const layout_unit *u = &z->layout.units[unit];
    const size_t size = dtype_bytes(z->config.numbers.dtype);
    ZERO_TRY(wait_for_device(z, COMPUTE));
    for (int i = u->first_place; i < u->first_place + u->n_places; i++) {
        const layout_place *p = &z->layout.places[i];
        uint64_t now;
        ZERO_TRY(digest(z, whole + p->offset * size, p->elems * size, &now));
        if (is_known && now != digests[i])
            return zero_fail_rank(ZERO_ERR_MISUSE, z->net.rank, net_host(&z->net, z->net.rank),
                                  " wrote to the %s of %s, layer %d, unit %d (%s), %s", what,
                                  z->layout.tensors[p->tensor].name, p->layer, u->of, u->name, rule);
        digests[i] = now;
    }
    return 0;
}

int check_params(zero *z, int unit) {
    char *is_read = z->check.is_read;
    if (!is_on(z)) return 0;
    for (int s = layout_first_stored(&z->layout, unit); s >= 0; s = z->layout.units[s].frozen)
        ZERO_TRY(
            look(z, s, params_at(z, s), z->check.params, is_read[unit], "parameters",
                 "but parameters are read-only during a pass: change them with zero_set, between steps"));
    is_read[unit] = 1;
    return 0;
}

static int look_at_gradient(zero *z, int unit, int is_known) {
    return look(z, unit, grads_at(z, unit), z->check.grads, is_known, "gradient",
                "after its last zero_post_backward: write it before that hook; to clip gradients, pass "
                "grad_clip to zero_update");
}

int check_gradient(zero *z, int unit, int *holds) {
    *holds = is_on(z) && !plan_sums_in_buckets(&z->config);  // by layers it is summed, and gone
    if (!*holds) return 0;
    z->check.held = unit;
    return look_at_gradient(z, unit, 0);
}

int check_settle(zero *z) {
    const int unit = z->check.held;
    if (unit < 0) return 0;
    z->check.held = -1;
    ZERO_TRY(look_at_gradient(z, unit, 1));
    ZERO_TRY(grads_finish(z, unit));
    return update_during_backward(z);
}

// -------- gradients that backward never wrote

static int is_zero(zero_dtype type, const void *values, int64_t n) {
    const uint32_t *wide = values;
    const uint16_t *narrow = values;
    for (int64_t i = 0; i < n; i++)  // without the sign bit
        if (type == ZERO_F32 ? wide[i] << 1 : narrow[i] & 0x7fff) return 0;
    return 1;
}

// Sets *zero to 1 if this rank's part of the place's gradient is 0. Reads only up to the first other value.
static int look_for_values(zero *z, const layout_place *p, double *zero) {
    enum { FIRST = 64 };
    state *grads = rank_state(z, ZERO_GRADIENT);
    const size_t size = dtype_bytes(grads->dtype);
    state_range r = { p->unit, grads->rank, 0, 0 };
    state_part part;
    int rc = 0;
    *zero = p->unit < z->layout.n_units;  // a frozen tensor has no gradient
    if (!*zero) return 0;
    state_intersect(grads, p->unit, grads->rank, p->offset, p->elems, &r.from, &r.elems);
    if (!r.elems) return 0;
    ZERO_TRY(state_open_range(&part, grads, COMPUTE, r, STATE_READ));
    for (int64_t at = 0, n; at < r.elems && *zero && !rc; at += n) {
        const int64_t most = at ? VALUES_CHUNK : FIRST;
        n = r.elems - at < most ? r.elems - at : most;
        const void *view = device_view(&z->device, part.at + at * size, n * size, rank_states_room(z));
        if (!view) rc = ZERO_ERR_DEVICE;
        if (view) *zero = is_zero(grads->dtype, view, n);
    }
    return state_close_after(rc, &part, 1);
}

static void note_zero(struct check *c, const zero *z, const layout_place *p, int others) {
    char more[48] = "";
    if (others) snprintf(more, sizeof more, ", and of %d more,", others);
    snprintf(
        c->note, sizeof c->note,
        "in the first step the gradient of %.80s, layer %d%s is 0 on all ranks: backward must write it, or "
        "the tensor's row must have frozen 1",
        z->layout.tensors[p->tensor].name, p->layer, more);
}

int check_first_step(zero *z, const char **note) {
    enum { AT_ONCE = 64 };
    struct check *c = &z->check;
    const int ranks = z->comm.group.ranks;
    double mine[AT_ONCE], all[ranks * AT_ONCE];
    const layout_place *first = NULL;
    int found = 0;
    *note = NULL;
    if (c->grads_seen++ || !runs_once(z)) return 0;
    if (c->note[0]) *note = c->note;
    if (*note || norm_goes_along(z)) return 0;
    ZERO_TRY(end_collectives(z));
    for (int i = 0, n; i < z->layout.n_places; i += n) {
        const layout_place *p = &z->layout.places[i];
        n = z->layout.n_places - i < AT_ONCE ? z->layout.n_places - i : AT_ONCE;
        for (int k = 0; k < n; k++) ZERO_TRY(look_for_values(z, &p[k], &mine[k]));
        ZERO_TRY(tasks_fail(&z->tasks, comm_share(&z->comm, for_digests, mine, all, n)));
        for (int k = 0; k < n; k++) {
            double zeros = 0;
            for (int r = 0; r < ranks; r++) zeros += all[r * n + k];
            if (zeros == ranks && !found++) first = &p[k];
        }
    }
    if (!found) return 0;
    note_zero(c, z, first, found - 1);
    *note = c->note;
    return 0;
}

// -------- batches

// Only a note without ZERO_CHECK, because data may repeat: a run on one batch is a common test of a trainer.
static int found_same_batch(zero *z, int rank, int other) {
    struct check *c = &z->check;
    if (is_on(z))
        return zero_fail_rank(ZERO_ERR_ARGUMENT, rank, net_host(&z->net, rank),
                              " has the same batch as rank %d (host %s): use zero_rank to give each rank its "
                              "own rows, or set ZERO_CHECK=0 if the data contain duplicates",
                              other, net_host(&z->net, other));
    snprintf(c->note, sizeof c->note,
             "ranks %d and %d have the same first batch: unless the data repeat, the loader must use "
             "zero_rank to give each rank its own rows",
             other, rank);
    return 0;
}

int zero_check_batch(zero *z, const void *batch, size_t bytes) {
    const int ranks = z->net.ranks;
    double mine, all[ranks];
    const int is_first = runs_once(z) && !z->check.batch_seen;
    // A batch passed before zero_begin_train belongs to the next step.
    const int is_checked = is_on(z) && (pass_in_step(z) || z->check.steps < z->config.debug.check_steps);
    if (!is_first && !is_checked) return 0;
    z->check.batch_seen = 1;
    const uint64_t own = XXH3_64bits(batch, bytes);
    memcpy(&mine, &own, sizeof mine);
    ZERO_TRY(end_collectives(z));
    ZERO_TRY(tasks_fail(&z->tasks, comm_share(&z->comm, for_digests, &mine, all, 1)));
    for (int r = 1; r < ranks; r++)
        for (int other = 0; other < r; other++)
            if (!memcmp(&all[r], &all[other], sizeof *all)) return found_same_batch(z, r, other);
    return 0;
}
