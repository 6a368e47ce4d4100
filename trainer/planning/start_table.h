// The table of a run: its model, batch, dtype, settings, traffic and memory. A run prints it before its first
// step. --plan prints it without a run, together with the memory that each stage would need.
#ifndef TRAINER_START_TABLE_H
#define TRAINER_START_TABLE_H
#include "../running/activations.h"

// Prints the table of a run that trains or answers prompts. resume_step: -1 for a new run.
void print_start(const GPT2 *model, int micro_batches, int steps, int resume_step);
// Prints the plan of rank 0 of run.ranks. Starts nothing and allocates only small tables. Sets model->chunk,
// scratch_bytes and recompute as a run would.
void print_plan(GPT2 *model, int micro_batches);

#endif
