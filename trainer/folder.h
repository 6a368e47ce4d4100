// The output folder, -o: one for all ranks, on all hosts.
#ifndef TRAINER_FOLDER_H
#define TRAINER_FOLDER_H
#include <stdio.h>

enum { OUTPUT_PATH = 4200 };

// Writes the path of a file in any folder, or in -o; too long a path is an error.
void path_in(char path[OUTPUT_PATH], const char *folder, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void output_path(char path[OUTPUT_PATH], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

int file_is_there(const char *path);  // ends the run if that cannot be determined
// Creates the folder of -o, if given.
void make_folder(void);
// Each returns a file to write, or ends the run. Does not follow a symlink at the path. create_file replaces
// an existing file.
FILE *create_file(const char *path);
FILE *append_to_file(const char *path);
// Completes a file begun with create_file(temporary): returns when it is on disk under its name, or ends the
// run.
void commit_file(FILE *f, const char *temporary, const char *path);
// Ends the run if the file, which is written at the end of the run, could not be created there.
void try_file(const char *option, const char *path);

// (collective) With -n, ends the run unless all ranks see one folder: a checkpoint has a part from each rank,
// and parts in different hosts' folders would not be a checkpoint. Without -n it only records that.
void check_one_folder(void);
// Returns why checkpoints cannot be saved, after check_one_folder; NULL: they can.
const char *why_no_checkpoint(void);

// -------- the lock, so that two runs do not mix their files
//
// Rank 0 holds it, and the kernel releases it when the process ends in any way.

// Rank 0 locks -o before anything there is read or changed. A failure is kept for check_folder_lock, so that
// it ends all ranks once they are connected.
void lock_folder(void);
// Ends the run if rank 0 did not get the lock: the message names the run that has it.
void check_folder_lock(void);
// Ends the run if another one has taken the folder, after the lock's file was removed. Called before each
// save, on rank 0; other ranks return at once.
void check_lock_is_held(void);

#endif
