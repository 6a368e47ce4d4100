// Lesson 2: the mean of the ranks' gradients, the naive way. Fill in both functions; then: make lesson N=2
// You may call wire_rank, wire_ranks, wire_send, wire_receive, to_bf16 and from_bf16 (lesson.h).
#include <stdlib.h>
#include "lesson.h"

// Every rank calls this with its own gradient of n numbers. Sets them to the mean over all ranks:
//   1. send the whole gradient to every other rank, and receive theirs
//   2. add the gradients in tree order, whichever rank this is: those of ranks 0 and 1, of 2 and 3, ..; then
//      these sums in the same way, until one is left. A sum without a neighbour moves up unchanged
//   3. multiply the sum by 1.0f / ranks
void average_f32(float *gradient, int n) {
    // your code
}

// The same for gradients in bf16. They are sent as bf16, 2 bytes each, and added in fp32; only the mean is
// rounded to bf16.
void average_bf16(uint16_t *gradient, int n) {
    // your code
}
