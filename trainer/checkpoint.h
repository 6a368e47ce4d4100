// Checkpoints in the output folder: model_%08d.bin as llm.c has it (fp16, which llm.c does not know, as
// fp32), state_%08d_%05d.bin of each rank, and DONE_%08d once all of them are on disk.
#ifndef TRAINER_CHECKPOINT_H
#define TRAINER_CHECKPOINT_H
#include <stdint.h>
#include "../gpt2/dataloader.h"
#include "../gpt2/schedule.h"
#include "activations.h"

// What the trainer itself keeps in a rank's state file.
typedef struct {
    int32_t step;
    int32_t overflows;  // steps that fp16 could not represent: neither weights nor learning rate moved
    DataPosition position;
    OutlierDetector loss_outliers, norm_outliers;
} TrainerState;

// Returns the step of the last complete checkpoint if -y 1 asks to resume, or -1 for a new run. Without -y 1
// a folder that has a checkpoint is refused.
int checkpoint_to_resume(void);

// Returns the path of a checkpoint's model file, valid until the next call.
const char *checkpoint_model(int step);

// Returns the path of the model file of the last complete checkpoint in a folder, valid until the next call,
// or NULL if there is none.
const char *checkpoint_model_in(const char *folder);

// (collective) Writes the checkpoint of state->step, and removes the one that -nk and -nm no longer keep.
void write_checkpoint(const GPT2 *model, const TrainerState *state);

// (collective) Reads parameters, optimizer state and *state from the checkpoint of this step.
void load_checkpoint(int step, TrainerState *state);

#endif
