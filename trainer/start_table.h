// The table that a run prints before its first step.
#ifndef TRAINER_START_TABLE_H
#define TRAINER_START_TABLE_H
#include "activations.h"

void print_start(const GPT2 *model, int micro_batches, int steps, int resume_step);

#endif
