#include "layout.h"
#include "base/error.h"
#include <float.h>
#include <stdlib.h>
#include <string.h>

static const double most_elems = 1e15;  // of all tensors, so that no number of bytes overflows
enum { MOST_USES = 4096 };              // of a unit in one direction, so that no sum of uses overflows

int64_t zero_tensor_elems(const zero_tensor *t) {
    int64_t elems = 1;
    if (t->n_dims < 1 || t->n_dims > ZERO_MAX_DIMS) return -1;
    for (int i = 0; i < t->n_dims; i++)
        if (t->dims[i] < 1 || __builtin_mul_overflow(elems, t->dims[i], &elems)) return -1;
    return elems;
}

static int is_factor(float x) { return x >= 0 && x <= FLT_MAX; }

static int check_tables(const zero_tensor *t, int n_tensors, const zero_unit *u, int n_units) {
    double elems = 0;
    if (n_tensors < 1 || n_units < 1)
        return zero_fail(ZERO_ERR_ARGUMENT, "the tables need at least one tensor and one unit");
    for (int i = 0; i < n_tensors; i++) {
        if (!t[i].name || zero_tensor_elems(&t[i]) < 1 || t[i].layers < 1)
            return zero_fail(
                ZERO_ERR_ARGUMENT,
                "tensor %d (%s): needs a name, 1 to %d dimensions of at least 1, and layers >= 1", i,
                t[i].name ? t[i].name : "no name", ZERO_MAX_DIMS);
        const int64_t step = t[i].unit_step ? t[i].unit_step : 1;
        if (t[i].unit < 0 || step < 1 || t[i].unit + (t[i].layers - 1) * step >= n_units)
            return zero_fail(ZERO_ERR_ARGUMENT,
                             "tensor %d (%s): %d layers in units %d, %d + %lld, ..., but there are only %d "
                             "units",
                             i, t[i].name, t[i].layers, t[i].unit, t[i].unit, (long long)step, n_units);
        elems += (double)zero_tensor_elems(&t[i]) * t[i].layers;
        if (elems > most_elems)
            return zero_fail(ZERO_ERR_ARGUMENT,
                             "tensor %d (%s): with it the table has %.16g elements, more than %.16g; check "
                             "dims and layers",
                             i, t[i].name, elems, most_elems);
        if (!is_factor(t[i].decay) || !is_factor(t[i].lr_factor))
            return zero_fail(ZERO_ERR_ARGUMENT,
                             "tensor %d (%s): decay %g and lr_factor %g must be finite and at least 0", i,
                             t[i].name, t[i].decay, t[i].lr_factor);
    }
    for (int i = 0; i < n_units; i++)
        if (!u[i].name || u[i].forward_uses < 1 || u[i].forward_uses > MOST_USES || u[i].backward_uses < 1 ||
            u[i].backward_uses > MOST_USES || u[i].gradient_only_uses < 0 ||
            u[i].gradient_only_uses > u[i].backward_uses || u[i].repeated_uses < 0 ||
            u[i].repeated_uses >= u[i].forward_uses)
            return zero_fail(ZERO_ERR_ARGUMENT,
                             "unit %d (%s): needs a name, forward_uses and backward_uses of 1 to %d, and "
                             "gradient_only_uses of 0 to backward_uses, and fewer repeated_uses than "
                             "forward_uses",
                             i, u[i].name ? u[i].name : "no name", MOST_USES);
    return 0;
}

// Returns 1 if the unit has a frozen tensor.
static int has_frozen(const zero_tensor *t, int n_tensors, int unit) {
    for (int i = 0; i < n_tensors; i++)
        if (t[i].frozen && layout_layer(&t[i], unit) >= 0) return 1;
    return 0;
}

static int copy_unit(layout_unit *u, const zero_unit *from, int of) {
    *u = (layout_unit){ .name = strdup(from->name),
                        .forward_uses = from->forward_uses,
                        .first_uses = from->forward_uses - from->repeated_uses,
                        .backward_uses = from->backward_uses,
                        .reading_uses = from->backward_uses - from->gradient_only_uses,
                        .of = of,
                        .frozen = -1,
                        .bucket = -1 };
    u->shared = u->first_uses > 1 || u->backward_uses > 1;
    return u->name != NULL;
}

