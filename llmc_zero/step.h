// The end of a step, from zero_finish_gradients to zero_update. Owns the norm for clipping and the loss
// scale. zero.h declares the other functions.
#ifndef LLMC_ZERO_STEP_H
#define LLMC_ZERO_STEP_H
#include "loss_scale.h"
#include "zero.h"

struct step {
    double grad_norm;
    int overflow;  // ZERO_F16: this step's gradients are not finite
    loss_scale scale;
    zero_hyper last;  // of the last update; t 0: none
};

// Allocates masters, moments and the tables of the step. Call it after grads_create.
int step_create(zero *z);
// (collective) Fails if the ranks passed different values to their last zero_update.
int step_same_updates(zero *z);
// Returns when the update and all gathers have ended and the device is idle. States may then be read and,
// after params_drop_all, changed.
int step_settle(zero *z);
loss_scale step_scale(const zero *z);
// Restores the loss scale saved by a run in this dtype.
void step_restore_scale(zero *z, zero_dtype dtype, const loss_scale *saved);

#endif
