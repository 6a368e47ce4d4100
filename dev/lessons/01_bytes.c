// Lesson 1: bytes of model states. Fill in the function; then: make lesson N=1
#include "lesson.h"

// Returns the bytes of model states (parameters, gradients, optimizer states) that one rank holds, with
// AdamW. `parameters` is a multiple of the ranks, so nothing is padded.
//   stage        0: every rank holds everything. 1: each rank holds 1/ranks of the optimizer states;
//                2: also of the gradients; 3: also of the parameters
//   bf16         0: everything is fp32, 4 bytes, and the optimizer states are two moments
//                1: parameters and gradients take 2 bytes each, and the optimizer states are an fp32 copy of
//                   the parameters (master weights) and two fp32 moments
//   accumulates  1: a step has several micro-batches, and the gradients stored here are their sum, which is
//                fp32 in both cases
int64_t state_bytes(int stage, int ranks, int accumulates, int bf16, int64_t parameters) {
    return 0;  // your code
}
