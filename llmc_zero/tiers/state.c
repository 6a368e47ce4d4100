#include "state.h"
#include "../base/error.h"
#include "../placement.h"

// -------- the store in memory

// Returns the number of parts that this rank keeps before the first one of the range.
static int parts_before(const state *s, state_range r) {
    return r.part == STATE_WHOLE ? 0 : r.part / s->group;
}

char *state_kept_at(const state *s, state_range r) {
    const int first = r.part == STATE_WHOLE ? 0 : r.part;
    const int64_t gone = s->units ? s->units[r.unit].gone : 0;
    return s->array +
           (layout_offset(s->layout, r.unit, first, s->group) + r.from - gone) * dtype_bytes(s->dtype);
}

static int memory_begin(state_part *p) { return 0; }

static int memory_ready(state_part *p) {
    const state *s = p->of;
    const state_split *u = s->units ? &s->units[p->range.unit] : NULL;
    const int is_away = u && p->range.from < u->away;
    if (is_away)
        p->at = s->away + u->region +
                (parts_before(s, p->range) * u->away + p->range.from) * dtype_bytes(s->dtype);
    else
        p->at = state_kept_at(s, p->range);
    return 0;
}

static int memory_close(state_part *p) { return 0; }

const state_store state_in_memory = {
    .create = state_create_kept, .begin = memory_begin, .ready = memory_ready, .close = memory_close
};
const state_store *state_default_store = &state_in_memory;

// -------- states

// sharded_from: the first stage at which a rank keeps only its own part. own_from: the first stage at which
// only that part is up to date; stage 1 reduces gradients into this part and leaves the rest stale.
static const struct {
    const char *name;
    int sharded_from, own_from;
} descriptions[STATES] = {
    [ZERO_PARAM] = { "parameters", 3, 3 },     [ZERO_MASTER] = { "master weights", 1, 1 },
    [ZERO_MOMENT1] = { "first moment", 1, 1 }, [ZERO_MOMENT2] = { "second moment", 1, 1 },
    [ZERO_GRADIENT] = { "gradients", 2, 1 },
};

static int is_kept(zero_value what, const zero_config *c) {
    if (c->inference) return what == ZERO_PARAM;
    if (what == ZERO_MOMENT1) return c->update_states > 0;
    if (what == ZERO_MOMENT2) return c->update_states > 1;
    if (what != ZERO_MASTER) return 1;
    // fp32 parameters are their own masters, unless a delayed update changes the masters first.
    return !c->numbers.no_master && (c->numbers.dtype != ZERO_F32 || c->offload.delayed_update);
}

state state_of(zero_value what, const zero_config *c, const layout *l, int rank, device *d) {
    int summed = what == ZERO_GRADIENT && c->micro_batches > 1 && !c->accumulate_layers;
    int as_computed = what == ZERO_PARAM || (what == ZERO_GRADIENT && !summed);
    const int sharded = c->stage >= descriptions[what].sharded_from;
    const int group = what == ZERO_PARAM && c->param_group ? c->param_group : l ? l->ranks : 1;
    return (state){
        .name = summed ? "gradients, summed in fp32" : descriptions[what].name,
        .what = what,
        .dtype = as_computed ? c->numbers.dtype : ZERO_F32,
        .kept = is_kept(what, c),
        .sharded = sharded,
        .group = sharded ? group : 1,
        .own_only = c->stage >= descriptions[what].own_from,
        .rank = rank,
        .layout = l,
        .device = d,
        .store = state_default_store,
    };
}

size_t state_bytes(const state *s) {
    const layout *l = s->layout;
    const int64_t elems = s->what == ZERO_PARAM ? l->stored_shard_elems : l->shard_elems;
    return s->kept ? elems * state_parts(s) * dtype_bytes(s->dtype) : 0;
}

int state_split_units(state *s, const zero_config *c, memory *m, int n_units) {
    int64_t gone = 0;
    s->units = memory_array(m, n_units, sizeof *s->units);
    s->piece = placement_piece_elems(c, s->layout);
    if (!s->units) return ZERO_ERR_MEMORY;
    for (int u = 0; u < n_units; u++) {
        const int64_t away = placement_away(s->what, c, s->layout, s->rank, u), all = away * state_parts(s);
        s->units[u] = (state_split){ away, gone * dtype_bytes(s->dtype), gone + all };
        gone += all;
    }
    return 0;
}

int state_create(state *s, memory *m, const memory_request *planned) {
    return s->kept ? s->store->create(s, m, planned) : 0;
}

