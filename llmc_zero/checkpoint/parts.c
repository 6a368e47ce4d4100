#include "parts.h"

const zero_value saved_values[SAVED] = { ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2 };
const char *const saved_names[SAVED] = { "master", "moment1", "moment2" };

// The number of elements of a unit that a rank saves.
static int64_t elems_of(const layout *l, int unit, int rank) {
    int64_t from, n;
    layout_intersect(&l->units[unit], rank, 0, layout_extent(l, unit), &from, &n);
    return n;
}

int parts_of_rank(const layout *l, int rank, saved_part *parts, int64_t *bytes) {
    int n = 0;
    *bytes = 0;
    for (int u = 0; u < l->n_units; u++) {
        int64_t elems = elems_of(l, u, rank);
        if (!elems) continue;
        saved_part *p = &parts[n++];
        *p = (saved_part){ .unit = u, .from = layout_before(&l->units[u], rank), .elems = elems };
        for (int i = 0; i < SAVED; i++) {
            p->at[i] = *bytes;
            *bytes += elems * (int64_t)sizeof(float);
        }
    }
    return n;
}

static int visit_pieces(at_work *w, int saved, int unit, int64_t elems, piece_visitor fn, void *ctx) {
    state_range r = { .unit = unit, .part = w->z->comm.group.rank };
    for (; r.from < elems; r.from += r.elems) {
        r.elems = elems - r.from < VALUES_CHUNK ? elems - r.from : VALUES_CHUNK;
        ZERO_TRY(fn(ctx, saved, r));
        ZERO_TRY(at_work_goes_on(w));
    }
    return 0;
}

int visit_parts(at_work *w, int padded, piece_visitor fn, void *ctx) {
    const zero *z = w->z;
    const layout *l = &z->layout;
    for (int u = 0; u < l->n_units; u++) {
        int64_t elems = padded ? l->units[u].shard : elems_of(l, u, z->comm.group.rank);
        for (int i = 0; i < SAVED; i++) ZERO_TRY(visit_pieces(w, i, u, elems, fn, ctx));
    }
    return 0;
}
