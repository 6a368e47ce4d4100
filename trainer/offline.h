// What needs no ranks: --verify and --export. One process reads what runs have saved, and memory does not
// grow with the model.
#ifndef TRAINER_OFFLINE_H
#define TRAINER_OFFLINE_H

// --verify: compares every checksum, and model files with their checkpoints. path: a checkpoint, a folder of
// them or a model file. Prints a line for each good file, and the first damage of each bad checkpoint.
// Returns the exit status: 0: all are good.
int verify(const char *path);

// --export: writes a model from any source as llm.c's file or as a Hugging Face folder.
void export_model(void);

#endif
