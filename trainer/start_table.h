// The table of a run: its model, batch, numbers, settings, traffic and memory. A run prints it before its
// first step, and --plan prints it without a run, with what each stage would need.
#ifndef TRAINER_START_TABLE_H
#define TRAINER_START_TABLE_H
#include "activations.h"

// Prints the table of a run that trains or answers prompts. resume_step: -1: it is new.
void print_start(const GPT2 *model, int micro_batches, int steps, int resume_step);
// Prints the plan of rank 0 of run.ranks. Starts nothing and allocates only small tables. Settles what a run
// would (model->chunk, scratch_bytes and recompute).
void print_plan(GPT2 *model, int micro_batches);
// Prints what this rank of a run holds.
void print_memory(void);

#endif
