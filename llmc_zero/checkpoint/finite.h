// Looks for values that are not finite in what a checkpoint holds. The gaps between tensors may hold any.
#ifndef LLMC_ZERO_CHECKPOINT_FINITE_H
#define LLMC_ZERO_CHECKPOINT_FINITE_H
#include "parts.h"

// values: those of the range of a saved state of this rank. Returns 0, or ZERO_ERR_ARGUMENT naming the first
// one that is not finite, or a master that is none any more in the parameters' dtype.
int finite_values(const zero *z, int saved, state_range r, const float *values);

#endif
