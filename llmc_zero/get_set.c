// Reads, writes and hashes values, streamed piece by piece from their owners. No tensor is gathered whole.
#include "internal.h"
#define XXH_INLINE_ALL
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

// Frozen tensors have no moments and no gradients.
static int is_stored(const zero *z, zero_value what, const layout_place *p) {
    return p->unit < z->layout.n_units || what == ZERO_PARAM || what == ZERO_MASTER;
}

static int check_range(const zero *z, const char *caller, zero_value what, int tensor, int layer,
                       int64_t offset, int64_t n, const layout_place **place) {
    const layout_place *p = *place = layout_find(&z->layout, tensor, layer);
    if (!p) return ZERO_ERR_MISUSE;
    if ((unsigned)what >= STATES)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s: what is %d, which is no zero_value", caller, (int)what);
    const char *name = z->layout.tensors[tensor].name;
    if (offset < 0 || n < 0 || n > p->elems || offset > p->elems - n)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s(%s): %lld elements from %lld on, but it has %lld", caller,
                         name, (long long)n, (long long)offset, (long long)p->elems);
    char call[160];
    snprintf(call, sizeof call, "%s(%s)", caller, name);
    if (!is_stored(z, what, p))
        return zero_fail(ZERO_ERR_MISUSE, "%s: the tensor is frozen, so it has parameters only", call);
    if (what == ZERO_GRADIENT) return pass_gradients_are_finished(z, call);
    if (what == ZERO_MOMENT1 || what == ZERO_MOMENT2) {
        ZERO_TRY(pass_may_train(z, call));
        if (!rank_state(z, what)->kept)
            return zero_fail(ZERO_ERR_ARGUMENT, "%s: this moment does not exist, because update_states is %d",
                             call, z->config.update_states);
    }
    return pass_outside_step(z, call);
}

// Writes those of a place's elements [offset, offset + n) that this rank keeps.
static int set_stored(zero *z, zero_value what, const layout_place *p, int64_t offset, int64_t n,
                      const float *values) {
    const state *s = rank_state_with(z, what, p->unit);
    const int unit = p->unit;
    for (int part = state_first_part(s); part < z->layout.ranks; part += s->group) {
        int64_t at, len;
        state_intersect(s, unit, part, p->offset + offset, n, &at, &len);
        const float *from = values + state_before(s, unit, part) + at - p->offset - offset;
        ZERO_TRY(rank_state_write(z, what, (state_range){ unit, part, at, len }, STATE_CHANGE, from));
    }
    return 0;
}

int zero_set(zero *z, zero_value what, int tensor, int layer, int64_t offset, int64_t n,
             const float *values) {
    const layout_place *p;
    if (what == ZERO_GRADIENT)
        return zero_fail(ZERO_ERR_ARGUMENT, "zero_set: cannot set gradients, which only backward computes");
    ZERO_TRY(check_range(z, "zero_set", what, tensor, layer, offset, n, &p));
    ZERO_TRY(step_settle(z));
    ZERO_TRY(params_drop_all(z));
    rank_states_touch(z);
    check_set(z, what, p, offset, n, values);
    ZERO_TRY(set_stored(z, what, p, offset, n, values));
    const int has_master = what == ZERO_PARAM &&
                           rank_state_with(z, ZERO_MASTER, p->unit)->what == ZERO_MASTER;
    return has_master ? set_stored(z, ZERO_MASTER, p, offset, n, values) : 0;
}

// Each rank's request for n elements of a place from `offset` on, to copy to `values` or hash into `digest`.
typedef struct {
    zero *z;
    zero_value what;
    const state *state;
    const layout_place *place;
    int64_t offset, n;
    float *values;
    XXH3_state_t *digest;
} get_request;

// Adds n values to the digest, as the bytes in which they are stored, from which they were widened.
static int update_digest(const get_request *g, int64_t n) {
    zero_dtype stored = g->state->dtype;
    const void *bytes = rank_states_room_as(g->z, stored, n);
    if (XXH3_64bits_update(g->digest, bytes, n * dtype_bytes(stored)) != XXH_OK)
        return zero_fail(ZERO_ERR_MEMORY, "xxhash failed");
    return 0;
}

