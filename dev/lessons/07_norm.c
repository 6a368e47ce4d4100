// Lesson 7: the gradient norm. Fill in the function; then: make lesson N=7
#include "lesson.h"

// Each rank holds one shard of every unit's gradient. All ranks call this function, and all must return the
// same bits: the norm of the whole gradient, the square root of the sum of all squares.
//   shards[u]  this rank's shard of unit u, elems[u] numbers; elems[u] is a multiple of 128
// The library's rule, which gives the same bits at every stage and on any number of ranks:
//   1. each rank sums the squares of each 128 elements in fp64, each element converted to double before it is
//      squared
//   2. it adds these sums as integers: multiplied by 2^40 they are whole numbers here, and all of them
//      together fit into an unsigned __int128
//   3. it sends its integer, 16 bytes, to every other rank, and adds theirs
//   4. it converts the result to double and multiplies by 2^-40: the only rounding of the whole sum
// wire_rank(), wire_ranks(), wire_send(to, data, bytes) and wire_receive(from, data, bytes) are explained in
// lesson.h. ldexp(x, 40) is x times 2^40; it and sqrt() are in math.h.
double global_norm(const float *const *shards, const int64_t *elems, int n_units) {
    return 0;  // your code
}
