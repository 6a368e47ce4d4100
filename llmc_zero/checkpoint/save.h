// What zero_create and zero_destroy do for saves during training.
#ifndef LLMC_ZERO_CHECKPOINT_SAVE_H
#define LLMC_ZERO_CHECKPOINT_SAVE_H
#include "../zero.h"

// Returns 0 with the memory for the copy allocated, if planned.
int save_create(zero *z);
// Waits for the thread, and removes the file of an unfinished save.
void save_drop(zero *z);

#endif
