#include "state.h"
#include "error.h"

// -------- the device's store: the memory itself

static int device_create(state *s, memory *m, const memory_request *planned) {
    s->array = memory_alloc(m, planned);
    return s->array ? 0 : ZERO_ERR_MEMORY;
}

static int device_open_part(state_part *p) {
    const state *s = p->of;
    int first = p->part == STATE_WHOLE ? 0 : p->part;
    p->at = s->array + layout_offset(s->layout, p->unit, first, s->sharded) * dtype_bytes(s->dtype);
    return 0;
}

static int device_close_part(state_part *p) {
    (void)p;
    return 0;
}

const state_store state_on_device = {
    .create = device_create,
    .open = device_open_part,
    .close = device_close_part,
};
const state_store *state_default_store = &state_on_device;

// -------- states

// sharded_from: the first stage at which a rank keeps only its own part. own_from: the first one at which
// only that part is up to date; gradients of stage 1 are reduced into it and stale elsewhere.
static const struct {
    const char *name;
    int sharded_from, own_from;
} descriptions[STATES] = {
    [ZERO_PARAM] = { "parameters", 3, 3 },     [ZERO_MASTER] = { "master weights", 1, 1 },
    [ZERO_MOMENT1] = { "first moment", 1, 1 }, [ZERO_MOMENT2] = { "second moment", 1, 1 },
    [ZERO_GRADIENT] = { "gradients", 2, 1 },
};

state state_of(zero_value what, const zero_config *c, const layout *l, int rank, device *d) {
    int low_precision = c->numbers.dtype != ZERO_F32;
    int summed = what == ZERO_GRADIENT && c->micro_batches > 1;
    int as_computed = what == ZERO_PARAM || (what == ZERO_GRADIENT && !summed);
    return (state){
        .name = summed ? "gradients, summed in fp32" : descriptions[what].name,
        .dtype = as_computed ? c->numbers.dtype : ZERO_F32,
        .kept = what != ZERO_MASTER || (low_precision && !c->numbers.no_master),
        .sharded = c->stage >= descriptions[what].sharded_from,
        .own_only = c->stage >= descriptions[what].own_from,
        .rank = rank,
        .layout = l,
        .device = d,
        .updater = d,
        .store = state_default_store,
    };
}

size_t state_bytes(const state *s) {
    int64_t elems = s->sharded ? s->layout->shard_elems : s->layout->flat_elems;
    return s->kept ? elems * dtype_bytes(s->dtype) : 0;
}

int state_create(state *s, memory *m, const memory_request *planned) {
    return s->kept ? s->store->create(s, m, planned) : 0;
}

// -------- parts

int state_open(state_part *p, state *s, device_stream on, int unit, int part, state_intent intent) {
    *p = (state_part){ .of = s, .on = on, .unit = unit, .part = part, .intent = intent };
    int rc = s->store->open(p);
    if (rc) p->of = NULL;
    return rc;
}

int state_close(state_part *p) {
    if (!p->of) return 0;
    int rc = p->of->store->close(p);
    *p = (state_part){ 0 };
    return rc;
}

int state_close_after(int rc, state_part *parts, int n) {
    for (int i = 0; i < n; i++) {
        int closing = state_close(&parts[i]);
        if (!rc) rc = closing;
    }
    return rc;
}

int64_t state_before(const state *s, int unit, int part) {
    return part == STATE_WHOLE ? 0 : layout_before(&s->layout->units[unit], part);
}

char *state_own(const state_part *p) {
    const state *s = p->of;
    int64_t before = state_before(s, p->unit, s->rank) - state_before(s, p->unit, p->part);
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

int state_read(const state_part *p, int64_t at, int64_t n, float *values, void *staging) {
    size_t size = dtype_bytes(p->of->dtype);
    for (int64_t done = 0, len; done < n; done += len) {
        len = n - done < VALUES_CHUNK ? n - done : VALUES_CHUNK;
        const void *view = device_view(p->of->device, p->at + (at + done) * size, len * size, staging);
        if (!view) return ZERO_ERR_DEVICE;
        kernel_convert(ZERO_F32, values + done, p->of->dtype, view, len);
    }
    return 0;
}

int state_write(const state_part *p, int64_t at, int64_t n, const float *values, void *staging) {
    device *d = p->of->device;
    size_t size = dtype_bytes(p->of->dtype);
    for (int64_t done = 0, len; done < n; done += len) {
        len = n - done < VALUES_CHUNK ? n - done : VALUES_CHUNK;
        char *to = p->at + (at + done) * size;
        kernel_convert(p->of->dtype, device_target(d, to, staging), ZERO_F32, values + done, len);
        ZERO_TRY(device_commit(d, to, len * size, staging));
    }
    return 0;
}
