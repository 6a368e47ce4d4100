// The output folder, -o: one for all ranks, on all hosts.
#ifndef TRAINER_FOLDER_H
#define TRAINER_FOLDER_H

enum { OUTPUT_PATH = 4200 };

// Writes the path of a file in the folder; it is an error if it is too long.
void output_path(char path[OUTPUT_PATH], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// Makes the folder where -o names one.
void make_folder(void);
// Makes the folder and its logs. The logs go on in a run that resumes, and begin anew in another one.
void open_folder(int resuming);

// (collective) Ends the run unless all ranks see one folder. A checkpoint has a part of each rank, and parts
// in folders of several hosts would be no checkpoint.
void check_one_folder(void);

#endif
