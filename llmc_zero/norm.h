// The global norm of the gradients. Owns the list of this rank's parts and the exact sum of their squares,
// which is the same however the gradients are split.
#ifndef LLMC_ZERO_NORM_H
#define LLMC_ZERO_NORM_H
#include "device/device.h"
#include "plan.h"
#include "zero.h"

struct norm {
    stretches parts;  // this rank's part of each unit
    uint64_t *words;  // (EXACT_WORDS) the sum of the step's squares so far, in device memory
};

int norm_create(zero *z);
int norm_begin_step(zero *z);
// Returns 1 if gradients are stored off the device. Their squares are then added during their reduction.
int norm_goes_along(const zero *z);
// Queues the addition of the squares of this rank's part of the unit, at `grads`, on stream `on`.
int norm_sum_unit(zero *z, device_stream on, int unit, const void *grads);
// Sums the squares of all ranks' reduced gradients, and gathers every rank's `last`. Until the next call,
// rank r's values are at of_all[r * NORM_VALUES].
int norm_sum_all(zero *z, const double last[HYPER_VALUES], const double **of_all, double *squares);

#endif
