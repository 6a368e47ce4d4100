// The checkpoints in a folder: step_%08d/, written by the plugin, and model_%08d.bin, which saved_model.h
// then derives from it. A folder has one history, so the newest checkpoint is the one of the last step.
#ifndef TRAINER_SAVED_LIST_H
#define TRAINER_SAVED_LIST_H
#include "folder.h"

typedef struct {
    int step;
    char path[OUTPUT_PATH];  // of its folder
    int complete;            // 0: left by a killed save, or damaged
    int damaged;             // 1: it was complete, but its manifest is missing
} Found;

typedef struct {
    char folder[OUTPUT_PATH];
    Found *found;  // (n) newest first
    int n;
    const Found *newest;  // complete; NULL: none
    int had_some;         // 1: it once had a complete one: a damaged one or a model file is left
} Listing;

// Returns the checkpoints in a folder; the caller frees `found`. A missing folder has none. An unreadable
// folder ends the run with an error that names the option.
Listing checkpoints_in(const char *option, const char *folder);
// Fails with gpt2_last_error(): the checkpoint is damaged. Returns -1.
int checkpoint_is_damaged(const Found *f);

// Returns 1 if this folder is a complete checkpoint. A run that saves there may remove it at any time.
int is_checkpoint(const char *folder);
// Returns the step in the name of a checkpoint's folder, or -1 for any other name.
int checkpoint_step_of(const char *folder);
// Writes the path of a checkpoint's model file, or returns -1 if the folder has another name than step_%08d.
int checkpoint_model_of(char path[OUTPUT_PATH], const char *folder);
// Writes the path of a model file's checkpoint, or returns -1 if there is none.
int checkpoint_of_model(char folder[OUTPUT_PATH], const char *path);

// -------- the checkpoints of -o; only rank 0 calls these

// Removes leftovers of killed saves, and complete checkpoints except the newest -nk and those that -nm keeps.
void checkpoints_prune(void);
// Removes what killed runs left: folders of unfinished saves, and temporary files. Does nothing unless this
// process holds the lock, since another run might still be writing them. A damaged checkpoint stays.
void checkpoints_remove_leftovers(void);

#endif
