// Values in and out, and digests: streaming, piece by piece from the rank that owns them, so that nothing is
// ever gathered whole.
#include "internal.h"
#define XXH_INLINE_ALL
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

storage storage_of(const zero *z, zero_value what) {
    if (what == ZERO_GRADIENT) return (storage){ z->grads, z->grad_type, 2, 1 };
    if (what == ZERO_MOMENT1) return (storage){ (char *)z->moment1, ZERO_F32, 1, 1 };
    if (what == ZERO_MOMENT2) return (storage){ (char *)z->moment2, ZERO_F32, 1, 1 };
    if (what == ZERO_MASTER && z->master) return (storage){ (char *)z->master, ZERO_F32, 1, 1 };
    return (storage){ z->params, z->config.numbers.dtype, 3, 3 };
}

// n stored elements as fp32, and back: in pieces, through staging where the host cannot read the device's
// memory.
int read_stored(const zero *z, storage s, const char *stored, int64_t n, float *values) {
    size_t size = dtype_bytes(s.type);
    for (int64_t at = 0, len; at < n; at += len) {
        len = n - at < VALUES_CHUNK ? n - at : VALUES_CHUNK;
        const void *view = device_view((device *)&z->device, stored + at * size, len * size, z->staging);
        if (!view) return ZERO_ERR_DEVICE;
        kernel_convert(ZERO_F32, values + at, s.type, view, len);
    }
    return 0;
}

int write_stored(zero *z, storage s, char *stored, int64_t n, const float *values) {
    size_t size = dtype_bytes(s.type);
    for (int64_t at = 0, len; at < n; at += len) {
        len = n - at < VALUES_CHUNK ? n - at : VALUES_CHUNK;
        kernel_convert(s.type, device_target(&z->device, stored + at * size, z->staging), ZERO_F32,
                       values + at, len);
        ZERO_TRY(device_commit(&z->device, stored + at * size, len * size, z->staging));
    }
    return 0;
}

// Where element `from` (counted inside the unit, in part `part`) is stored on this rank.
static char *element(const zero *z, storage s, int unit, int part, int64_t from) {
    int64_t at = part_offset(z, unit, part, s.sharded_from) + from - part * z->layout.units[unit].shard;
    return s.base + at * dtype_bytes(s.type);
}

static int check_range(const zero *z, const char *caller, zero_value what, int tensor, int layer,
                       int64_t offset, int64_t n, const layout_place **place) {
    const layout_place *p = *place = find_place(z, tensor, layer);
    if (!p) return ZERO_ERR_MISUSE;
    const char *name = z->layout.tensors[tensor].name;
    if (offset < 0 || n < 0 || n > p->elems || offset > p->elems - n)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s(%s): %lld elements from %lld on, but it has %lld", caller,
                         name, (long long)n, (long long)offset, (long long)p->elems);
    if (what == ZERO_GRADIENT)
        return z->reduced ? 0
                          : zero_fail(ZERO_ERR_MISUSE,
                                      "%s(%s): gradients are there between zero_reduce and zero_update",
                                      caller, name);
    return z->begun ? zero_fail(ZERO_ERR_MISUSE, "%s(%s): inside a training step; finish the step first",
                                caller, name)
                    : check_closed(z, caller);
}

static int set_stored(zero *z, storage s, const layout_place *p, int64_t offset, int64_t n,
                      const float *values) {
    int unit = layout_unit_of(&z->layout, p), whole = z->config.stage < s.sharded_from;
    for (int part = whole ? 0 : z->comm.rank; part <= (whole ? z->comm.ranks - 1 : z->comm.rank); part++) {
        int64_t from, len;
        layout_intersect(&z->layout.units[unit], part, p->offset + offset, n, &from, &len);
        ZERO_TRY(
            write_stored(z, s, element(z, s, unit, part, from), len, values + (from - p->offset - offset)));
    }
    return 0;
}

int zero_set(zero *z, zero_value what, int tensor, int layer, int64_t offset, int64_t n,
             const float *values) {
    const layout_place *p;
    if (what == ZERO_GRADIENT)
        return zero_fail(ZERO_ERR_ARGUMENT, "zero_set: gradients are not set, they come from backward");
    ZERO_TRY(check_range(z, "zero_set", what, tensor, layer, offset, n, &p));
    ZERO_TRY(params_drop_all(z));
    ZERO_TRY(z->device.f->wait(&z->device, COMPUTE));
    ZERO_TRY(set_stored(z, storage_of(z, what), p, offset, n, values));
    return what == ZERO_PARAM && z->master ? set_stored(z, storage_of(z, ZERO_MASTER), p, offset, n, values)
                                           : 0;
}

