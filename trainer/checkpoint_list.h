// What a folder has of checkpoints: step_%08d/, which the plugin writes, and model_%08d.bin, which
// model_file.h makes of it afterwards. The newest checkpoint is the one that was saved last, whatever its
// step.
#ifndef TRAINER_CHECKPOINT_LIST_H
#define TRAINER_CHECKPOINT_LIST_H
#include "folder.h"
#include "saved_run.h"

typedef struct {
    int step;
    char name[48];  // of its folder
    SavedAs as;     // run "": cannot be read; the number is then that of the steps before it
    int abandoned;  // 1: it was set aside, and a newer one has been saved since
    int complete;   // 0: what a save that died has left
    int damaged;    // 1: it was complete, and its manifest is gone
} Found;

// The newest save, by a file in the folder.
typedef struct {
    long long number;  // 0: there is no such file
    int step;
} Newest;

typedef struct {
    char folder[OUTPUT_PATH];
    Found *found;  // (n) the newest first
    int n;
    int had_some;  // there has been a complete one
    Newest noted;
} Listing;

// The file that notes the newest save, and what it has; the folder's name of those that were set aside.
#define NEWEST "has_checkpoints"
#define NEWEST_TEXT "save %lld of step %d is the newest\n"
#define ABANDONED "abandoned_"

// Returns what is in a folder; the caller frees found. A folder that is not there has no checkpoints. One
// that cannot be read may have some, so the run ends with the option's name. checkpoints_list reads names
// only, so its order is that of the steps, and all that were set aside are abandoned. Where the newest that
// was noted has vanished, checkpoints_in_order lists it as damaged.
Listing checkpoints_list(const char *option, const char *folder);
Listing checkpoints_in_order(const char *option, const char *folder);
// Returns the newest complete one, or NULL. Of checkpoints_in_order, like the next two.
const Found *checkpoints_newest(const Listing *l);
// Returns the largest number that a save had; 0: none.
int64_t checkpoints_last_number(const Listing *l);
// Returns 0 unless another run than that of the newest has saved it; then -1 with gpt2_last_error().
int checkpoint_check_run(const Listing *l, const Found *f);

// Writes the path of folder/fmt, where fmt has one number: the step.
void checkpoint_path(char path[OUTPUT_PATH], const char *folder, const char *fmt, int step);
// Writes the path of the folder of one that was found.
void checkpoint_folder(char path[OUTPUT_PATH], const Listing *l, const Found *f);
// Returns 1 if it is a checkpoint now: a run in this folder may have removed it since it was listed.
int checkpoint_is_there(const Listing *l, const Found *f);

// Returns the path of a checkpoint's model file, valid until the next call.
const char *checkpoint_model(int step);

// Returns the path of the model file of the last complete checkpoint in a folder, valid until the next call,
// or NULL if there is none. *fd: of the file, which a run in this folder may remove.
const char *checkpoint_model_in(const char *folder, int *fd);

// Returns the path of the last complete checkpoint in a folder, valid until the next call; NULL: there is
// none.
const char *checkpoint_in(const char *folder);

// Returns the step that the name of a checkpoint's folder says; -1: none.
int checkpoint_step_of(const char *folder);
// Writes the path that the model file of a checkpoint's folder has: beside step_%08d, and in what was set
// aside. Returns 0, or -1 if the folder has another name.
int checkpoint_model_of(char path[OUTPUT_PATH], const char *folder);
// Returns 0 if a model file model_%08d.bin is what its checkpoint gives, 1 if there is no checkpoint to
// compare it with, -1 with gpt2_last_error() if it is damaged.
int checkpoint_check_model(const char *path);

#endif
