// Tests the layout: alignment, places, shards and buckets, for several models, 1 to 9 ranks and several
// bucket sizes. Also tests that invalid tables are refused.
#include <math.h>
#include "unit.h"
#include "../llmc_zero/layout.h"

typedef struct {
    const char *name;
    const zero_tensor *tensors;
    int n_tensors;
    const zero_unit *units;
    int n_units;
} model;

static const zero_tensor one_tensors[] = { { "w", 1, { 1 }, 1, 0, 0, 0 } };
static const zero_unit one_units[] = { { "all", 1, 1, 0 } };

static const zero_tensor tied_tensors[] = {
    { "wte", 1, { 1000 }, 1, 0, 1, 1 }, { "ln", 1, { 128 }, 4, 1, 0, 0 },  { "w", 1, { 777 }, 4, 1, 1, 1 },
    { "b", 1, { 127 }, 4, 1, 0, 0 },    { "up", 1, { 4097 }, 4, 1, 1, 1 }, { "lnf", 1, { 129 }, 1, 0, 0, 0 },
};
static const zero_unit tied_units[] = {
    { "emb", 2, 2, 1 }, { "b0", 1, 1, 0 }, { "b1", 1, 1, 0 }, { "b2", 1, 1, 0 }, { "b3", 1, 1, 0 }
};

// Units of very different sizes, one shared only through its backward uses, and tensors that start later.
static const zero_tensor mixed_tensors[] = {
    { "a", 1, { 70001 }, 1, 0, 1, 1 }, { "late", 1, { 5 }, 2, 4, 0, 0 }, { "b", 1, { 256 }, 6, 0, 0, 1 },
    { "c", 1, { 3 }, 1, 2, 1, 0 },     { "d", 1, { 9999 }, 1, 5, 1, 1 },
};
static const zero_unit mixed_units[] = {
    { "u0", 1, 1, 0 }, { "u1", 1, 1, 0 }, { "u2", 3, 1, 0 },
    { "u3", 1, 1, 0 }, { "u4", 1, 4, 2 }, { "u5", 1, 1, 0 },
};

static const zero_tensor shared_tensors[] = { { "w", 1, { 500 }, 2, 0, 1, 0 } };
static const zero_unit shared_units[] = { { "s0", 2, 2, 0 }, { "s1", 2, 1, 0 } };

// Units in which some, no or all tensors are frozen, shared and not.
static const zero_tensor frozen_tensors[] = {
    { "wte", 1, { 1000 }, 1, 0, 1, 1, .frozen = 1 },
    { "ln", 1, { 128 }, 3, 0, 0, 0 },
    { "w", 1, { 4097 }, 2, 1, 1, 1, .frozen = 1 },
    { "b", 1, { 127 }, 1, 2, 0, 0, .frozen = 1 },
    { "all", 1, { 7000 }, 1, 3, 1, 1, .frozen = 1 },
    { "head", 1, { 300 }, 1, 4, 1, 0, .frozen = 1 },
    { "last", 1, { 900 }, 1, 5, 1, 0 },
};
static const zero_unit frozen_units[] = {
    { "some, shared", 2, 2, 1 }, { "some", 1, 1, 0 },        { "some more", 1, 1, 0 },
    { "all", 1, 1, 0 },          { "all, shared", 2, 2, 0 }, { "none", 1, 1, 0 },
};

// Layers of two units each, of which the first repeats its forward
static const zero_tensor parts_tensors[] = {
    { "wte", 1, { 1000 }, 1, 0, 1, 1 },
    { "w", 1, { 4097 }, 3, 1, 1, 1, .unit_step = 2 },
    { "b", 1, { 127 }, 3, 2, 0, 0, .unit_step = 2 },
    { "v", 1, { 600 }, 2, 2, 1, 0, .unit_step = 4, .frozen = 1 },
};
static const zero_unit parts_units[] = {
    { "emb", 2, 2, 1 }, { "w0", 2, 1, 0, 1 }, { "b0", 1, 1, 0 }, { "w1", 2, 1, 0, 1 },
    { "b1", 1, 1, 0 },  { "w2", 3, 1, 0, 1 }, { "b2", 1, 1, 0 },
};

