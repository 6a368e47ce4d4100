// --verify: reads saved files, and compares every checksum, and model files with their checkpoints. Does
// nothing else of a run.
#ifndef TRAINER_VERIFY_H
#define TRAINER_VERIFY_H

// path: a checkpoint, a folder of them or a model file. Prints a line for each good file, and the first
// damage of each bad checkpoint. Returns the exit status: 0: all are good.
int verify(const char *path);

#endif
