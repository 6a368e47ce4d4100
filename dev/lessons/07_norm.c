// Lesson 7: the gradient norm. Fill in the function; then: make lesson N=7
#include "lesson.h"

// Each rank holds one shard of every unit's gradient. All ranks call this function, and all must return the
// same bits: the norm of the whole gradient, the square root of the sum of all squares.
//   shards[u]  this rank's shard of unit u, elems[u] numbers
// The library's rule, which gives the same bits at every stage:
//   1. each rank sums the squares of each of its shards: one fp64 sum for each unit, elements in order, each
//      element converted to double before it is squared
//   2. each rank sends its n_units sums to every other rank: 8 bytes each
//   3. each rank adds all sums in the same order: unit 0 of rank 0, of rank 1, .., then unit 1 of rank 0, ..
// wire_rank(), wire_ranks(), wire_send(to, data, bytes) and wire_receive(from, data, bytes) are explained in
// lesson.h. There are at most 16 units and 8 ranks. sqrt() is in math.h.
double global_norm(const float *const *shards, const int64_t *elems, int n_units) {
    return 0;  // your code
}
