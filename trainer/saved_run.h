// What a checkpoint says of the run that saved it: a JSON object that the plugin stores and hands back. It
// has where the run was, its model, its data, and every setting that changes results.
#ifndef TRAINER_SAVED_RUN_H
#define TRAINER_SAVED_RUN_H
#include <stdint.h>
#include "../gpt2/dataloader.h"
#include "../gpt2/schedule.h"
#include "activations.h"
#include "inputs.h"

// Where a run is.
typedef struct {
    int32_t step;
    int32_t overflows;  // steps that fp16 could not represent: neither weights nor learning rate moved
    DataPosition position;
    OutlierDetector loss_outliers, norm_outliers;
} TrainerState;

// Which run has saved it, and which of its saves it is: the checkpoints of a folder are ordered by this, not
// by their steps, since a run may go back.
typedef struct {
    char run[17];    // 16 hexadecimal digits
    int64_t number;  // from 1, of all saves in a folder
} SavedAs;

// Returns the object, to be freed.
char *saved_run_write(const GPT2 *model, const TrainingData *data, const TrainerState *state,
                      const SavedAs *as);
// Each returns 0, or -1 with gpt2_last_error(): the object lacks it, or has numbers that cannot be.
int saved_run_config(const char *text, GPT2Config *config);
int saved_run_state(const char *text, TrainerState *state);
int saved_run_as(const char *text, SavedAs *as);
// Returns the tokens of a step of the run that saved it. saved_run_state has taken the text.
long long saved_run_batch(const char *text);
// Prints a line for each setting that is another one now. Another model, data or batch ends the run, unless
// --resume-anyway is given. where: the checkpoint, in messages.
void saved_run_compare(const char *text, const char *where, const GPT2 *model, const TrainingData *data);

#endif
