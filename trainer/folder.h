// The output folder, -o: one for all ranks, on all hosts.
#ifndef TRAINER_FOLDER_H
#define TRAINER_FOLDER_H
#include <stdio.h>

enum { OUTPUT_PATH = 4200 };

// Writes the path of a file in the folder; too long a path is an error.
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

#endif
