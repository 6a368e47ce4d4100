// The checkpoint that a run goes on from, and those that it writes. checkpoint_list.h says what they are.
#ifndef TRAINER_CHECKPOINT_H
#define TRAINER_CHECKPOINT_H
#include "checkpoint_list.h"
#include "saved_run.h"

// Chooses the checkpoint that the run goes on from: that of --resume, or with -y 1 the newest complete one in
// -o whose manifest is good; with both, that of --resume if -o has none. Returns its step, or -1 for a new
// run. Without -y 1 a folder that has a checkpoint or logs is refused. What was passed over is told.
int checkpoint_to_resume(void);
// Fills the configuration of its model.
void checkpoint_config(GPT2Config *config);
// Returns the tokens of a step that the chosen checkpoint goes on with; 0: none is chosen, or it does not
// say.
long long checkpoint_batch(void);
// Returns the path of the file that all ranks must have alike to have chosen the same; valid until the next
// call.
const char *checkpoint_evidence(void);

// (collective) Writes the checkpoint of state->step, removes those that -nk and -nm no longer keep, and
// writes its model file. When the first one is complete, others of later steps than the run goes on from
// become abandoned_%08d/. With --async-save the states are copied only; end_checkpoint ends it, and then the
// model file is written beside training.
void write_checkpoint(const GPT2 *model, const TrainingData *data, const TrainerState *state);

// (collective) Ends the one that has begun, if there is one and all ranks have written it. wait: 1: waits
// until they have, and for the model file. Between two steps.
void end_checkpoint(int wait);

// (collective) Reads parameters, optimizer state and *state from the chosen checkpoint, or, where its states
// are damaged, from the newest older one that is good.
void load_checkpoint(const GPT2 *model, const TrainingData *data, TrainerState *state);

// Returns 1 if the run goes on from --resume and has not saved since, so that -y 1 does not find its place.
int checkpoint_is_named(void);

// Returns 1 if there is a newer complete one, by what was there when the run began.
int checkpoint_leaves_a_course(void);

// Returns 1 if the run goes back to a checkpoint that was set aside. The logs in -o are not those of its
// course.
int checkpoint_was_set_aside(void);

// Returns "the checkpoint of step 4 stays as it is", of the last one that was saved or resumed; valid until
// the next call.
const char *checkpoint_that_stands(void);
// (collective) At the end of a run: ends it with an error if what its last update made is not finite. Nothing
// has computed with that yet, and maybe nothing has saved it.
void check_last_update(void);

#endif
