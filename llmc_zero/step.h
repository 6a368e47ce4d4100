// The step: norm, clipping and AdamW. The rest of its functions are in zero.h.
#ifndef LLMC_ZERO_STEP_H
#define LLMC_ZERO_STEP_H
#include "zero.h"

// Returns 0 with masters, moments and the tables of the step allocated. The gradients come first.
int step_create(zero *z);

#endif
