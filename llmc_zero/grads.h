// Gradients: memory for backward to add to, and their reduction bucket by bucket. Each returns 0, or a
// negative error with the sentence set.
#ifndef LLMC_ZERO_GRADS_H
#define LLMC_ZERO_GRADS_H
#include "zero.h"

int grads_create(zero *z);
// ZERO_ERR_MISUSE: backward may not come to this unit now.
int grads_check(const zero *z, int unit);
// Clears what backward adds to in the unit's gradient.
int grads_open(zero *z, int unit);
// The unit's gradient is final. A bucket that is full now is reduced.
int grads_finish(zero *z, int unit);
// Returns when all reductions are done.
int grads_wait(zero *z);
// Drops what an unfinished step has collected.
int grads_begin_step(zero *z);
// At creation: the bucket's reduction, of zeros; counter gets the bytes.
int grads_rehearse(zero *z, int bucket, int64_t *counter);

#endif
