// --plan: what a run would hold and send, and whether it fits, without running.
#ifndef TRAINER_PLAN_H
#define TRAINER_PLAN_H
#include "activations.h"

// Prints the plan of rank 0 of run.ranks. Starts nothing and allocates only small tables. Settles what a run
// would (model->chunk, scratch_bytes and recompute).
void print_plan(GPT2 *model, int micro_batches);

#endif
