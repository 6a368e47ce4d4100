// Lesson 5: buckets of gradients. Fill in the two functions; then: make lesson N=5
#include "lesson.h"

// Backward finishes the units' gradients one by one, the last unit first: unit n_units-1, n_units-2, .., 0.
// A finished gradient waits in the open bucket. When the bucket holds at least bucket_size elements, or when
// the last gradient is in it, all its units leave in one reduction, and the next unit opens a new bucket.
//   elems[u]  the number of elements of unit u
// Sets reduction[u] to the number of the reduction with which unit u leaves: 0 for the first of the pass.
// Returns the number of reductions.
int fill_buckets(const int64_t *elems, int n_units, int64_t bucket_size, int *reduction) {
    return 0;  // your code
}

// Returns the bytes of memory for buckets that a rank needs, with fp32 gradients. One bucket is filled while
// the one before it is sent, so there are two buffers, unless there is only one reduction. Each buffer must
// be large enough for any of the buckets. Call fill_buckets if it helps: n_units is at most 16.
int64_t bucket_memory(const int64_t *elems, int n_units, int64_t bucket_size) {
    return 0;  // your code
}
