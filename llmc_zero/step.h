// The step from zero_finish_gradients to zero_update. Owns the norm for clipping, and the loss scale. Its
// other functions are in zero.h.
#ifndef LLMC_ZERO_STEP_H
#define LLMC_ZERO_STEP_H
#include "loss_scale.h"
#include "zero.h"

struct step {
    double grad_norm;
    int overflow;  // ZERO_F16: this step's gradients are not finite
    loss_scale scale;
};

// Returns 0 with masters, moments and the tables of the step allocated. Call it after the gradients are
// created.
int step_create(zero *z);
loss_scale step_scale(const zero *z);
// saved: from a run in that dtype.
void step_restore_scale(zero *z, zero_dtype dtype, const loss_scale *saved);

#endif
