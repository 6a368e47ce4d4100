// Checks what must be, and what should be, the same on all ranks.
#ifndef TRAINER_ALIKE_H
#define TRAINER_ALIKE_H
#include "../gpt2/dataloader.h"
#include "activations.h"

// Returns, to be freed, the text that zero_create compares: every option but a few, the model, and the
// contents of the data or the prompts. A --prompts run has no shards open.
char *must_be_same(const GPT2 *model, int resume_step, const DataLoader *train, const DataLoader *val);

// (collective) Warns if program, device, instruction set or threads differ between ranks. Results are still
// correct, but their last bits depend on these.
void note_differences(void);

#endif
