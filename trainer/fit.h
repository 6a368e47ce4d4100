// What a rank needs of memory and what it can have: the LM head's parts, the level of recompute, and options
// that would fit if nothing does.
#ifndef TRAINER_FIT_H
#define TRAINER_FIT_H
#include <stddef.h>
#include "../llmc_zero/zero.h"
#include "activations.h"

enum { MOST_RECOMPUTE = 3 };  // levels of recompute are 0 to 3

// Settles model->chunk and, without -r, model->recompute, and plans the layers, with --tune's file. Call it
// before allocating the activations. Once the plugin exists it is collective: all ranks use what the one with
// the least memory needs. Before that it leaves out the layers' scratch on CUDA, since planning that runs
// matmuls.
void settle_memory(GPT2 *model, const zero_config *config);
// Bytes of host memory that activations will take on a CPU; 0 on CUDA.
size_t activations_to_come(GPT2 model, const zero_config *config);
// Settles model->chunk for these settings and plans the layers. Returns 0, or the layers' error.
int plan_layers(GPT2 *model, const zero_config *config);

// Ends the run after the plugin has returned ZERO_ERR_MEMORY or no activation: prints the request and the
// memory in use, and at most two sets of options with which the run would fit, according to its plan.
void out_of_memory(const GPT2 *model, const zero_config *config) __attribute__((noreturn));

// Writes what a rank would hold and send with these settings; its number and the number of ranks are those in
// `run`. Returns 0, or the plugin's error if it rejects the settings.
int try_plan(const GPT2 *model, const zero_config *config, zero_plan *plan);
// Returns the same. Rejected settings end the run.
zero_plan plan_of(const GPT2 *model, const zero_config *config);
// Bytes of a tier in it. NCCL's device memory is not known before it is connected.
size_t bytes_planned_on(const zero_plan *plan, zero_tier tier);
// Bytes that the run holds in host memory (of a run on CUDA), on NVMe, or on its device; 0 before the plugin
// exists.
size_t bytes_held_on(zero_tier tier);
// Returns 0 with the bytes that a rank can still get of the settings' device, or the plugin's error.
int memory_left(const zero_config *config, size_t *left);

#endif
