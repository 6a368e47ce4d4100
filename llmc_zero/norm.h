// The sum of squares of this rank's part of each unit's gradients, for the global norm.
#ifndef LLMC_ZERO_NORM_H
#define LLMC_ZERO_NORM_H
#include "device/device.h"
#include "zero.h"

int norm_create(zero *z);
// Gradients that lie away from the device are summed when they are reduced, while they are there.
int norm_goes_along(const zero *z);
// Queues the sum of the unit's part, which is at `grads`, on stream `on`.
int norm_sum_unit(zero *z, device_stream on, int unit, const void *grads);
// Queues the sums of all units that were not summed when they were reduced.
int norm_sum_rest(zero *z);

#endif
