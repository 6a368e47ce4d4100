// The checkpoints in a folder: step_%08d/, written by the plugin, and model_%08d.bin, which saved_model.h
// writes from it afterwards. The newest checkpoint is the one saved last, whatever its step.
#ifndef TRAINER_SAVED_LIST_H
#define TRAINER_SAVED_LIST_H
#include "folder.h"
#include "saved_run.h"

typedef struct {
    int step;
    char path[OUTPUT_PATH];  // of its folder
    SavedAs as;              // run "": unreadable; the number is then that of the previous steps
    int abandoned;           // 1: it was set aside, and a newer one has been saved since
    int complete;            // 0: left by a killed save
    int damaged;             // 1: it was complete, but its manifest is missing
} Found;

typedef struct {
    char folder[OUTPUT_PATH];
    Found *found;  // (n) newest first
    int n;
    int had_some;            // a complete one has existed
    long long noted_number;  // of the newest save, from a file in the folder; 0: no such file
    int noted_step;
} Listing;

// Returns the checkpoints in a folder; the caller frees found. A missing folder has none. An unreadable one
// may have some, so the run ends with the option's name. If the recorded newest one has vanished, it is
// listed as damaged.
Listing checkpoints_in(const char *option, const char *folder);
// Returns the newest complete one, or NULL.
const Found *checkpoints_newest(const Listing *l);
// Returns the largest number of any save; 0: none.
int64_t checkpoints_last_number(const Listing *l);
// Returns 0 if it was saved by the same run as the newest; else -1 with gpt2_last_error().
int checkpoint_check_run(const Listing *l, const Found *f);

// Returns 1 if this folder is a complete checkpoint. A run in the folder around it may remove it meanwhile.
int is_checkpoint(const char *folder);
// Returns the step in the name of a checkpoint's folder; -1: none. *aside: 1: it was set aside.
int checkpoint_step_of(const char *folder, int *aside);
// Writes the path of the model file of a checkpoint's folder: beside step_%08d, and inside a folder set
// aside. Returns 0, or -1 if the folder has another name.
int checkpoint_model_of(char path[OUTPUT_PATH], const char *folder);
// Writes the path of the checkpoint of a model file: the folder beside it or, after it was set aside, around
// it. Returns 0, or -1 if there is none.
int checkpoint_of_model(char folder[OUTPUT_PATH], const char *path);

// -------- the checkpoints of -o; only rank 0 calls these

// Records that save `number` is complete.
void checkpoints_note(int64_t number, int step);
// Removes complete checkpoints up to this step beyond the newest -nk, except those of -nm, and leftovers of
// killed saves. Ignores later steps, which are not part of this branch.
void checkpoints_prune(int step);
// Sets aside complete ones of steps `from` to `to`, except step `but`, as abandoned_%08d/: they belong to an
// abandoned branch. -y 1 ignores them once a newer one is recorded.
void checkpoints_set_aside(int from, int to, int but);
// Gives one that was set aside its name back: the save that was to replace it did not complete. Returns 1 if
// the checkpoint has that name now, 0 if another save of its step has it.
int checkpoint_set_back(const Found *f);
// Removes what killed saves of this step have left of its model file.
void checkpoint_remove_temporary(int step);

#endif
