// The steps of a save, for zero_save, which takes them at once, and for zero_save_begin and zero_save_end.
#ifndef LLMC_ZERO_CHECKPOINT_SAVE_H
#define LLMC_ZERO_CHECKPOINT_SAVE_H
#include "writer.h"

typedef struct {
    zero *z;
    char folder[PATH_MAX];
    uint64_t number;       // in the names of the files of this save
    manifest_file *files;  // (ranks)
    saved_part *parts;     // (ranks, n_units)
    uint64_t *digests;     // of the blocks of all files, of which each rank makes its own
    json_t *trainer;
    loss_scale scale;
    char path[PATH_MAX];  // of this rank's file
    at_work work;         // since save_states
    file_writer own;
} save;

// (collective) Returns 0 when all ranks know the files' names and sizes. caller: in messages. save_free comes
// next in any case.
int save_open(save *s, zero *z, const char *caller, const char *path, const char *text);
// Fills s->own with this rank's states. copy: as for writer_begin. writer_end comes next in any case.
int save_states(save *s, char *copy);
// (collective) Waits for the other ranks. rc: of writer_end. Returns 0 when the checkpoint is complete and on
// disk. Else nothing of it is left, unless what failed is a sync of the folder after the manifest was
// renamed: then it is complete, and counts.
int save_commit(save *s, int rc);
void save_free(save *s);

#endif
