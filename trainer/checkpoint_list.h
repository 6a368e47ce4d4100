// The checkpoints in a folder: step_%08d/, written by the plugin, and model_%08d.bin, which model_file.h
// writes from it afterwards. The newest checkpoint is the one saved last, whatever its step.
#ifndef TRAINER_CHECKPOINT_LIST_H
#define TRAINER_CHECKPOINT_LIST_H
#include "folder.h"
#include "saved_run.h"

typedef struct {
    int step;
    char name[48];  // of its folder
    SavedAs as;     // run "": unreadable; the number is then that of the previous steps
    int abandoned;  // 1: it was set aside, and a newer one has been saved since
    int complete;   // 0: left by a killed save
    int damaged;    // 1: it was complete, but its manifest is missing
} Found;

// The newest save, from a file in the folder.
typedef struct {
    long long number;  // 0: no such file
    int step;
} Newest;

typedef struct {
    char folder[OUTPUT_PATH];
    Found *found;  // (n) newest first
    int n;
    int had_some;  // a complete one has existed
    Newest noted;
} Listing;

// The file that records the newest save, and its contents; the folder name of checkpoints set aside.
#define NEWEST "has_checkpoints"
#define NEWEST_TEXT "save %lld of step %d is the newest\n"
#define ABANDONED "abandoned_"

// Returns the checkpoints in a folder; the caller frees found. A missing folder has none. An unreadable one
// may have some, so the run ends with the option's name. checkpoints_list reads only names, so it sorts by
// step and treats all that were set aside as abandoned. If the recorded newest one has vanished,
// checkpoints_in_order lists it as damaged.
Listing checkpoints_list(const char *option, const char *folder);
Listing checkpoints_in_order(const char *option, const char *folder);
// Returns the newest complete one, or NULL. The listing must be checkpoints_in_order's, also for the next
// two.
const Found *checkpoints_newest(const Listing *l);
// Returns the largest number of any save; 0: none.
int64_t checkpoints_last_number(const Listing *l);
// Returns 0 if it was saved by the same run as the newest; else -1 with gpt2_last_error().
int checkpoint_check_run(const Listing *l, const Found *f);

// Writes the path of folder/fmt, where fmt has one number, the step.
void checkpoint_path(char path[OUTPUT_PATH], const char *folder, const char *fmt, int step);
// Writes the path of a listed checkpoint's folder.
void checkpoint_folder(char path[OUTPUT_PATH], const Listing *l, const Found *f);
// Returns 1 if it still exists: a run in this folder may have removed it since it was listed.
int checkpoint_is_there(const Listing *l, const Found *f);

// Returns the path of a checkpoint's model file, valid until the next call.
const char *checkpoint_model(int step);

// Returns the path of the model file of the last complete checkpoint in a folder, valid until the next call,
// or NULL if there is none. *fd: the open file, which a run in this folder may remove.
const char *checkpoint_model_in(const char *folder, int *fd);

// Returns the path of the last complete checkpoint in a folder, valid until the next call; NULL: none.
const char *checkpoint_in(const char *folder);

// Returns the step in the name of a checkpoint's folder; -1: none.
int checkpoint_step_of(const char *folder);
// Writes the path of the model file of a checkpoint's folder: beside step_%08d, and inside a folder set
// aside. Returns 0, or -1 if the folder has another name.
int checkpoint_model_of(char path[OUTPUT_PATH], const char *folder);
// Returns 0 if a model file model_%08d.bin matches its checkpoint, 1 if there is no checkpoint to compare
// with, -1 with gpt2_last_error() if it is damaged.
int checkpoint_check_model(const char *path);

#endif
