// Fits a run into a rank's memory: the LM head's parts and the level of recompute.
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

// Plans the memory and traffic of this rank with these settings and the number of ranks in `run`. Returns 0,
// or the plugin's error if it rejects the settings.
int try_plan(const GPT2 *model, const zero_config *config, zero_plan *plan);
// Like try_plan, but returns the plan. Rejected settings end the run.
zero_plan plan_of(const GPT2 *model, const zero_config *config);

#endif