int state_create_kept(state *s, memory *m, const memory_request *planned) {
    if (!planned->bytes) return 0;
    s->array = planned->tier == ZERO_HOST ? memory_alloc_pinned(m, planned) : memory_alloc(m, planned);
    return s->array ? 0 : ZERO_ERR_MEMORY;
}

// -------- parts

state_range state_all(const state *s, int unit, int part) {
    const layout_unit *u = &s->layout->units[unit];
    return (state_range){ unit, part, 0, part == STATE_WHOLE ? state_parts(s) * u->shard : u->shard };
}

int64_t state_span(const state *s, state_range r) {
    if (!s->units || r.from >= s->units[r.unit].away) return r.elems;
    const int64_t before = layout_before(&s->layout->units[r.unit], s->rank);
    int64_t end = s->units[r.unit].away;
    if (end > r.from + r.elems) end = r.from + r.elems;
    return (s->files ? placement_cut(before, r.from, end, s->piece) : end) - r.from;
}

int state_on_host(const state *s, state_range r) {
    return s->crossed && (s->kept_on_host || r.from < s->units[r.unit].away);
}

int state_begin(state_part *p, state *s, device_stream on, state_range r, state_intent intent, char *into) {
    p->of = s;
    p->on = on;
    p->range = r;
    p->intent = intent;
    p->into = into;
    int rc = s->store->begin(p);
    if (rc) p->of = NULL;
    return rc;
}

int state_ready(state_part *p) {
    int rc = p->of->store->ready(p);
    return state_close_after(rc, p, rc != 0);
}

int state_open_range(state_part *p, state *s, device_stream on, state_range r, state_intent intent) {
    p->moved = NULL;
    ZERO_TRY(state_begin(p, s, on, r, intent, NULL));
    return state_ready(p);
}

int state_open(state_part *p, state *s, device_stream on, int unit, int part, state_intent intent) {
    return state_open_range(p, s, on, state_all(s, unit, part), intent);
}

int state_close(state_part *p) {
    if (!p->of) return 0;
    int rc = p->of->store->close(p);
    p->of = NULL;
    return rc;
}

static void abandon(state_part *p) {
    if (p->of && p->of->store->abandon) p->of->store->abandon(p);
    p->of = NULL;
}

int state_close_after(int rc, state_part *parts, int n) {
    for (int i = 0; i < n; i++) {
        if (rc)
            abandon(&parts[i]);
        else
            rc = state_close(&parts[i]);
    }
    return rc;
}

int64_t state_before(const state *s, int unit, int part) {
    return part == STATE_WHOLE ? 0 : layout_before(&s->layout->units[unit], part);
}

char *state_own(const state_part *p) {
    const state *s = p->of;
    const int parts = s->rank / s->group - parts_before(s, p->range);
    const int64_t before = parts * s->layout->units[p->range.unit].shard - p->range.from;
    return p->at + before * dtype_bytes(s->dtype);
}

void state_intersect(const state *s, int unit, int part, int64_t begin, int64_t count, int64_t *from,
                     int64_t *n) {
    *from = begin;
    *n = count;
    if (part != STATE_WHOLE) layout_intersect(&s->layout->units[unit], part, begin, count, from, n);
    *from -= state_before(s, unit, part);
}

// -------- values

int state_move(state *s, device_stream on, state_range r, state_intent intent, float *read,
               const float *written, void *staging, state_moved *moved) {
    const size_t size = dtype_bytes(s->dtype);
    const int64_t end = r.from + r.elems;
    while (r.from < end) {
        state_part p = { .moved = moved };
        r.elems = end - r.from;
        r.elems = state_span(s, r);
        ZERO_TRY(state_begin(&p, s, state_on_host(s, r) ? PROCESSOR : on, r, intent, NULL));
        ZERO_TRY(state_ready(&p));
        device *d = p.on == PROCESSOR ? &device_host : s->device;
        int rc = 0;
        for (int64_t at = 0, n; at < r.elems && !rc; at += n) {
            n = r.elems - at < VALUES_CHUNK ? r.elems - at : VALUES_CHUNK;
            if (read) {
                const void *view = device_view(d, p.at + at * size, n * size, staging);
                if (view) kernel_convert(ZERO_F32, read, s->dtype, view, n);
                rc = view ? 0 : ZERO_ERR_DEVICE;
                read += n;
            } else {
                kernel_convert(s->dtype, device_target(d, p.at + at * size, staging), ZERO_F32, written, n);
                rc = device_commit(d, p.at + at * size, n * size, staging);
                written += n;
            }
        }
        ZERO_TRY(state_close_after(rc, &p, 1));
        r.from += r.elems;
    }
    return 0;
}
