// The table that a run prints before its first step.
#ifndef TRAINER_START_TABLE_H
#define TRAINER_START_TABLE_H
#include "activations.h"

// Prints the rows of a run that answers prompts, and how much its passes process at once.
void print_passes(const GPT2 *model);
void print_inference_start(const GPT2 *model);
void print_start(const GPT2 *model, int micro_batches, int steps, int resume_step);

#endif
