// The checkpoint that a run resumes from, and those that it writes. saved_list.h describes them.
#ifndef TRAINER_SAVING_H
#define TRAINER_SAVING_H
#include "saved_list.h"

// Chooses the checkpoint to resume from: --resume's, or with -y 1 the newest complete one in -o with a valid
// manifest. With both options, uses --resume's only if -o has none. Returns its step, or -1 for a new run.
// Without -y 1, refuses a folder with checkpoints or logs (has_logs: 1 if -o has logs). Prints the
// checkpoints it skips.
int checkpoint_to_resume(int has_logs);
// Ends the run now if the disk of -o has too little room for the first checkpoint or, with -nk, for all that
// will exist at once. Call it when the plugin exists. logged_a_step: bytes that the logs take per step.
void check_room(const GPT2 *model, const TrainingData *data, int logged_a_step);
// Returns the chosen checkpoint's folder; NULL: none is chosen.
const char *checkpoint_chosen(void);
// Fills in the chosen checkpoint's model configuration.
void checkpoint_config(GPT2Config *config);
// Returns the chosen checkpoint's tokens per step; 0: none is chosen.
long long checkpoint_batch(void);
// Returns the path of a file that is identical on all ranks if they chose the same checkpoint; valid until
// the next call.
const char *checkpoint_evidence(void);

// (collective) Writes the checkpoint of state->step and its model file, and removes the checkpoints that -nk
// and -nm no longer keep. Once a run's first checkpoint is complete, older ones of steps after the one it
// resumed from become abandoned_%08d/. With --async-save it only copies the states; end_checkpoint completes
// the checkpoint, and then the model file is written while training continues.
void write_checkpoint(const GPT2 *model, const TrainingData *data, const TrainerState *state);

// (collective) Completes the checkpoint in progress if all ranks have written it. wait: 1 to wait until they
// have, and for the model file. Call it between two steps.
void end_checkpoint(int wait);

// (collective) Reads parameters, optimizer state and *state from the chosen checkpoint or, if that is
// damaged, from the newest older intact one.
void load_checkpoint(const GPT2 *model, const TrainingData *data, TrainerState *state);

// Returns 1 if the run resumed from --resume and has not saved since. -y 1 would not find its position.
int checkpoint_is_named(void);

// Returns 1 if a newer complete checkpoint existed when the run began. The run then leaves that checkpoint's
// branch.
int checkpoint_leaves_branch(void);

// Returns 1 if the run resumes from a checkpoint that was set aside. The logs in -o then belong to a
// different branch.
int checkpoint_was_abandoned(void);

// Returns "the checkpoint of step 4 is unchanged", for the last one saved or resumed; valid until the next
// call.
const char *last_checkpoint(void);
// (collective) Fails at the end of a run if the last update's result is not finite. No step has used that
// result, and perhaps no save has checked it.
void check_last_update(void);

#endif
