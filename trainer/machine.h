// What this process is and what it runs on: its rank, its device, its threads, the dtype.
#ifndef TRAINER_MACHINE_H
#define TRAINER_MACHINE_H
#include "../gpt2/layers.h"
#include "../llmc_zero/zero.h"

// How the ranks find each other, as -pi says.
zero_start start_method(void);

// What the launcher says in the environment. Comes first: only rank 0 prints what the options have to say.
void take_launched_ranks(void);
// Once the plugin is there: it must have found the same rank.
void check_launched_ranks(void);

// In this order, each fills its part of `run`. What cannot be had as asked ends the run.
void settle_ranks(void);
void settle_device(void);
void settle_threads(void);
void settle_overlap(void);

gpt2_dtype settle_dtype(void);
const char *dtype_name(gpt2_dtype dtype);

#endif