static int copy_tables(layout *l, const zero_tensor *tensors, const zero_unit *units) {
    int done = 1;
    l->n_stored = l->n_units;
    for (int i = 0; i < l->n_units; i++) l->n_stored += has_frozen(tensors, l->n_tensors, i);
    for (int i = 0; i < l->n_tensors; i++) l->n_places += tensors[i].layers;
    l->tensors = calloc(l->n_tensors, sizeof *l->tensors);
    l->units = calloc(l->n_stored, sizeof *l->units);
    l->first_place_of_tensor = calloc(l->n_tensors + 1, sizeof(int));
    l->buckets = calloc(l->n_units, sizeof *l->buckets);
    l->places = calloc(l->n_places, sizeof *l->places);
    l->place_of = calloc(l->n_places, sizeof(int));
    l->cleared = calloc(l->n_places + l->n_units, sizeof *l->cleared);
    if (!l->tensors || !l->units || !l->first_place_of_tensor || !l->buckets || !l->places || !l->place_of ||
        !l->cleared)
        return zero_fail(ZERO_ERR_MEMORY, "out of memory for the tables");
    for (int i = 0; i < l->n_tensors; i++) {
        l->tensors[i] = tensors[i];
        l->tensors[i].name = strdup(tensors[i].name);
        done &= l->tensors[i].name != NULL;
        l->first_place_of_tensor[i + 1] = l->first_place_of_tensor[i] + tensors[i].layers;
    }
    for (int i = 0, next = l->n_units; i < l->n_units; i++) {
        done &= copy_unit(&l->units[i], &units[i], i);
        if (!has_frozen(tensors, l->n_tensors, i)) continue;
        done &= copy_unit(&l->units[next], &units[i], i);
        l->units[i].frozen = next++;
    }
    return done ? 0 : zero_fail(ZERO_ERR_MEMORY, "out of memory for the tables");
}

// Places a unit's tensors from place *next on. Returns the end of the last one.
static int64_t place_tensors(layout *l, int unit, int *next) {
    layout_unit *u = &l->units[unit];
    const int is_frozen = unit >= l->n_units;
    int64_t end = 0;
    u->first_place = *next;
    for (int t = 0; t < l->n_tensors; t++) {
        const zero_tensor *z = &l->tensors[t];
        const int layer = layout_layer(z, u->of);
        if (layer < 0 || (z->frozen != 0) != is_frozen) continue;
        int64_t elems = zero_tensor_elems(z);
        l->place_of[l->first_place_of_tensor[t] + layer] = *next;
        l->places[(*next)++] = (layout_place){ .tensor = t,
                                               .layer = layer,
                                               .unit = unit,
                                               .offset = end,
                                               .elems = elems,
                                               .lr_factor = z->lr_factor == 0 ? 1 : z->lr_factor,
                                               .decay = z->decay };
        u->elems += elems;
        end = round_up(end + elems, ALIGN_ELEMS);
    }
    u->n_places = *next - u->first_place;
    return end;
}

// Places tensors in units, and units in flat buffers.
static int place_units(layout *l) {
    int next = 0;
    for (int i = 0; i < l->n_stored; i++) {
        layout_unit *u = &l->units[i];
        const int64_t end = place_tensors(l, i, &next);
        if (!u->n_places && u->frozen < 0)
            return zero_fail(ZERO_ERR_ARGUMENT, "unit %d (%s) has no tensor", i, u->name);
        u->shard = round_up((end + l->ranks - 1) / l->ranks, ALIGN_ELEMS);
        u->padded = u->shard * l->ranks;
        u->shard_base = l->stored_shard_elems;
        l->elems += u->elems;
        l->stored_flat_elems += u->padded;
        l->stored_shard_elems += u->shard;
        if (u->shard > l->largest_stored_shard) l->largest_stored_shard = u->shard;
        if (i >= l->n_units) continue;
        l->trained_elems = l->elems;
        l->flat_elems = l->stored_flat_elems;
        l->shard_elems = l->stored_shard_elems;
        l->largest_shard = l->largest_stored_shard;
        if (!u->shared && u->padded > l->largest_single) l->largest_single = u->padded;
    }
    return 0;
}

// A slot holds a unit and then its frozen unit.
static void place_slots(layout *l) {
    for (layout_unit *u = l->units; u < l->units + l->n_units; u++) {
        u->slot_elems = u->padded;
        if (u->frozen >= 0) {
            layout_unit *frozen = &l->units[u->frozen];
            frozen->slot_offset = round_up(u->padded, PAGE_ELEMS);
            u->slot_elems = frozen->slot_offset + frozen->padded;
        }
        if (!u->shared && u->slot_elems > l->largest_slot) l->largest_slot = u->slot_elems;
    }
}

