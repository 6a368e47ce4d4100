// What to run: options that fit into memory, after a run was refused or, with --fit, the fastest ones.
#ifndef TRAINER_ADVICE_H
#define TRAINER_ADVICE_H
#include "../../llmc_zero/zero.h"
#include "../running/activations.h"

// Ends the run after an allocation failed, in zero_create or of the activations. Prints the request, the
// memory in use, and up to two sets of options whose plan would fit.
void out_of_memory(const GPT2 *model, const zero_config *config) __attribute__((noreturn));

// Returns the seconds of a step of this model on the machine of --machine, with the options in opt.
typedef double (*StepTimer)(void *trainer, const GPT2 *model);
// Prints the three fastest sets of options that fit on the machine of --machine, and faster ones that do not.
// All train the same, with the options that the user has set.
void print_fastest(const GPT2 *model, int micro_batches, StepTimer timer, void *trainer);

#endif
