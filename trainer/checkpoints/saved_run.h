// A checkpoint's description of the run that saved it: a JSON object that the plugin stores and returns. It
// has the run's position, its model, its data, and every setting that changes results.
#ifndef TRAINER_SAVED_RUN_H
#define TRAINER_SAVED_RUN_H
#include <stdint.h>
#include "../../gpt2/dataloader.h"
#include "../../gpt2/learning_rate.h"
#include "../running/activations.h"

typedef struct TrainingData TrainingData;  // inputs.h

// The position of a run.
typedef struct {
    int32_t step;
    int32_t overflows;  // steps that overflowed fp16: neither weights nor learning rate changed
    DataPosition position;
    OutlierDetector loss_outliers, norm_outliers;
} TrainerState;

typedef struct {
    GPT2Config config;
    TrainerState state;
    int64_t tokens_a_step;
    int row_tokens;
    struct json_t *root;  // the whole object, for saved_run_compare
} SavedRun;

// Returns the object as text; the caller frees it.
char *saved_run_write(const GPT2 *model, const TrainingData *data, const TrainerState *state);
// Returns 0, or -1 if a member is missing or out of range; gpt2_last_error() then begins with `where`, the
// checkpoint. Call saved_run_free in either case.
int saved_run_read(SavedRun *saved, const char *text, const char *where);
// Reads the object from a checkpoint's folder.
int saved_run_of(SavedRun *saved, const char *folder);
void saved_run_free(SavedRun *saved);
// Prints a line for each setting that changed since the checkpoint. A different model, data or batch size
// ends the run, unless --resume-anyway is given. where: the checkpoint, for messages.
void saved_run_compare(const SavedRun *saved, const char *where, const GPT2 *model, const TrainingData *data);

#endif