// Everything is cleared except tensors that backward overwrites. Padding is cleared too, because a unit of a
// different shape may have used the memory before.
static void place_cleared(layout *l) {
    int next = 0;
    for (layout_unit *u = l->units; u < l->units + l->n_units; u++) {
        int64_t from = 0;
        u->first_cleared = next;
        for (int i = u->first_place; i <= u->first_place + u->n_places; i++) {
            int end = i == u->first_place + u->n_places;
            if (!end && !l->tensors[l->places[i].tensor].backward_overwrites) continue;
            int64_t to = end ? u->padded : l->places[i].offset;
            if (to > from) l->cleared[next++] = (layout_range){ from, to - from };
            if (!end) from = to + l->places[i].elems;
        }
        u->n_cleared = next - u->first_cleared;
    }
}

// Fills buckets in backward's order, each with the fewest consecutive units that reach the size. With size 0,
// none is larger than the largest unit, and each has as many units as that allows. A shared unit gets a
// separate bucket, because its gradient is in use for most of backward.
static void fill_buckets(layout *l, int64_t size) {
    int single = 0, open = -1;
    for (int i = l->n_units - 1; i >= 0; i--) {
        layout_unit *u = &l->units[i];
        if (!u->padded) continue;
        if (u->shared) {
            u->bucket = l->n_buckets;
            l->buckets[l->n_buckets++] = (layout_bucket){ 1, 0, 1, u->padded };
            continue;
        }
        if (open >= 0 && !size && l->buckets[open].elems + u->padded > l->largest_single) open = -1;
        if (open < 0) {
            open = l->n_buckets++;
            l->buckets[open] = (layout_bucket){ 0, single++, 0, 0 };
        }
        layout_bucket *b = &l->buckets[open];
        u->bucket = open;
        u->bucket_offset = b->elems;
        b->elems += u->padded;
        b->n_units++;
        if (b->elems > l->largest_bucket) l->largest_bucket = b->elems;
        if (size && b->elems >= size) open = -1;
    }
}

int layout_init(layout *l, int ranks, int64_t bucket_size, const zero_tensor *tensors, int n_tensors,
                const zero_unit *units, int n_units) {
    ZERO_TRY(check_tables(tensors, n_tensors, units, n_units));
    *l = (layout){ .ranks = ranks, .n_tensors = n_tensors, .n_units = n_units };
    int rc = copy_tables(l, tensors, units);
    if (!rc) rc = place_units(l);
    if (rc) {
        layout_free(l);
        return rc;
    }
    place_slots(l);
    place_cleared(l);
    fill_buckets(l, bucket_size);
    return 0;
}

void layout_free(layout *l) {
    for (int i = 0; l->tensors && i < l->n_tensors; i++) free((char *)l->tensors[i].name);
    for (int i = 0; l->units && i < l->n_stored; i++) free(l->units[i].name);
    free(l->tensors);
    free(l->units);
    free(l->places);
    free(l->cleared);
    free(l->place_of);
    free(l->first_place_of_tensor);
    free(l->buckets);
    *l = (layout){ 0 };
}

const layout_place *layout_find(const layout *l, int tensor, int layer) {
    if (tensor < 0 || tensor >= l->n_tensors) {
        zero_fail(ZERO_ERR_MISUSE, "tensor %d: must be 0 to %d", tensor, l->n_tensors - 1);
        return NULL;
    }
    const zero_tensor *t = &l->tensors[tensor];
    if (layer < 0 || layer >= t->layers) {
        zero_fail(ZERO_ERR_MISUSE, "tensor %s has no layer %d, only 0 to %d", t->name, layer, t->layers - 1);
        return NULL;
    }
    return &l->places[l->place_of[l->first_place_of_tensor[tensor] + layer]];
}

void layout_intersect(const layout_unit *u, int rank, int64_t begin, int64_t count, int64_t *from,
                      int64_t *n) {
    int64_t lo = layout_before(u, rank), hi = lo + u->shard;
    if (lo < begin) lo = begin;
    if (hi > begin + count) hi = begin + count;
    *from = lo;
    *n = hi > lo ? hi - lo : 0;
}
