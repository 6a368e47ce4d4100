// What fits into memory: the head's parts, the level of recompute, and what to do where nothing fits.
#ifndef TRAINER_MEMORY_H
#define TRAINER_MEMORY_H
#include <stddef.h>
#include "../llmc_zero/zero.h"
#include "activations.h"

// (collective) Settles model->chunk and, where -r is not given, model->recompute, and plans the layers. Comes
// before the activations are allocated. All ranks take what the one with the least memory needs.
void settle_memory(GPT2 *model, const zero_config *config);

// The same for --plan, without other ranks. On CUDA it leaves the layers' scratch out, for which they would
// run products.
void settle_memory_alone(GPT2 *model, const zero_config *config);
// Bytes of the host's memory that activations will take on a processor; 0 on CUDA.
size_t activations_to_come(GPT2 model, const zero_config *config);
enum { MOST_RECOMPUTE = 3 };  // levels of recompute are 0 to 3

// Ends the run after the plugin has returned ZERO_ERR_MEMORY or no activation: prints what was asked for and
// held, and at most two sets of options with which the run would fit, by the plan of each.
void out_of_memory(const GPT2 *model, const zero_config *config) __attribute__((noreturn));

// What a rank would hold and send with these settings, its number and that of the ranks as in `run`.
zero_plan_info plan_of(const GPT2 *model, const zero_config *config);
// Bytes of a tier in it. What NCCL takes of the device is not known before it is connected.
size_t bytes_planned_on(const zero_plan_info *plan, zero_tier tier);

enum { MEMORY_LINES = ZERO_PLAN_LINES + 4 };  // the plugin's and the activations'
typedef struct {
    zero_memory_line lines[MEMORY_LINES];
    int n_lines;
} MemoryTable;
// Prints the table, and beside its sums the formulas of the plan.
void print_memory_table(const MemoryTable *t, const zero_plan_info *plan);
// Prints the memory table of this rank.
void print_memory(void);

// Bytes that the run holds in the host's memory, of a run on CUDA; on NVMe; or on its device.
size_t bytes_held_on(zero_tier tier);

#endif
