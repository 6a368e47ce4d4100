// The checkpoints in a folder: step_%08d/, written by the plugin, and model_%08d.bin, which saved_model.h
// then derives from it. The newest checkpoint is the last one saved, whatever its step.
#ifndef TRAINER_SAVED_LIST_H
#define TRAINER_SAVED_LIST_H
#include "folder.h"
#include "saved_run.h"

typedef struct {
    int step;
    char path[OUTPUT_PATH];  // of its folder
    SavedAs as;              // run "": unreadable, with the number of the checkpoint before it
    int abandoned;           // 1: it was set aside, and a newer one has been saved since
    int complete;            // 0: left by a killed save
    int damaged;             // 1: it was complete, but its manifest is missing
} Found;

typedef struct {
    char folder[OUTPUT_PATH];
    Found *found;  // (n) newest first
    int n;
    const Found *newest;     // complete and not abandoned; NULL: none
    int had_some;            // 1: the folder once had a complete one
    long long noted_number;  // of the newest save, as recorded in the folder; 0: no record
    int noted_step;
} Listing;

// Returns the checkpoints in a folder; the caller frees `found`. A missing folder has none. An unreadable
// folder ends the run with an error that names the option. If the newest checkpoint on record has vanished,
// it is listed as damaged.
Listing checkpoints_in(const char *option, const char *folder);
// Returns the highest number of any save; 0: none.
int64_t checkpoints_last_number(const Listing *l);
// Returns 0 if it was saved by the same run as the newest; else -1 with gpt2_last_error().
int checkpoint_check_run(const Listing *l, const Found *f);

// Returns 1 if this folder is a complete checkpoint. A run that saves there may remove it at any time.
int is_checkpoint(const char *folder);
// Returns the step in the name of a checkpoint's folder, or -1. Sets *aside to 1 if the checkpoint was set
// aside.
int checkpoint_step_of(const char *folder, int *aside);
// Writes the path of a checkpoint's model file: next to step_%08d, or inside a folder that was set aside.
// Returns 0, or -1 if the folder's name is neither.
int checkpoint_model_of(char path[OUTPUT_PATH], const char *folder);
// Writes the path of a model file's checkpoint: the folder next to it or, if that was set aside, the folder
// that contains it. Returns 0, or -1 if neither is a checkpoint.
int checkpoint_of_model(char folder[OUTPUT_PATH], const char *path);

// -------- the checkpoints of -o; only rank 0 calls these

// Records that save `number` is complete.
void checkpoints_note(int64_t number, int step);
// Removes leftovers of killed saves, and complete checkpoints except the newest -nk and those that -nm keeps.
// Ignores checkpoints after `step`, which are not part of this branch.
void checkpoints_prune(int step);
// Sets the complete checkpoints of steps `from` to `to`, except step `but`, aside: renames them to
// abandoned_%08d/, because they belong to an abandoned branch. -y 1 ignores them once a newer checkpoint is
// recorded.
void checkpoints_set_aside(int from, int to, int but);
// Renames a checkpoint that was set aside back to step_%08d/, since the save that should have replaced it did
// not complete. Returns 1 if it has that name now, 0 if another save of the same step has it.
int checkpoint_set_back(const Found *f);
// Removes what killed runs left: folders of unfinished saves, and temporary files. Does nothing unless this
// process holds the lock, since another run might still be writing them. A damaged checkpoint stays.
void checkpoints_remove_leftovers(void);

#endif
