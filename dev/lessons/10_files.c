// Lesson 10: what a step reads and writes. Fill in the function; then: make lesson N=10
#include "lesson.h"

// Sets *read and *written to the bytes that one rank reads from its files and writes to them in one step, at
// stage 3 in bf16, with parameters, masters and moments on NVMe. Each of the files holds 1/ranks of a unit.
//   elems          elements of each of the n_units units; their sizes need no padding
//   micro_batches  passes in a step. In each, forward and then backward read the parameters of every unit,
//                  except of a unit that is still in memory: the last, with which backward begins, and in all
//                  passes but the first the first unit, which the backward pass before has used last
//   gradients      1: gradients are on NVMe too, as bf16, or with several micro-batches as an fp32 sum. Each
//                  micro-batch writes them, and all but the first also read the sum of those before
// The update reads the masters and both moments (fp32), and gradients if they are on NVMe. It writes masters
// and moments, and the new parameters (bf16).
void file_bytes(const int64_t *elems, int n_units, int ranks, int micro_batches, int gradients, int64_t *read,
                int64_t *written) {
    *read = 0;
    *written = 0;
}
