// The dynamic loss scale of fp16.
#ifndef LLMC_ZERO_LOSS_SCALE_H
#define LLMC_ZERO_LOSS_SCALE_H
#include "zero.h"

typedef struct {
    double value;
    int64_t steps, last_overflow;  // steps so far; the last one that overflowed, -1: none
    int left;                      // overflows left before the scale halves
} loss_scale;

void loss_scale_init(loss_scale *s, const zero_config *c);
// Returns 0 and sets the next step's scale, or ZERO_ERR_ARGUMENT on an overflow at the smallest scale.
int loss_scale_step(loss_scale *s, const zero_config *c, int overflow);

#endif
