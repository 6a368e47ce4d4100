// Fits a run into a rank's memory: the LM head's parts, the level of recompute and, if the run does not fit,
// options that would.
#ifndef TRAINER_FIT_H
#define TRAINER_FIT_H
#include <stddef.h>
#include "../../llmc_zero/zero.h"
#include "../running/activations.h"

enum { MOST_RECOMPUTE = 3 };  // levels of recompute are 0 to 3
// Returns the highest level that a run chooses by itself. The plugin must know before it allocates that whole
// blocks of several units are recomputed.
static inline int most_chosen_recompute(const GPT2 *model) {
    return model->units_a_block > 1 ? MOST_RECOMPUTE - 1 : MOST_RECOMPUTE;
}

// Sets model->chunk and, without -r, model->recompute. Also plans the layers, using --tune's file if given.
// Call it before allocating the activations. Once the plugin exists, this is collective: all ranks use the
// values of the rank with the least memory. Before that, on CUDA, it does not plan the layers, since planning
// runs matmuls.
void settle_memory(GPT2 *model, const zero_config *config);
// Returns the bytes of host memory that activations and the process (bytes_beside) will take on a CPU; 0 on
// CUDA.
size_t bytes_to_come(GPT2 model, const zero_config *config);
// Sets model->chunk for these settings, and plans the layers. Returns 0, or the layers' error.
int plan_layers(GPT2 *model, const zero_config *config);

// Ends the run after an allocation failed, in zero_create or of the activations. Prints the request, the
// memory in use, and up to two sets of options whose plan would fit.
void out_of_memory(const GPT2 *model, const zero_config *config) __attribute__((noreturn));

// Plans the memory and traffic of this rank with these settings and the number of ranks in `run`. Returns 0,
// or the plugin's error if it rejects the settings.
int try_plan(const GPT2 *model, const zero_config *config, zero_plan *plan);
// Like try_plan, but returns the plan. Rejected settings end the run.
zero_plan plan_of(const GPT2 *model, const zero_config *config);
// Returns a plan's bytes on a tier, without NCCL's device memory, because that is unknown until NCCL
// connects.
size_t bytes_planned_on(const zero_plan *plan, zero_tier tier);
// Returns the bytes that this rank holds on a tier; 0 before the plugin exists.
size_t bytes_held_on(zero_tier tier);
// Returns 0 with the bytes still available for the plan and activations of a rank on the settings' device, or
// the plugin's error.
int memory_left(const zero_config *config, size_t *left);
// Returns the address space that this process will take in addition to them: stacks of threads, and code that
// oneDNN compiles. Little of it is ever touched, so it is 0 without a limit on address space or data.
size_t bytes_beside(const zero_config *config);
// Call it before any thread exists. Keeps malloc from reserving 64 MiB of address space for each thread.
void use_one_arena(void);

#endif
