// The states in a checkpoint, and the part of them in each rank's file.
//
//   rank r's file    unit 0: masters, first moment, second moment | unit 1: ..      all fp32
//
// Frozen units follow the others. They have only parameters, saved like masters. A rank saves its shard
// without the unit's padding, which depends on the number of ranks; an element's index in its unit does not.
#ifndef LLMC_ZERO_CHECKPOINT_PARTS_H
#define LLMC_ZERO_CHECKPOINT_PARTS_H
#include "../internal.h"

enum { SAVED = 3 };  // masters, and up to two states of the optimizer (update_states)
extern const zero_value saved_values[SAVED];
extern const char *const saved_names[SAVED];  // their names in the manifest

// A rank's part of a unit, and its place in the file.
typedef struct {
    int unit;
    int64_t from, elems;  // in the unit
    int64_t at[SAVED];    // offset of each saved state, in bytes; -1: the unit does not have it
} saved_part;

// Fills parts (n_stored) with the rank's non-empty parts, with up to n_saved states each, and returns their
// number. Sets *bytes to its file's size.
int parts_of_rank(const layout *l, int rank, int n_saved, saved_part *parts, int64_t *bytes);

// A piece of a saved state of this rank, of at most VALUES_CHUNK elements.
typedef struct {
    const zero *z;
    int padded;  // 1: includes the padding
    int n_saved;
    int saved;  // the state's index
    state_range at;
} saved_piece;

// Iterates over everything that this rank saves, in file order:
//
//     for (saved_piece p = pieces_of(z, 0); pieces_next(&p);)
static inline saved_piece pieces_of(const zero *z, int padded) {
    return (saved_piece){
        .z = z, .n_saved = 1 + z->config.update_states, .padded = padded, .at.part = z->comm.group.rank
    };
}
int pieces_next(saved_piece *p);  // returns 0 after the last

// Returns 0, or ZERO_ERR_ARGUMENT and the first NaN, Inf, or master that overflows in the parameters' dtype.
int finite_values(const zero *z, int saved, state_range r, const float *values);

#endif
