// The step from zero_reduce to zero_update. It owns the norm that clips, and the loss scale. Its other
// functions are in zero.h.
#ifndef LLMC_ZERO_STEP_H
#define LLMC_ZERO_STEP_H
#include "loss_scale.h"
#include "zero.h"

struct step {
    double grad_norm;
    int overflow;  // ZERO_F16: the gradients of this step are not finite
    loss_scale scale;
};

// Returns 0 with masters, moments and the tables of the step allocated. The gradients come first.
int step_create(zero *z);
loss_scale step_scale(const zero *z);
// saved: of a run in that dtype.
void step_restore_scale(zero *z, zero_dtype dtype, const loss_scale *saved);

#endif
