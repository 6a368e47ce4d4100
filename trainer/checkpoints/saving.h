// The checkpoint that a run resumes from, and those that it writes. saved_list.h describes them.
#ifndef TRAINER_SAVING_H
#define TRAINER_SAVING_H
#include "saved_list.h"
#include "saved_run.h"

// Chooses the checkpoint to resume from: --resume's, or with -y 1 the newest in -o. With both options, uses
// --resume's only if -o has none. Returns its step, or -1 for a new run. Without -y 1, refuses a folder with
// checkpoints or logs (has_logs: 1 if -o has logs). If the newest is damaged, ends the run
// with the name of an older one.
int checkpoint_to_resume(int has_logs);
// Ends the run now if the disk of -o has too little room for the first checkpoint or, with -nk, for all that
// will exist at once. Call it when the plugin exists.
void check_room(const GPT2 *model, const TrainingData *data);
// Both return NULL if no checkpoint is chosen: its folder, and the run that saved it.
const char *checkpoint_chosen(void);
const SavedRun *checkpoint_saved(void);

// (collective) Writes the checkpoint of state->step and its model file, and removes the checkpoints that -nk
// and -nm no longer keep. With --async-save it only copies the states; end_checkpoint completes the
// checkpoint, and then the model file is written while training continues.
void write_checkpoint(const GPT2 *model, const TrainingData *data, const TrainerState *state);

// (collective) Completes the checkpoint in progress if all ranks have written it. wait: 1 to wait until they
// have, and for the model file. Call it between two steps.
void end_checkpoint(int wait);

// (collective) Reads parameters, optimizer state and *state from the chosen checkpoint. If it is damaged,
// ends the run with the name of the one before.
void load_checkpoint(const GPT2 *model, const TrainingData *data, TrainerState *state);

// Returns 1 if the run resumed from a checkpoint outside -o and has not saved since. -y 1 would not find its
// position.
int checkpoint_is_elsewhere(void);

// Returns 1 if -o has a checkpoint of the current step, saved or resumed.
int checkpoint_is_saved(void);

// Returns "the checkpoint of step 4 is unchanged", for the last one saved or resumed; valid until the next
// call.
const char *last_checkpoint(void);
// (collective) Fails at the end of a run if the last update's result is not finite. No step has used that
// result, and perhaps no save has checked it.
void check_last_update(void);

#endif
