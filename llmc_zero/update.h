// AdamW on the parts that this rank owns, piece by piece.
#ifndef LLMC_ZERO_UPDATE_H
#define LLMC_ZERO_UPDATE_H
#include "zero.h"

int update_create(zero *z);
void update_free(zero *z);
// After each backward use: submits what can be updated already, if the step's end is promised. Else begins to
// read what is updated first.
int update_during_backward(zero *z);
// The step ends without an update.
void update_discard(zero *z);
// What the last update has made becomes the parameters, if it was delayed.
int update_publish(zero *z);
// Returns when the last update and all gathers have ended and the device has done its work, so that states may
// be read. With params_drop_all after it they may be changed.
int update_settle(zero *z);
// What has a thread may still be under way when it returns.
int update_units(zero *z, const zero_hyper *h, double grad_scale);

#endif
