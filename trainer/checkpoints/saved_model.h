// The model of a checkpoint: its values in llm.c's coordinates, however many ranks wrote it, and
// model_%08d.bin in llm.c's format (fp16, which llm.c lacks, is stored as fp32). A thread of rank 0 writes
// that file from the checkpoint alone, so the checkpoint is complete without it, and no other rank takes
// part.
#ifndef TRAINER_SAVED_MODEL_H
#define TRAINER_SAVED_MODEL_H
#include "../../gpt2/model.h"
#include "../../llmc_zero/zero.h"  // zero_value

// Opens a checkpoint's folder. what: ZERO_MASTER, or ZERO_PARAM for the values that its run computed with.
// stored->dtype is the run's. Returns 0, or -1 with nothing open and gpt2_last_error().
int saved_model_open(const char *folder, zero_value what, GPT2Stored *stored);

// Compares model_%08d.bin with its checkpoint. MODEL_UNCOMPARED: the checkpoint cannot be read, and
// gpt2_last_error() says why. MODEL_DAMAGED: they differ, with gpt2_last_error().
typedef enum { MODEL_DAMAGED, MODEL_UNCOMPARED, MODEL_ALONE, MODEL_GOOD } model_state;
model_state model_file_check(const char *path);
// Returns the path of the newest good model file of a folder's checkpoints, valid until the next call; NULL:
// none.
const char *model_file_in(const char *folder);

// Returns the dtype of the model file of a run with this dtype.
gpt2_dtype model_file_dtype(gpt2_dtype dtype);
// (collective) Starts writing the model file of a complete checkpoint in -o; without --async-save, also
// waits. missing: 1 to write it only if it does not exist. A failure ends the run but leaves the checkpoint
// intact.
void model_file_begin(int step, int missing);
// Once the file exists, removes older checkpoints (checkpoints_prune). If writing failed, ends the run. Does
// not wait.
void model_file_look(void);
// (collective) Returns when the file is on disk, if one was started.
void model_file_wait(void);

#endif
