// A checkpoint as a model on disk: its values in llm.c's coordinates, whichever ranks wrote it.
#ifndef TRAINER_CHECKPOINT_STORED_H
#define TRAINER_CHECKPOINT_STORED_H
#include "../gpt2/model.h"
// defines: zero_value
#include "../llmc_zero/zero.h"

// Opens a checkpoint's folder. what: ZERO_MASTER, or ZERO_PARAM for the values that its run computed with.
// stored->dtype is the run's. Returns 0, or -1 with nothing open and gpt2_last_error().
int checkpoint_stored_open(const char *folder, zero_value what, GPT2Stored *stored);

// The dtype of its model file, which llm.c must support.
gpt2_dtype checkpoint_model_dtype(const GPT2Stored *stored);
// Returns 0 if a model file has the bytes that the checkpoint gives, else -1 with gpt2_last_error().
int checkpoint_compare_model(const char *folder, const char *path);

#endif
