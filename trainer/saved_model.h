// The model of a checkpoint: its values in llm.c's coordinates, whichever ranks wrote it, and its
// model_%08d.bin in llm.c's format (fp16, which llm.c lacks, as fp32). A thread of rank 0 makes that file
// from the checkpoint itself, so a checkpoint is complete without it, and no other rank is needed.
#ifndef TRAINER_SAVED_MODEL_H
#define TRAINER_SAVED_MODEL_H
#include "../gpt2/model.h"
// defines: zero_value
#include "../llmc_zero/zero.h"

// Opens a checkpoint's folder. what: ZERO_MASTER, or ZERO_PARAM for the values that its run computed with.
// stored->dtype is the run's. Returns 0, or -1 with nothing open and gpt2_last_error().
int saved_model_open(const char *folder, zero_value what, GPT2Stored *stored);

// Returns 0 if a model file model_%08d.bin has the bytes that its checkpoint gives, 1 if there is no
// checkpoint to compare with, -1 with gpt2_last_error() if it is damaged.
int model_file_check(const char *path);
// Returns the path of the model file of the last complete checkpoint in a folder, valid until the next call,
// or NULL if there is none. *fd: the open file, which a run in this folder may remove.
const char *model_file_in(const char *folder, int *fd);

// Starts writing that of a complete checkpoint in -o; can: 0: it cannot be made; missing: 1: only if it does
// not exist. Rank 0 writes, but all ranks call it, so that they can wait. A failure ends the run; the
// checkpoint is not affected.
void model_file_begin(int step, int can, int missing);
// Once the file exists, removes older checkpoints as in saved_list.h; ends the run if it could not be
// written. Does not wait.
void model_file_look(void);
// (collective) Returns when the file is on disk, if one was started.
void model_file_wait(void);

#endif
