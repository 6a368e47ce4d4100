// For zero_create and zero_destroy: the memory and the thread of saves during training.
#ifndef LLMC_ZERO_CHECKPOINT_SAVE_H
#define LLMC_ZERO_CHECKPOINT_SAVE_H
#include "../zero.h"

// Allocates the memory for the copy, if planned.
int save_create(zero *z);
// Waits for the thread, and removes this rank's file of an unfinished save.
void save_drop(zero *z);

#endif
