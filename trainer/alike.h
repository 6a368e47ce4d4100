// What must be the same on all ranks, and what should be.
#ifndef TRAINER_ALIKE_H
#define TRAINER_ALIKE_H
#include "../gpt2/dataloader.h"
#include "activations.h"

// Returns, to be freed, the text that zero_create compares: every option but a few, the model, and the data
// by their contents.
char *must_be_same(const GPT2 *model, int resume_step, const DataLoader *train, const DataLoader *val);

// (collective) Prints what hosts differ in although a run is right with it: the last bits depend on it.
void note_differences(void);

#endif
