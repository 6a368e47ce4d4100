// What the uses of the units allow at this point. Each returns 0, or ZERO_ERR_MISUSE with a sentence that
// begins with the caller's name.
#ifndef LLMC_ZERO_USES_H
#define LLMC_ZERO_USES_H
#include "zero.h"

// No unit is open.
int uses_closed(const zero *z, const char *caller);
// Every unit has had all its forward and backward uses of this micro-batch.
int uses_done(const zero *z, const char *caller);
// The plugin was not made for inference, so it has gradients and an optimizer.
int uses_may_train(const zero *z, const char *caller);
// No training step is under way, and no unit is open.
int uses_outside_step(const zero *z, const char *caller);

#endif
