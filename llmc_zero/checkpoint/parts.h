// What a checkpoint holds of the states, and which rank has which part of it in its file.
//
//   rank r's file    unit 0: masters, first moment, second moment | unit 1: ..      all fp32
//
// A rank saves the elements of its shard that belong to tensors, or lie between them. The padding at the end
// of a unit depends on the number of ranks and is not saved, so an element has the same place in its unit at
// any number of ranks.
#ifndef LLMC_ZERO_CHECKPOINT_PARTS_H
#define LLMC_ZERO_CHECKPOINT_PARTS_H
#include "at_work.h"

enum { SAVED = 3 };
extern const zero_value saved_values[SAVED];
extern const char *const saved_names[SAVED];  // in the manifest

// Where a unit's part of a rank lies.
typedef struct {
    int unit;
    int64_t from, elems;  // of the unit
    int64_t at[SAVED];    // bytes from the start of the file, of each saved state
} saved_part;

// Fills parts (n_units) with those of the rank that have elements. Returns how many; *bytes: of its file.
int parts_of_rank(const layout *l, int rank, saved_part *parts, int64_t *bytes);

// Calls fn for this rank's part of every saved state, in the order of a file, in pieces of VALUES_CHUNK
// elements at most, and says after each that this rank is at work. padded: 1: for the padding too.
typedef int (*piece_visitor)(void *ctx, int saved, state_range r);
int visit_parts(at_work *w, int padded, piece_visitor fn, void *ctx);

#endif
