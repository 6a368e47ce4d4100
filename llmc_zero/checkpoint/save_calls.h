// Saving while the trainer goes on: the states are copied, and a thread writes the copy.
#ifndef LLMC_ZERO_CHECKPOINT_SAVE_CALLS_H
#define LLMC_ZERO_CHECKPOINT_SAVE_CALLS_H
#include "../zero.h"

// Returns 0 with the memory for the copy allocated, if planned.
int save_later_create(zero *z);
// For zero_destroy: waits for the thread, and removes the file of an unfinished save.
void save_later_drop(zero *z);

#endif