// Gets the requested elements of a part or the whole unit from rank `from`; -1: each rank reads its own copy.
static int get_part(const get_request *g, int unit, int part, int from) {
    zero *z = g->z;
    const zero_purpose purpose = g->digest ? ZERO_FOR_HASH : ZERO_FOR_CHECKPOINT;
    const comm_use use = { .purpose = purpose, .unit = z->layout.units[unit].of, .units = 1 };
    const int reads = from < 0 || from == z->comm.group.rank;
    int64_t at, n, begin = g->place->offset + g->offset;
    state_intersect(g->state, unit, part, begin, g->n, &at, &n);
    float *to = g->digest ? rank_states_room(z) : g->values + state_before(g->state, unit, part) + at - begin;
    int64_t most = g->digest ? VALUES_CHUNK : n;
    for (int64_t done = 0, len; done < n; done += len) {
        len = n - done < most ? n - done : most;
        const state_range r = { unit, part, at + done, len };
        if (reads) ZERO_TRY(rank_state_read(z, purpose, g->what, r, to));
        if (from >= 0) ZERO_TRY(comm_broadcast(&z->comm, use, from, to, len * sizeof(float)));
        if (g->digest) ZERO_TRY(update_digest(g, len));
    }
    return 0;
}

static int run_get(void *ctx, task *k) {
    get_request *g = ctx;
    zero *z = g->z;
    const int unit = g->place->unit;
    if (!g->state->own_only) return get_part(g, unit, STATE_WHOLE, -1);
    for (int part = 0; part < z->comm.group.ranks; part++) ZERO_TRY(get_part(g, unit, part, part));
    return 0;
}

int zero_get(zero *z, zero_value what, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    const layout_place *p;
    ZERO_TRY(check_range(z, "zero_get", what, tensor, layer, offset, n, &p));
    ZERO_TRY(step_settle(z));
    get_request g = { z, what, rank_state_with(z, what, p->unit), p, offset, n, values, NULL };
    return tasks_run(&z->tasks, run_get, &g);
}

static int digest(zero *z, zero_value what, const layout_place *p, XXH3_state_t *state, uint64_t *out) {
    if (XXH3_64bits_reset(state) != XXH_OK) return zero_fail(ZERO_ERR_MEMORY, "xxhash failed to initialise");
    get_request g = { z, what, rank_state_with(z, what, p->unit), p, 0, p->elems, NULL, state };
    ZERO_TRY(tasks_run(&z->tasks, run_get, &g));
    *out = XXH3_64bits_digest(state);
    return 0;
}

int zero_hash(zero *z, int full, char hex[17]) {
    static const zero_value wanted[2][3] = { { ZERO_PARAM }, { ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2 } };
    int n_wanted = full ? 1 + z->config.update_states : 1, n = 0, rc = 0;
    if (full) ZERO_TRY(pass_may_train(z, "zero_hash of the optimizer's states"));
    ZERO_TRY(pass_outside_step(z, "zero_hash"));
    ZERO_TRY(step_settle(z));
    XXH3_state_t *state = XXH3_createState();
    uint64_t *table = malloc(n_wanted * z->layout.n_places * sizeof *table);
    if (!state || !table) rc = zero_fail(ZERO_ERR_MEMORY, "out of memory for the digests");
    for (int w = 0; w < n_wanted; w++)
        for (int i = 0; !rc && i < z->layout.n_places; i++) {
            const layout_place *p = &z->layout.places[z->layout.place_of[i]];
            if (is_stored(z, wanted[full != 0][w], p))
                rc = digest(z, wanted[full != 0][w], p, state, &table[n++]);
        }
    if (!rc) snprintf(hex, 17, "%016llx", (unsigned long long)XXH3_64bits(table, n * sizeof *table));
    free(table);
    XXH3_freeState(state);
    return rc;
}
