// A save that goes on while the trainer does: its states have been copied, and threads write the copy.
#ifndef LLMC_ZERO_CHECKPOINT_SAVE_CALLS_H
#define LLMC_ZERO_CHECKPOINT_SAVE_CALLS_H
#include "../zero.h"

// Returns 0 with the memory for the copy allocated, if one is planned.
int save_later_create(zero *z);
// For zero_destroy: waits for the threads, and removes what this rank has written of a save that has not
// ended.
void save_later_drop(zero *z);

#endif
