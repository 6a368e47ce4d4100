#include "finite.h"
#include <string.h>

// The smallest magnitude, as bits, that is not finite in a dtype or rounds to infinity.
static uint32_t limit_of(zero_dtype dtype) {
    if (dtype == ZERO_BF16) return 0x7f7f8000;
    return dtype == ZERO_F16 ? 0x477ff000 : 0x7f800000;
}

// Returns the first of n values at or above the limit, or n. Skips blocks without one as a whole.
static int64_t first_above(const float *values, int64_t n, uint32_t limit) {
    enum { BLOCK = 1024 };
    for (int64_t from = 0; from < n; from += BLOCK) {
        const int64_t end = n - from < BLOCK ? n : from + BLOCK;
        uint32_t most = 0;
        for (int64_t i = from; i < end; i++) {
            uint32_t bits;
            memcpy(&bits, &values[i], sizeof bits);
            bits &= 0x7fffffff;
            most = bits > most ? bits : most;
        }
        if (most < limit) continue;
        for (int64_t i = from; i < end; i++) {
            uint32_t bits;
            memcpy(&bits, &values[i], sizeof bits);
            if ((bits & 0x7fffffff) >= limit) return i;
        }
    }
    return n;
}

static int refuse(const zero *z, int saved, int unit, const layout_place *p, int64_t element, float value) {
    static const char *const states[SAVED] = { "parameters", "first moment", "second moment" };
    const zero_tensor *t = &z->layout.tensors[p->tensor];
    const net *n = &z->net;
    zero_fail_rank(ZERO_ERR_ARGUMENT, n->rank, net_host(n, n->rank),
                   " has %s that are not finite: %g in %s, layer %d, element %lld (unit %s)", states[saved],
                   value, t->name, p->layer, (long long)element, z->layout.units[unit].name);
    return zero_failed_at_unit(unit);
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

static int check_piece(void *ctx, int saved, state_range r) {
    zero *z = ctx;
    ZERO_TRY(states_read(z, saved_values[saved], r, states_room(z)));
    return finite_values(z, saved, r, states_room(z));
}

int zero_check_finite(zero *z) {
    ZERO_TRY(pass_may_train(z, "zero_check_finite"));
    ZERO_TRY(pass_outside_step(z, "zero_check_finite"));
    ZERO_TRY(zero_finish_update(z));
    ZERO_TRY(update_settle(z));
    at_work work = at_work_begin(z);
    return at_work_end(&work, visit_parts(&work, 0, check_piece, z));
}
