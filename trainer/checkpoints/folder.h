// The output folder, -o: one for all ranks, on all hosts.
#ifndef TRAINER_FOLDER_H
#define TRAINER_FOLDER_H
#include "../options/options.h"
#include "../running/run.h"

enum { OUTPUT_PATH = 4200 };

// Writes the path of a file in a folder, and returns it. Ends the run if the path is too long.
char *path_in(char path[OUTPUT_PATH], const char *folder, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// Like path_in, for any folder or for -o. The path is valid until the end of the enclosing block.
#define in_folder(folder, ...) path_in((char[OUTPUT_PATH]){ 0 }, folder, __VA_ARGS__)
#define in_output(...) in_folder(opt.output, __VA_ARGS__)

// Returns where the last name in a path begins. *end: where it ends, without trailing slashes.
size_t last_name(const char *path, size_t *end);
int file_is_there(const char *path);  // ends the run if that cannot be determined
int is_folder(const char *path);
// Creates the folder of -o, if given.
void make_folder(void);
// Both return when the file in -o is complete on disk, or end the run. A symlink of this name is replaced.
void write_to_output(const char *name, Text *text);  // frees the text
void copy_to_output(const char *from, const char *name);
// The name of the tokenizer's copy in -o.
#define TOKENIZER_FILE "tokenizer.bin"

// (collective) Checks that all ranks see the same folder, since each rank writes its part of a checkpoint
// there. After a mismatch, a run with -n ends, and a run without -n saves nothing.
void check_one_folder(void);
// Returns why checkpoints cannot be saved, after check_one_folder; NULL: they can.
const char *why_no_checkpoint(void);

// -------- a lock keeps two runs from mixing their files
//
// Rank 0 holds it, and the kernel releases it however the process ends.

// Rank 0 locks -o before anything there is read or changed. check_folder_lock later reports a failure, so
// that it ends all ranks once they are connected.
void lock_folder(void);
// Ends the run if rank 0 did not get the lock. The message names the run that holds it.
void check_folder_lock(void);
// Returns 1 on rank 0 if it holds the lock, 0 if the file system has no locks.
int folder_is_locked(void);

#endif
