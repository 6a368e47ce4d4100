// --verify and --export: one process, without other ranks, reads what runs have saved. Its memory does not
// grow with the model.
#ifndef TRAINER_OFFLINE_H
#define TRAINER_OFFLINE_H

// --verify: verifies every checksum, and compares model files with their checkpoints. path: a checkpoint, a
// folder of them, or a model file. Prints a line for each good file, and the first damage in each bad
// checkpoint. Returns the exit status; 0: all are good.
int verify(const char *path);

// --export: writes a model from any source as llm.c's file or as a Hugging Face folder.
void export_model(void);

#endif
