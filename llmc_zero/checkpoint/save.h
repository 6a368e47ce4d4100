// The steps of a save: zero_save runs them in one call, zero_save_begin and zero_save_end in two.
#ifndef LLMC_ZERO_CHECKPOINT_SAVE_H
#define LLMC_ZERO_CHECKPOINT_SAVE_H
#include "writer.h"

typedef struct {
    zero *z;
    char folder[PATH_MAX];
    uint64_t number;       // in the file names of this save
    manifest_file *files;  // (ranks)
    saved_part *parts;     // (ranks, n_units)
    uint64_t *digests;     // of the blocks of all files; each rank computes its own
    json_t *trainer;
    loss_scale scale;
    char path[PATH_MAX];  // of this rank's file
    at_work work;         // since save_states
    file_writer own;
} save;

// (collective) Returns 0 when all ranks know the files' names and sizes. caller: for messages. Call save_free
// in either case.
int save_open(save *s, zero *z, const char *caller, const char *path, const char *text);
// Fills s->own with this rank's states. copy: as for writer_begin. Call writer_end in either case.
int save_states(save *s, char *copy);
// (collective) Waits for the other ranks. rc: of writer_end. Returns 0 when the checkpoint is complete and on
// disk. Otherwise its files are removed, unless the failure is a sync of the folder after the manifest was
// renamed: then the checkpoint is complete and valid.
int save_commit(save *s, int rc);
void save_free(save *s);

#endif
