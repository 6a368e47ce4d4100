// Lesson 4: who owns what? Fill in the three functions; then: make lesson N=4
#include "lesson.h"

// A unit is what is gathered at once, such as a layer: its tensors, one after another, unit_elems elements.
// Each rank owns a contiguous part of it, its shard. All shards have the same size, so the unit is padded at
// its end, and the size is a multiple of 128 elements.

// Returns the elements of one shard: the smallest multiple of 128 with which `ranks` shards hold the unit.
int64_t shard_elems(int64_t unit_elems, int ranks) {
    return 0;  // your code
}

// Sets *rank to the owner of an element of the unit, and *offset to its place in the owner's shard.
void owner(int64_t element, int64_t unit_elems, int ranks, int *rank, int64_t *offset) {
    *rank = -1, *offset = -1;  // your code
}

// A tensor has the unit's elements [begin, begin + elems). Sets *first and *n so that the rank updates the
// tensor's elements [*first, *first + *n) with AdamW: those that it owns. *first counts from the beginning of
// the tensor. If the rank owns nothing of the tensor, *n is 0 and *first does not matter.
void update_range(int rank, int ranks, int64_t unit_elems, int64_t begin, int64_t elems, int64_t *first,
                  int64_t *n) {
    *first = 0, *n = 0;  // your code
}
