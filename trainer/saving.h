// The checkpoint that a run resumes, and those that it writes. saved_list.h describes them.
#ifndef TRAINER_SAVING_H
#define TRAINER_SAVING_H
#include "saved_list.h"

// Chooses the checkpoint to resume: that of --resume, or with -y 1 the newest complete one in -o with a good
// manifest; with both, that of --resume if -o has none. Returns its step, or -1 for a new run. Without -y 1 a
// folder with a checkpoint or logs is refused; has_logs: 1: -o has those. Skipped checkpoints are printed.
int checkpoint_to_resume(int has_logs);
// Fills in the configuration of its model.
void checkpoint_config(GPT2Config *config);
// Returns the chosen checkpoint's tokens per step; 0: none is chosen, or it does not store them.
long long checkpoint_batch(void);
// Returns the path of the file that must match on all ranks if they have chosen the same checkpoint; valid
// until the next call.
const char *checkpoint_evidence(void);

// (collective) Writes the checkpoint of state->step, removes those that -nk and -nm no longer keep, and
// writes its model file. When a run's first checkpoint is complete, those of steps after the resumed one
// become abandoned_%08d/. With --async-save it only copies the states; end_checkpoint completes it, and then
// the model file is written beside training.
void write_checkpoint(const GPT2 *model, const TrainingData *data, const TrainerState *state);

// (collective) Completes the checkpoint under way, if there is one and all ranks have written it. wait: 1:
// waits until they have, and for the model file. Call it between two steps.
void end_checkpoint(int wait);

// (collective) Reads parameters, optimizer state and *state from the chosen checkpoint or, if its states are
// damaged, from the newest older good one.
void load_checkpoint(const GPT2 *model, const TrainingData *data, TrainerState *state);

// Returns 1 if the run has resumed --resume and not saved since, so that -y 1 would not find its position.
int checkpoint_is_named(void);

// Returns 1 if a newer complete one existed when the run began.
int checkpoint_leaves_a_course(void);

// Returns 1 if the run resumes a checkpoint that was set aside. The logs in -o are not those of its branch.
int checkpoint_was_set_aside(void);

// Returns "the checkpoint of step 4 stays as it is", for the last one saved or resumed; valid until the next
// call.
const char *checkpoint_that_stands(void);
// (collective) At the end of a run: fails if the last update's result is not finite. No step has used it yet,
// and perhaps no save has checked it.
void check_last_update(void);

#endif
