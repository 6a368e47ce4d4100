// Geometry: tensors -> units -> padded flat buffers -> shards -> buckets, for any number of ranks. Every
// offset is computed here.
//
//   unit    | tensor | tensor | .. | pad |        every tensor starts at a multiple of ALIGN_ELEMS
//   shards  |  rank 0  |  rank 1  |  ..  |        N equal contiguous parts of the padded unit
//
// A flat buffer of units holds all units in order; one of shards, a rank's shard of each unit.
//
// A unit's frozen tensors are stored as a separate unit, its frozen unit, which has parameters and no other
// state. The table's units come first, so frozen units change neither the offsets of those units nor the
// buffers of other states. A unit of the table that has only frozen tensors has 0 elements.
#ifndef LLMC_ZERO_LAYOUT_H
#define LLMC_ZERO_LAYOUT_H
#include "zero.h"

enum { ALIGN_ELEMS = 128 };  // 256 bytes of bf16, 512 of fp32; a multiple of SUM_PIECE
enum { PAGE_ELEMS = 2048 };  // whole pages, even at 16 bits: files are read directly into slots

static inline int64_t round_down(int64_t n, int64_t to) { return n / to * to; }
static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

typedef struct {
    int tensor, layer;
    int unit;                // the unit that stores it: of the table, or a frozen unit
    int64_t offset, elems;   // inside the unit
    float lr_factor, decay;  // factors of zero_hyper's lr and weight_decay
} layout_place;

typedef struct {
    int64_t offset, elems;
} layout_range;  // inside the unit

typedef struct {
    char *name;
    int forward_uses, backward_uses;
    int first_uses;    // the number of forward uses before backward; the others repeat them during backward
    int reading_uses;  // the number of backward uses that read parameters; they come first
    int shared;        // used more than once, repetitions aside: it has private memory for parameters and
                       // gradients
    int of;            // of a frozen unit: the table's unit that it belongs to; otherwise the unit itself
    int frozen;        // its frozen unit; -1: none
    int64_t elems, padded, shard;  // without padding; N * shard; elements of one rank's part
    int64_t shard_base;            // offset of the unit in a flat buffer of shards
    int64_t slot_offset;           // of a frozen unit, in the slot of its unit
    int64_t slot_elems;            // of a unit of the table: with its frozen unit
    int first_place, n_places;
    int first_cleared, n_cleared;
    int bucket;             // the bucket of its gradients; -1: it has none
    int64_t bucket_offset;  // offset of its gradients in the bucket, in elements
} layout_unit;

typedef struct {
    int shared;  // 1: the bucket of a shared unit, which has a private buffer
    int turn;    // number among the others: they take the buffers in turn
    int n_units;
    int64_t elems;
} layout_bucket;

typedef struct {
    int ranks, n_tensors, n_places, n_buckets;
    int n_units;   // of the table
    int n_stored;  // including the frozen units, which follow them
    zero_tensor *tensors;
    layout_unit *units;               // (n_stored)
    layout_place *places;             // unit by unit
    layout_range *cleared;            // unit by unit: its gradient, except tensors that backward overwrites
    int *first_place_of_tensor;       // (n_tensors + 1) into place_of: tensor-major
    int *place_of;                    // (n_places) tensor-major index -> index into places
    layout_bucket *buckets;           // in the order in which backward fills them
    int64_t elems, trained_elems;     // parameters, without padding; those that are not frozen
    int64_t flat_elems, shard_elems;  // of a flat buffer of the table's units, of their shards
    int64_t largest_shard;            // of the table's units
    int64_t stored_flat_elems, stored_shard_elems, largest_stored_shard;  // of all units
    int64_t largest_single;  // padded elements of the largest unit used once, or 0
    int64_t largest_slot;    // elements of the largest slot of a unit used once, or 0
    int64_t largest_bucket;  // elements of the largest bucket of units used once
} layout;

int layout_init(layout *l, int ranks, int64_t bucket_size, const zero_tensor *tensors, int n_tensors,
                const zero_unit *units, int n_units);
void layout_free(layout *l);

// Returns the layer of a tensor that belongs to a unit of the table; -1: none does.
static inline int layout_layer(const zero_tensor *t, int unit) {
    const int step = t->unit_step ? t->unit_step : 1, from = unit - t->unit;
    return from >= 0 && from % step == 0 && from / step < t->layers ? from / step : -1;
}

// Returns the place of a tensor's layer, or NULL with ZERO_ERR_MISUSE if it does not exist.
const layout_place *layout_find(const layout *l, int tensor, int layer);
// Returns the unit of the table that the place belongs to.
static inline int layout_unit_of(const layout *l, const layout_place *p) { return l->units[p->unit].of; }

// Iterates over the units that store a unit of the table, except empty ones:
//
//     for (int s = layout_first_stored(l, unit); s >= 0; s = l->units[s].frozen)
static inline int layout_first_stored(const layout *l, int unit) {
    return l->units[unit].padded ? unit : l->units[unit].frozen;
}

// Returns the number of elements up to the end of the unit's last tensor, the same for any number of ranks.
static inline int64_t layout_extent(const layout *l, int unit) {
    const layout_unit *u = &l->units[unit];
    const layout_place *last = &l->places[u->first_place + u->n_places - 1];
    return u->n_places ? last->offset + last->elems : 0;
}
// Returns the number of elements before part `part` of a unit.
static inline int64_t layout_before(const layout_unit *u, int part) { return part * u->shard; }
// Returns the offset of part `part` of a unit in a flat buffer with every group-th part of each unit. group
// 1: a buffer of whole units; all ranks: of a rank's shards.
static inline int64_t layout_offset(const layout *l, int unit, int part, int group) {
    const layout_unit *u = &l->units[unit];
    return u->shard_base * (l->ranks / group) + part / group * u->shard;
}

// Intersects the unit's elements [begin, begin + count) with the rank's shard. The result is [*from, *from +
// *n), empty if *n is 0. All offsets count from the start of the unit.
void layout_intersect(const layout_unit *u, int rank, int64_t begin, int64_t count, int64_t *from,
                      int64_t *n);

#endif
