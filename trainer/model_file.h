// model_%08d.bin of a checkpoint, as llm.c has it (fp16, which llm.c does not know, as fp32). Rank 0 makes it
// from the checkpoint itself, in a thread, so a checkpoint is complete without it, and no other rank is
// needed.
#ifndef TRAINER_MODEL_FILE_H
#define TRAINER_MODEL_FILE_H

// Begins to write that of a complete checkpoint in -o; model_file_add does so if it is not there. Rank 0
// does, but all ranks call it, so that they can wait. A failure ends the run; the checkpoint stays as it is.
void model_file_begin(int step);
void model_file_add(int step);
// Removes older checkpoints, as checkpoint_keep.h says, once the file is there; ends the run if it could not
// be written. Does not wait.
void model_file_look(void);
// (collective) Returns when it is on disk, if one has begun.
void model_file_wait(void);

#endif
