// This process's rank, device, threads and dtype.
#ifndef TRAINER_MACHINE_H
#define TRAINER_MACHINE_H
#include "../gpt2/layers.h"
#include "../llmc_zero/zero.h"

// How the ranks find each other, from -pi.
zero_start start_method(void);

// Reads the launcher's environment. Comes first, since only rank 0 prints messages about options.
void take_launched_ranks(void);
// Call it once the plugin exists: it must have found the same rank.
void check_launched_ranks(void);

// Call these in this order; each fills in its part of `run`. What cannot be had as requested ends the run.
void settle_ranks(void);
void settle_device(void);
void settle_threads(void);
void settle_overlap(void);

gpt2_dtype settle_dtype(void);
const char *dtype_name(gpt2_dtype dtype);

#endif
