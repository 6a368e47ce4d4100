// Lesson 9: what ZeRO does not shrink. Fill in the two functions; then: make lesson N=9
#include "lesson.h"

// Returns the number of values in the eight large activations of all blocks. Those of one block have, in
// multiples of btc = B x T x C values:
//     ln1 1, qkv 3, atty 1, residual2 1, ln2 1, fch 4, fch_gelu 4, residual3 1
// Forward keeps each of them for every block. If backward computes one of them again, all `layers` blocks
// share its memory instead.
//   recompute    0: nothing is computed again. 1: fch_gelu. 2: ln1 and ln2 too. 3: everything but residual3,
//                which is the input of the next block
int64_t kept_values(int recompute, int64_t layers, int64_t btc) { return 0; }

// Returns the bytes of the slots into which units are gathered before use: room for the unit in use and for
// `prefetch` units gathered ahead, each slot as large as the largest unit.
//   stage        0 to 3: below stage 3 every rank holds all parameters, and needs no slot
//   ranks        a slot holds the whole unit, not only this rank's shard
//   elems        elements of each of the n_units units; no more slots than units are needed
//   dtype_bytes  2 or 4
int64_t slot_bytes(int stage, int ranks, int prefetch, const int64_t *elems, int n_units, int dtype_bytes) {
    return 0;
}
