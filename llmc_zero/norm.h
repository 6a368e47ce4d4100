// The global norm of the gradients. Owns the table of this rank's part of each unit and the sums of squares.
// Each function returns 0, or a negative error with the sentence set.
#ifndef LLMC_ZERO_NORM_H
#define LLMC_ZERO_NORM_H
#include "device/device.h"
#include "zero.h"

struct norm {
    norm_table table;  // of this rank's part of each unit
};

int norm_create(zero *z);
// 1: gradients stored off the device are summed during their reduction, while they are on it.
int norm_goes_along(const zero *z);
// Queues the sum of the unit's part, which is at `grads`, on stream `on`.
int norm_sum_unit(zero *z, device_stream on, int unit, const void *grads);
// Sums the squares of all ranks' reduced gradients.
int norm_sum_all(zero *z, double *squares);

#endif
