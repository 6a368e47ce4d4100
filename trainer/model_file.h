// A checkpoint's model_%08d.bin in llm.c's format (fp16, which llm.c lacks, as fp32). A thread of rank 0
// makes it from the checkpoint itself, so a checkpoint is complete without it, and no other rank is needed.
#ifndef TRAINER_MODEL_FILE_H
#define TRAINER_MODEL_FILE_H

// Starts writing that of a complete checkpoint in -o; model_file_add only if it can be made and
// does not exist. Rank 0 writes, but all ranks call it, so that they can wait. A failure ends the run; the
// checkpoint is not affected.
void model_file_begin(int step);
void model_file_add(int step, int can);
// Once the file exists, removes older checkpoints as in checkpoint_keep.h; ends the run if it could not be
// written. Does not wait.
void model_file_look(void);
// (collective) Returns when the file is on disk, if one was started.
void model_file_wait(void);

#endif
