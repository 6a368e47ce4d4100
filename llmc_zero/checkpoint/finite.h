// Looks for NaN and Inf in a checkpoint's values. The gaps between tensors may hold anything.
#ifndef LLMC_ZERO_CHECKPOINT_FINITE_H
#define LLMC_ZERO_CHECKPOINT_FINITE_H
#include "parts.h"

// values: a range of a saved state of this rank. Returns 0, or ZERO_ERR_ARGUMENT naming the first value that
// is not finite, or a master that overflows in the parameters' dtype.
int finite_values(const zero *z, int saved, state_range r, const float *values);

#endif
