// What must be the same on all ranks, and what should be.
#ifndef TRAINER_ALIKE_H
#define TRAINER_ALIKE_H
#include "../gpt2/dataloader.h"
#include "activations.h"

// Returns, to be freed, the text that zero_create compares: every option but a few, the model, and the data
// or the prompts by their contents. A run of --prompts has no shards open.
char *must_be_same(const GPT2 *model, int resume_step, const DataLoader *train, const DataLoader *val);

// (collective) Warns where program, device, instruction set or threads of the ranks differ. A run is right
// all the same, but its last bits depend on them.
void note_differences(void);

#endif
