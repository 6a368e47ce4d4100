#include "parts.h"
#include "../device/numbers.h"
#include "at_work.h"

const zero_value saved_values[SAVED] = { ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2 };
const char *const saved_names[SAVED] = { "master", "moment1", "moment2" };

// Returns how many of the job's n_saved states the unit has. A frozen unit has only the first one.
static int saved_of(const layout *l, int unit, int n_saved) { return unit < l->n_units ? n_saved : 1; }

// Returns the number of elements of a unit that a rank saves.
static int64_t elems_of(const layout *l, int unit, int rank) {
    int64_t from, n;
    layout_intersect(&l->units[unit], rank, 0, layout_extent(l, unit), &from, &n);
    return n;
}

int parts_of_rank(const layout *l, int rank, int n_saved, saved_part *parts, int64_t *bytes) {
    int n = 0;
    *bytes = 0;
    for (int u = 0; u < l->n_stored; u++) {
        int64_t elems = elems_of(l, u, rank);
        if (!elems) continue;
        saved_part *p = &parts[n++];
        *p = (saved_part){ .unit = u, .from = layout_before(&l->units[u], rank), .elems = elems };
        for (int i = 0; i < SAVED; i++) {
            p->at[i] = i < saved_of(l, u, n_saved) ? *bytes : -1;
            if (p->at[i] >= 0) *bytes += elems * (int64_t)sizeof(float);
        }
    }
    return n;
}

int pieces_next(saved_piece *p) {
    const layout *l = &p->z->layout;
    state_range *r = &p->at;
    for (r->from += r->elems;; r->from = 0) {
        int64_t all = p->padded ? l->units[r->unit].shard : elems_of(l, r->unit, r->part);
        if (p->saved >= saved_of(l, r->unit, p->n_saved)) all = 0;
        r->elems = all - r->from < VALUES_CHUNK ? all - r->from : VALUES_CHUNK;
        if (r->elems > 0) return 1;
        p->saved = (p->saved + 1) % p->n_saved;
        if (!p->saved && ++r->unit == l->n_stored) return 0;
    }
}

// -------- NaN and Inf

// Returns the bits of the smallest magnitude that is not finite in a dtype or rounds to infinity.
static uint32_t limit_of(zero_dtype dtype) {
    if (dtype == ZERO_BF16) return 0x7f7f8000;
    return dtype == ZERO_F16 ? 0x477ff000 : 0x7f800000;
}

static uint32_t magnitude(float value) { return bits_of(value) & 0x7fffffff; }

// Returns the index of the first value at or above the limit, or n. Tests whole blocks first, for speed.
static int64_t first_above(const float *values, int64_t n, uint32_t limit) {
    enum { BLOCK = 1024 };
    int64_t i = 0;
    for (uint32_t most = 0; i + BLOCK <= n; i += BLOCK) {
        for (int64_t k = i; k < i + BLOCK; k++)
            most = magnitude(values[k]) > most ? magnitude(values[k]) : most;
        if (most >= limit) break;
    }
    while (i < n && magnitude(values[i]) < limit) i++;
    return i;
}

static int refuse(const zero *z, int saved, int unit, const layout_place *p, int64_t element, float value) {
    static const char *const states[SAVED] = { "parameters", "first moment", "second moment" };
    const zero_tensor *t = &z->layout.tensors[p->tensor];
    const net *n = &z->net;
    zero_fail_rank(ZERO_ERR_ARGUMENT, n->rank, net_host(n, n->rank),
                   " has %s that are not finite: %g in %s, layer %d, element %lld (unit %s)", states[saved],
                   value, t->name, p->layer, (long long)element, z->layout.units[unit].name);
    return zero_failed_at_unit(z->layout.units[unit].of);
}

int finite_values(const zero *z, int saved, state_range r, const float *values) {
    const layout *l = &z->layout;
    const layout_unit *u = &l->units[r.unit];
    const int64_t begin = layout_before(u, r.part) + r.from, end = begin + r.elems;
    const uint32_t limit = limit_of(saved ? ZERO_F32 : z->config.numbers.dtype);
    for (const layout_place *p = &l->places[u->first_place]; p < &l->places[u->first_place + u->n_places];
         p++) {
        const int64_t from = p->offset > begin ? p->offset : begin;
        const int64_t to = p->offset + p->elems < end ? p->offset + p->elems : end;
        if (to <= from) continue;
        const int64_t at = from + first_above(values + (from - begin), to - from, limit);
        if (at < to) return refuse(z, saved, r.unit, p, at - p->offset, values[at - begin]);
    }
    return 0;
}

int zero_check_finite(zero *z) {
    ZERO_TRY(pass_may_train(z, "zero_check_finite"));
    ZERO_TRY(pass_outside_step(z, "zero_check_finite"));
    ZERO_TRY(zero_finish_update(z));
    ZERO_TRY(step_settle(z));
    at_work work = at_work_begin(z);
    int rc = 0;
    for (saved_piece p = pieces_of(z, 0); !rc && pieces_next(&p);) {
        rc = rank_state_read(z, ZERO_FOR_CHECKPOINT, saved_values[p.saved], p.at, rank_states_room(z));
        if (!rc) rc = finite_values(z, p.saved, p.at, rank_states_room(z));
        if (!rc) rc = at_work_goes_on(&work);
    }
    return at_work_end(&work, rc);
}
