// What a folder has of checkpoints: step_%08d/, which the plugin writes, and model_%08d.bin, which
// model_file.h makes of it afterwards.
#ifndef TRAINER_CHECKPOINT_LIST_H
#define TRAINER_CHECKPOINT_LIST_H
#include "folder.h"

typedef struct {
    int step;
    int complete;  // 0: what a save that died has left
    int damaged;   // 1: it was complete: its model file is there, which is written last and removed first
} Found;

typedef struct {
    char folder[OUTPUT_PATH];
    Found *found;  // (n) the newest first
    int n;
    int had_some;  // there has been a complete one
} Listing;

// A file that the first complete checkpoint of a folder leaves for good, and the names of those that were set
// aside.
#define HAD_SOME "has_checkpoints"
#define ABANDONED "abandoned_"

// Returns what is in a folder; the caller frees found. A folder that is not there has no checkpoints. One
// that cannot be read may have some, so the run ends with the option's name.
Listing checkpoints_list(const char *option, const char *folder);
// Returns the newest complete one, or NULL.
const Found *checkpoints_newest(const Listing *l);
// Writes the path of folder/fmt, where fmt has one number: the step.
void checkpoint_path(char path[OUTPUT_PATH], const char *folder, const char *fmt, int step);

// Returns the path of a checkpoint's model file, valid until the next call.
const char *checkpoint_model(int step);

// Returns the path of the model file of the last complete checkpoint in a folder, valid until the next call,
// or NULL if there is none.
const char *checkpoint_model_in(const char *folder);

// Returns the path of the last complete checkpoint in a folder, valid until the next call; NULL: there is
// none.
const char *checkpoint_in(const char *folder);

// What a folder has of a checkpoint.
typedef struct {
    const char *states;     // its folder
    const char *model;      // the path that its model file has
    int complete, damaged;  // as in Found
} CheckpointPaths;
// Calls fn for each checkpoint in a folder, the newest first, and then for those that were set aside. Returns
// the or of what it has returned.
typedef int (*CheckpointVisitor)(void *ctx, const CheckpointPaths *p);
int checkpoints_visit(const char *folder, CheckpointVisitor fn, void *ctx);

// Returns the step that the name of a checkpoint's folder says; -1: none.
int checkpoint_step_of(const char *folder);
// Writes the path that the model file of a checkpoint's folder has: beside step_%08d, and in what was set
// aside. Returns 0, or -1 if the folder has another name.
int checkpoint_model_of(char path[OUTPUT_PATH], const char *folder);
// Returns 0 if a model file model_%08d.bin is what its checkpoint gives, 1 if there is no checkpoint to
// compare it with, -1 with gpt2_last_error() if it is damaged.
int checkpoint_check_model(const char *path);

#endif
