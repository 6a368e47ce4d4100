// Parameters: whole where the layers use them, gathered and released around their uses. Each returns 0, or a
// negative error with the sentence set.
#ifndef LLMC_ZERO_PARAMS_H
#define LLMC_ZERO_PARAMS_H
#include "state.h"

int params_create(zero *z);
// Returns with the unit gathered and open; the next ones are on their way.
int params_acquire(zero *z, int unit);
// Closes the unit unless another use of it is open, and gathers what there is room for now.
int params_release(zero *z, int unit);
// Returns when no gather is under way and the device has done its work.
int params_complete(zero *z);
// Stages 1 to 3, at creation: the unit's gather, of zeros; counter gets the bytes.
int params_rehearse(zero *z, int unit, int64_t *counter);
// Returns when no gather is under way; at stage 3 nothing is held any more.
int params_drop_all(zero *z);
// Stage 3: drops what was not gathered for this pass.
int params_begin_pass(zero *z);
// Parameters in the range become the rounded masters. d: where both are opened, for `on`.
int params_round(zero *z, device *d, device_stream on, state_range r);
// The unit's AdamW is going to be submitted.
void params_before_update(zero *z, int unit);
// A piece's new parameters, opened by the processor, are there: gathers need not read them.
void params_put(zero *z, const state_part *p);
// The unit's AdamW is done or queued, so it may be gathered.
int params_updated(zero *z, int unit);

#endif
