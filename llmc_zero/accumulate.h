// Accumulation by layers (zero_config.accumulate_layers): the sum of a unit's gradients over the
// micro-batches of one backward use, before they are reduced. Owns the gradient of the current micro-batch
// and the partial sums.
#ifndef LLMC_ZERO_ACCUMULATE_H
#define LLMC_ZERO_ACCUMULATE_H
#include "zero.h"

struct accumulate {
    char *micro;      // (largest unit) the micro-batch's gradient; NULL: a step has only one, in its bucket
    float *partials;  // (plan_partial_sums - 1, elems) sums of 1, 2, 4 .. micro-batches
    int64_t elems;
    int unit;  // the unit that uses them; -1: none
};

int accumulate_create(zero *z);
// Discards the sums of an unfinished step.
void accumulate_begin_step(zero *z);
// Returns ZERO_ERR_MISUSE if another unit's sum is in progress.
int accumulate_check(const zero *z, int unit);
// Begins the unit's sum. Returns the memory for a micro-batch's gradient; NULL: it belongs into the bucket.
char *accumulate_open(zero *z, int unit);
// Adds the gradient of this micro-batch. After the last one, *sum has the result (padded elements of the
// unit, fp32); until then it holds a partial sum.
int accumulate_add(zero *z, int unit, int micro, float *sum);

#endif