#define MODEL(m) \
    { #m, m##_tensors, ROWS(m##_tensors), m##_units, ROWS(m##_units) }
static const model models[] = { MODEL(one),    MODEL(tied),   MODEL(mixed),
                                MODEL(shared), MODEL(frozen), MODEL(parts) };
static const int64_t bucket_sizes[] = { 0, 1, 5000, 10000, INT64_MAX };
enum { MODELS = ROWS(models), SIZES = ROWS(bucket_sizes), MAX_RANKS = 9 };

// Each element of a unit must belong to at most one tensor, and be either cleared or overwritten by backward,
// never both. Adjacent cleared elements must be in one range.
static void check_elements(const model *m, const layout *l) {
    int next = 0;
    for (const layout_unit *u = l->units; u < l->units + l->n_units; u++) {
        char *owners = calloc(2, u->padded + 1), *set = owners + u->padded;
        int64_t end = -1;
        assert_non_null(owners);
        assert_int_equal(u->first_cleared, next);
        next += u->n_cleared;
        for (const layout_range *r = l->cleared + u->first_cleared; r < l->cleared + next; r++) {
            assert_true(r->offset > end && r->elems > 0 && r->offset + r->elems <= u->padded);
            for (int64_t i = r->offset; i < r->offset + r->elems; i++) set[i]++;
            end = r->offset + r->elems;
        }
        const layout_place *places = l->places + u->first_place;
        for (const layout_place *p = places; p < places + u->n_places; p++)
            for (int64_t i = p->offset; i < p->offset + p->elems; i++) {
                owners[i]++;
                set[i] += m->tensors[p->tensor].backward_overwrites;
            }
        for (int64_t i = 0; i < u->padded; i++) assert_true(owners[i] <= 1 && set[i] == 1);
        free(owners);
    }
}

// -------- places

static void check_places(const model *m, const layout *l) {
    int places = 0;
    for (int t = 0; t < m->n_tensors; t++)
        for (int layer = 0; layer < m->tensors[t].layers; layer++, places++) {
            const layout_place *p = layout_find(l, t, layer);
            assert_non_null(p);
            assert_true(p->tensor == t && p->layer == layer &&
                        p->elems == zero_tensor_elems(&m->tensors[t]) && p->decay == m->tensors[t].decay);
            assert_ptr_equal(p, &l->places[l->place_of[places]]);  // place_of is tensor-major
            const layout_unit *u = &l->units[p->unit];
            const int step = m->tensors[t].unit_step ? m->tensors[t].unit_step : 1;
            assert_int_equal(layout_unit_of(l, p), m->tensors[t].unit + layer * step);
            assert_int_equal(p->unit >= l->n_units, m->tensors[t].frozen);
            assert_in_range(p - l->places, u->first_place, u->first_place + u->n_places - 1);
            assert_int_equal(p->offset % ALIGN_ELEMS, 0);
            assert_true(p->offset >= 0 && p->offset + p->elems <= u->padded);
        }
    assert_int_equal(l->n_places, places);
    for (int t = 0; t < m->n_tensors; t++) {
        assert_string_equal(l->tensors[t].name, m->tensors[t].name);
        assert_ptr_not_equal(l->tensors[t].name, m->tensors[t].name);
        assert_null(layout_find(l, t, -1));
        assert_null(layout_find(l, t, m->tensors[t].layers));
    }
    assert_null(layout_find(l, -1, 0));
    assert_null(layout_find(l, m->n_tensors, 0));
}

// -------- shards

static void check_shards(const model *m, const layout *l) {
    int64_t elems = 0, flat = 0, shards = 0, largest = 0, slot = 0, largest_shard = 0;
    for (int i = 0; i < l->n_stored; i++) {
        const layout_unit *u = &l->units[i];
        int64_t end = 0, sum = 0;
        for (int k = u->first_place; k < u->first_place + u->n_places; k++) {
            int64_t place_end = l->places[k].offset + l->places[k].elems;
            if (place_end > end) end = place_end;
            sum += l->places[k].elems;
        }
        if (i == l->n_units) assert_true(l->trained_elems == elems && l->flat_elems == flat);
        assert_true(i < l->n_units ? u->of == i : l->units[u->of].frozen == i && u->frozen < 0 && sum > 0);
        assert_string_equal(u->name, m->units[u->of].name);
        assert_ptr_not_equal(u->name, m->units[u->of].name);  // a copy
        assert_int_equal(u->elems, sum);
        assert_int_equal(u->padded, u->shard * l->ranks);
        assert_int_equal(u->shard % ALIGN_ELEMS, 0);
        assert_true(u->padded >= end &&
                    (!end || (u->shard - ALIGN_ELEMS) * l->ranks < end));  // no more padding than necessary
        assert_int_equal(u->shard_base * l->ranks, flat);
        assert_int_equal(u->shard_base, shards);
        const zero_unit *given = &m->units[u->of];
        assert_int_equal(u->shared,
                         given->forward_uses - given->repeated_uses > 1 || given->backward_uses > 1);
        if (i < l->n_units && !u->shared && u->padded > largest) largest = u->padded;
        if (!u->shared && u->slot_elems > slot) slot = u->slot_elems;
        elems += sum;
        flat += u->padded;
        shards += u->shard;
        if (u->shard > largest_shard) largest_shard = u->shard;
        if (i == l->n_units - 1) assert_int_equal(l->largest_shard, largest_shard);
    }
    assert_int_equal(l->largest_stored_shard, largest_shard);
    assert_true(l->elems == elems && l->stored_flat_elems == flat && l->stored_shard_elems == shards &&
                l->largest_single == largest && l->largest_slot == slot);
    assert_int_equal(l->shard_elems * l->ranks, l->flat_elems);
    assert_int_equal(shards * l->ranks, flat);
}

// A slot holds a unit and, starting at a page boundary, its frozen unit.
static void check_slots(const layout *l) {
    for (const layout_unit *u = l->units; u < l->units + l->n_units; u++) {
        const layout_unit *frozen = u->frozen < 0 ? NULL : &l->units[u->frozen];
        assert_int_equal(u->slot_elems, frozen ? frozen->slot_offset + frozen->padded : u->padded);
        if (!frozen) continue;
        assert_int_equal(frozen->slot_offset * 2 % 4096, 0);
        assert_true(frozen->slot_offset >= u->padded && frozen->slot_offset - u->padded < PAGE_ELEMS);
    }
}

static void check_ranges(const layout_unit *u, int ranks, int64_t begin, int64_t count) {
    int64_t at = begin;
    for (int r = 0; r < ranks; r++) {
        int64_t from, n;
        layout_intersect(u, r, begin, count, &from, &n);
        assert_true(n >= 0);
        if (!n) continue;
        assert_int_equal(from, at);  // no gap after the previous rank's part
        assert_true(from >= r * u->shard && from + n <= (r + 1) * u->shard);
        at += n;
    }
    assert_int_equal(at, begin + count);
}

static void check_intersections(const layout *l) {
    for (int i = 0; i < l->n_stored; i++) {
        const layout_unit *u = &l->units[i];
        check_ranges(u, l->ranks, 0, u->padded);
        check_ranges(u, l->ranks, u->padded / 2, 0);
        for (int k = u->first_place; k < u->first_place + u->n_places; k++) {
            const layout_place *p = &l->places[k];
            check_ranges(u, l->ranks, p->offset, p->elems);
            check_ranges(u, l->ranks, p->offset + p->elems / 3, p->elems - p->elems / 3);
            check_ranges(u, l->ranks, p->offset + p->elems - 1, 1);
        }
    }
}

// -------- buckets

static void check_buckets(const layout *l, int64_t size) {
    int64_t wanted = size ? size : l->largest_single, largest = 0, filled = 0;
    int bucket = -1, single = 0, buckets = 0, units[16] = { 0 };
    for (int i = l->n_units - 1; i >= 0; i--) {
        const layout_unit *u = &l->units[i];
        const layout_bucket *b = &l->buckets[u->bucket];
        if (!u->padded) {
            assert_int_equal(u->bucket, -1);
            continue;
        }
        assert_in_range(u->bucket, 0, l->n_buckets - 1);
        if (u->shared) {
            assert_true(b->shared && b->n_units == 1 && b->elems == u->padded && u->bucket_offset == 0);
            buckets++;
            continue;
        }
        assert_false(b->shared);
        if (u->bucket != bucket) {  // the previous bucket must be full
            const int64_t next = size ? 0 : u->padded;
            assert_true(bucket < 0 ||
                        (filled + next >= wanted + !size && filled == l->buckets[bucket].elems));
            assert_int_equal(b->turn, single++);
            bucket = u->bucket;
            buckets++;
            filled = 0;
        } else
            assert_true(size ? filled < wanted : filled + u->padded <= wanted);
        assert_int_equal(u->bucket_offset, filled);
        filled += u->padded;
        if (filled > largest) largest = filled;
        units[u->bucket]++;
    }
    assert_true(bucket < 0 || filled == l->buckets[bucket].elems);
    for (int i = 0; i < l->n_buckets; i++)
        assert_int_equal(l->buckets[i].n_units, l->buckets[i].shared ? 1 : units[i]);
    assert_int_equal(buckets, l->n_buckets);
    assert_int_equal(l->largest_bucket, largest);
}

static void test_layouts(void **state) {
    for (const model *m = models; m < models + MODELS; m++)
        for (int ranks = 1; ranks <= MAX_RANKS; ranks++)
            for (int s = 0; s < SIZES; s++) {
                layout l;
                WORKS(
                    layout_init(&l, ranks, bucket_sizes[s], m->tensors, m->n_tensors, m->units, m->n_units));
                assert_int_equal(l.ranks, ranks);
                check_places(m, &l);
                check_elements(m, &l);
                check_shards(m, &l);
                check_slots(&l);
                check_intersections(&l);
                check_buckets(&l, bucket_sizes[s]);
                layout_free(&l);
            }
}

// -------- invalid tables

// Tables with a valid tensor w, a valid unit u, and an invalid second one, or with a single invalid tensor.
#define W(layers) \
    { "w", 1, { 8 }, layers, 0, 0, 0 }
#define U \
    { "u", 1, 1, 0 }
#define SECOND(...) { W(1), __VA_ARGS__ }, 2
#define ALONE(...) { __VA_ARGS__ }, 1

static void test_refused(void **state) {
    // clang-format off
    static const struct {
        const char *names;
        zero_tensor tensors[2];
        int n_tensors;
        zero_unit units[2];
        int n_units;
    } bad[] = {
        { "at least one tensor", { W(1) }, 0, { U }, 1 },
        { "at least one tensor", { W(1) }, 1, { U }, 0 },
        { "tensor 1 (no name)", SECOND({ NULL, 1, { 8 }, 1, 0, 0, 0 }), { U }, 1 },
        { "(wide)", SECOND({ "wide", 1, { 0 }, 1, 0, 0, 0 }), { U }, 1 },
        { "(wide)", SECOND({ "wide", 1, { -4 }, 1, 0, 0, 0 }), { U }, 1 },
        { "(wide)", SECOND({ "wide", 1, { 8 }, 0, 0, 0, 0 }), { U }, 1 },
        { "(wide)", SECOND({ "wide", 1, { 8 }, 1, -1, 0, 0 }), { U }, 1 },
        { "(wide)", SECOND({ "wide", 1, { 8 }, 1, 1, 0, 0 }), { U }, 1 },
        { "(wide)", { W(2), { "wide", 1, { 8 }, 2, 1, 0, 0 } }, 2, { U, { "v", 1, 1, 0 } }, 2 },
        { "(wide)", SECOND({ "wide", 1, { 8 }, INT32_MAX, 1, 0, 0 }), { U, { "v", 1, 1, 0 } }, 2 },
        { "(wide)", SECOND({ "wide", 1, { 8 }, 2, 0, .unit_step = 2 }), { U, { "v", 1, 1, 0 } }, 2 },
        { "(wide)", SECOND({ "wide", 1, { 8 }, 1, 0, .unit_step = -1 }), { U }, 1 },
        { "tensor 0 (w)", ALONE({ "w", 0, { 8 }, 1, 0, 0, 0 }), { U }, 1 },
        { "tensor 0 (w)", ALONE({ "w", 2, { 8, 0 }, 1, 0, 0, 0 }), { U }, 1 },
        { "tensor 0 (w)", ALONE({ "w", 5, { 8, 1, 1, 1 }, 1, 0, 0, 0 }), { U }, 1 },
        { "tensor 0 (w)", ALONE({ "w", 2, { 1LL << 40, 1LL << 40 }, 1, 0, 0, 0 }), { U }, 1 },
        { "(w): with it the table has 9.223372036854776e+18 elements",
          ALONE({ "w", 1, { INT64_MAX }, 1, 0, 0, 0 }), { U }, 1 },
        { "(wide): with it the table has 1000000000000008 elements, more than 1000000000000000",
          SECOND({ "wide", 1, { 1000000000000000 }, 1, 0, 0, 0 }), { U }, 1 },
        { "(w): with it the table has 1600000000000000", ALONE({ "w", 1, { 800000000000000 }, 2, 0, 0, 0 }),
          { U, { "v", 1, 1, 0 } }, 2 },
        { "tensor 0 (w): decay -1", ALONE({ "w", 1, { 8 }, 1, 0, -1, 0 }), { U }, 1 },
        { "lr_factor inf must be", ALONE({ "w", 1, { 8 }, 1, 0, 0, 0, INFINITY }), { U }, 1 },
        { "unit 1 (no name)", ALONE(W(2)), { U, { NULL, 1, 1, 0 } }, 2 },
        { "unit 1 (v)", ALONE(W(2)), { U, { "v", 1, 1, -1 } }, 2 },
        { "unit 1 (v)", ALONE(W(2)), { U, { "v", 0, 1, 0 } }, 2 },
        { "unit 1 (v)", ALONE(W(2)), { U, { "v", 1, 0, 0 } }, 2 },
        { "unit 1 (v)", ALONE(W(2)), { U, { "v", 1, 2, 3 } }, 2 },
        { "unit 1 (v)", ALONE(W(2)), { U, { "v", 2, 1, 0, 2 } }, 2 },
        { "unit 1 (v)", ALONE(W(2)), { U, { "v", 2, 1, 0, -1 } }, 2 },
        { "unit 1 (v) has no", ALONE(W(1)), { U, { "v", 1, 1, 0 } }, 2 },
    };
    // clang-format on
    for (size_t i = 0; i < ROWS(bad); i++) {
        layout l;
        int rc = layout_init(&l, 2, 0, bad[i].tensors, bad[i].n_tensors, bad[i].units, bad[i].n_units);
        REFUSED(rc, ZERO_ERR_ARGUMENT, bad[i].names);
    }
}

int main(void) {
    const struct CMUnitTest layout_tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(layout_tests, NULL, NULL) != 0;
}
