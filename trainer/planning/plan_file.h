// plan.json: the figures of a plan on the machine of --machine, for programs.
#ifndef TRAINER_PLAN_FILE_H
#define TRAINER_PLAN_FILE_H
#include "step_time.h"

// Creates the folder of -o and writes plan.json there, or ends the run. Only rank 0 writes.
void write_plan_file(const GPT2 *model, int micro_batches, const StepTimes *times);

#endif
