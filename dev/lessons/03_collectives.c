// Lesson 3: reduce-scatter and all-gather. Fill in both functions; then: make lesson N=3
// You may call wire_rank, wire_ranks, wire_send and wire_receive (lesson.h).
#include <stdlib.h>
#include <string.h>
#include "lesson.h"

// Every rank calls this with its own gradient of n numbers, where n is a multiple of the number of ranks.
// Part r is the r-th of `ranks` equal parts. Sets own (n / ranks numbers) to the mean of part wire_rank()
// over all ranks:
//   1. send to every other rank r your part r, and nothing else
//   2. add what you receive and your own part in tree order (lesson 2), and multiply the sum by 1.0f / ranks
void reduce_scatter(const float *gradient, int n, float *own) {
    // your code
}

// Every rank calls this with its own part of n / ranks numbers. Sets all (n numbers) to the parts of all
// ranks in rank order.
void all_gather(const float *own, int n, float *all) {
    // your code
}
