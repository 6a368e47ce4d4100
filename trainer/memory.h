// What fits into memory: the LM head's parts, the level of recompute, and suggestions if nothing fits.
#ifndef TRAINER_MEMORY_H
#define TRAINER_MEMORY_H
#include <stddef.h>
#include "../llmc_zero/zero.h"
#include "activations.h"

// (collective) Settles model->chunk and, without -r, model->recompute, and plans the layers. Call it before
// allocating the activations. All ranks use what the one with the least memory needs.
void settle_memory(GPT2 *model, const zero_config *config);

// The same for --plan, without other ranks. On CUDA it leaves out the layers' scratch, since planning that
// runs matmuls.
void settle_memory_alone(GPT2 *model, const zero_config *config);
// Bytes of host memory that activations will take on a CPU; 0 on CUDA.
size_t activations_to_come(GPT2 model, const zero_config *config);
enum { MOST_RECOMPUTE = 3 };  // levels of recompute are 0 to 3

// Ends the run after the plugin has returned ZERO_ERR_MEMORY or no activation: prints the request and the
// memory in use, and at most two sets of options with which the run would fit, according to its plan.
void out_of_memory(const GPT2 *model, const zero_config *config) __attribute__((noreturn));

// What a rank would hold and send with these settings; its number and the number of ranks are those in `run`.
zero_plan plan_of(const GPT2 *model, const zero_config *config);
// Bytes of a tier in it. NCCL's device memory is not known before it is connected.
size_t bytes_planned_on(const zero_plan *plan, zero_tier tier);

enum { MEMORY_LINES = ZERO_PLAN_LINES + 4 };  // the plugin's and the activations'
typedef struct {
    zero_memory_line lines[MEMORY_LINES];
    int n_lines;
} MemoryTable;
// Prints the table, and the plan's formulas beside its sums.
void print_memory_table(const MemoryTable *t, const zero_plan *plan);
// Prints the memory table of this rank.
void print_memory(void);

// Bytes that the run holds in host memory (of a run on CUDA), on NVMe, or on its device.
size_t bytes_held_on(zero_tier tier);

#endif