typedef struct {
    zero *z;
    zero_value what;
    const layout_place *place;
    int64_t offset, n;
    float *values;
    zero_purpose purpose;
} get_request;

static int run_get(void *ctx, job *j) {
    (void)j;
    get_request *g = ctx;
    zero *z = g->z;
    storage s = storage_of(z, g->what);
    int unit = layout_unit_of(&z->layout, g->place), whole = z->config.stage < s.owned_from;
    const comm_use use = { .purpose = g->purpose, .unit = unit, .units = 1 };
    for (int part = 0; part < z->comm.ranks; part++) {
        int64_t from, len;
        layout_intersect(&z->layout.units[unit], part, g->place->offset + g->offset, g->n, &from, &len);
        if (!len) continue;
        float *to = g->values + (from - g->place->offset - g->offset);
        if (whole || part == z->comm.rank)
            ZERO_TRY(read_stored(z, s, element(z, s, unit, part, from), len, to));
        if (!whole) ZERO_TRY(comm_broadcast(&z->comm, use, part, to, len * sizeof(float)));
    }
    return 0;
}

static int get_values(zero *z, zero_value what, const layout_place *p, int64_t offset, int64_t n,
                      float *values, zero_purpose purpose) {
    get_request g = { z, what, p, offset, n, values, purpose };
    return progress_run(&z->progress, run_get, &g);
}

int zero_get(zero *z, zero_value what, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    const layout_place *p;
    ZERO_TRY(check_range(z, "zero_get", what, tensor, layer, offset, n, &p));
    ZERO_TRY(params_complete(z));
    return get_values(z, what, p, offset, n, values, ZERO_FOR_CHECKPOINT);
}

static int digest(zero *z, zero_value what, const layout_place *p, XXH3_state_t *state, uint64_t *out) {
    zero_dtype stored = storage_of(z, what).type;
    if (XXH3_64bits_reset(state) != XXH_OK) return zero_fail(ZERO_ERR_MEMORY, "xxhash does not start");
    for (int64_t at = 0; at < p->elems; at += VALUES_CHUNK) {
        int64_t n = p->elems - at < VALUES_CHUNK ? p->elems - at : VALUES_CHUNK;
        ZERO_TRY(get_values(z, what, p, at, n, z->values, ZERO_FOR_HASH));
        if (stored != ZERO_F32)
            kernel_convert(stored, z->low_values, ZERO_F32, z->values, n);  // exact: they came from there
        const void *bytes = stored != ZERO_F32 ? (const void *)z->low_values : z->values;
        if (XXH3_64bits_update(state, bytes, n * dtype_bytes(stored)) != XXH_OK)
            return zero_fail(ZERO_ERR_MEMORY, "xxhash failed");
    }
    *out = XXH3_64bits_digest(state);
    return 0;
}

int zero_hash(zero *z, int full, char hex[17]) {
    static const zero_value wanted[2][3] = { { ZERO_PARAM }, { ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2 } };
    int n_wanted = full ? 3 : 1, n = 0, rc = 0;
    if (z->begun)
        return zero_fail(ZERO_ERR_MISUSE, "zero_hash: inside a training step; finish the step first");
    ZERO_TRY(check_closed(z, "zero_hash"));
    ZERO_TRY(params_complete(z));
    XXH3_state_t *state = XXH3_createState();
    uint64_t *table = malloc(n_wanted * z->layout.n_places * sizeof *table);
    if (!state || !table) rc = zero_fail(ZERO_ERR_MEMORY, "out of memory for the digests");
    for (int w = 0; w < n_wanted; w++)
        for (int i = 0; !rc && i < z->layout.n_places; i++)
            rc = digest(z, wanted[full != 0][w], &z->layout.places[z->layout.place_of[i]], state,
                        &table[n++]);
    if (!rc) snprintf(hex, 17, "%016llx", (unsigned long long)XXH3_64bits(table, n * sizeof *table));
    free(table);
    XXH3_freeState(state);
    return rc;
}
