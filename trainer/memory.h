// What fits into memory: the head's parts, the level of recompute, and what to do where nothing fits.
#ifndef TRAINER_MEMORY_H
#define TRAINER_MEMORY_H
#include <stddef.h>
#include "../llmc_zero/zero.h"
#include "activations.h"

// (collective) Settles model->chunk and, where -r is not given, model->recompute, and plans the layers. Comes
// before the activations are allocated. All ranks take what the one with the least memory needs.
void settle_memory(GPT2 *model, const zero_config *config);

// Ends the run after the plugin has returned ZERO_ERR_MEMORY or no activation: says what was asked for and
// held, and which stage, recompute and batch would make the run fit.
void out_of_memory(const GPT2 *model, const zero_config *config) __attribute__((noreturn));

// Prints the memory table of this rank.
void print_memory(void);

// Bytes that a run on CUDA keeps in the host's memory.
size_t host_bytes(void);

#endif
