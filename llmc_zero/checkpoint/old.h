// The files of versions 2 (of 0.1.0) and 3, one of each rank, which zero_save wrote before it made folders.
// They load at the ranks and in the dtype that saved them.
#ifndef LLMC_ZERO_CHECKPOINT_OLD_H
#define LLMC_ZERO_CHECKPOINT_OLD_H
#include "../zero.h"

// (collective) Returns 0 when this rank's parts are what is in its file, and *text, to be freed, is {"bytes":
// "0a1b.."}, the trainer's bytes in hexadecimal digits. Parameters are not made of their masters yet.
int old_load(zero *z, const char *path, char **text);

// Returns 0 if a file of so many bytes is what was saved. It needs neither the ranks nor the model.
int old_verify(int fd, const char *path, int64_t bytes);

#endif
