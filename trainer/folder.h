// The output folder, -o: one for all ranks, on all hosts.
#ifndef TRAINER_FOLDER_H
#define TRAINER_FOLDER_H
#include <stdio.h>

enum { OUTPUT_PATH = 4200 };

// Writes the path of a file in the folder; it is an error if it is too long.
void output_path(char path[OUTPUT_PATH], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

int file_is_there(const char *path);  // ends the run where that cannot be said
// Makes the folder where -o names one.
void make_folder(void);
// Each returns a file to write, or ends the run. No symbolic link at the path is followed. create_file begins
// a new one in place of any that is there.
FILE *create_file(const char *path);
FILE *append_to_file(const char *path);
// Ends a file that create_file(temporary) has begun: returns when it is on disk under its name, or ends the
// run.
void commit_file(FILE *f, const char *temporary, const char *path);
// Ends the run if a file that is written at the end of the run could not be made there.
void try_file(const char *option, const char *path);

// (collective) With -n it ends the run unless all ranks see one folder: a checkpoint has a part of each rank,
// and parts in folders of several hosts would be no checkpoint. Without -n it only notes that.
void check_one_folder(void);
// Returns why no checkpoint can be saved, after check_one_folder; NULL: it can.
const char *why_no_checkpoint(void);

#endif
