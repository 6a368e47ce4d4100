// Which states a checkpoint holds, and which part of them is in which rank's file.
//
//   rank r's file    unit 0: masters, first moment, second moment | unit 1: ..      all fp32
//
// A rank saves the elements of its shard that are in tensors or between them. The padding at the end of a
// unit depends on the number of ranks and is not saved, so an element's index in its unit is the same at any
// number of ranks.
#ifndef LLMC_ZERO_CHECKPOINT_PARTS_H
#define LLMC_ZERO_CHECKPOINT_PARTS_H
#include "at_work.h"

enum { SAVED = 3 };
extern const zero_value saved_values[SAVED];
extern const char *const saved_names[SAVED];  // in the manifest

// A rank's part of a unit, and where it is in the file.
typedef struct {
    int unit;
    int64_t from, elems;  // in the unit
    int64_t at[SAVED];    // byte offsets of each saved state in the file
} saved_part;

// Fills parts (n_units) with the rank's parts that are not empty. Returns their number; *bytes: the size of
// its file.
int parts_of_rank(const layout *l, int rank, saved_part *parts, int64_t *bytes);

// Calls fn for this rank's part of every saved state, in file order, in pieces of at most VALUES_CHUNK
// elements, and reports after each that this rank is working. padded: 1: visits the padding too.
typedef int (*piece_visitor)(void *ctx, int saved, state_range r);
int visit_parts(at_work *w, int padded, piece_visitor fn, void *ctx);

#endif
