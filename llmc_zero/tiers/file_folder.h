// A rank's file of states in one folder, with its space reserved. It has no name, so it disappears when the
// process ends in any way. A small lock file names the process that uses the folder.
#ifndef LLMC_ZERO_TIERS_FILE_FOLDER_H
#define LLMC_ZERO_TIERS_FILE_FOLDER_H
#include <limits.h>
#include <stdint.h>
#include "../base/error.h"

typedef struct {
    int fd;
    int lock;             // -1: the caller owns and closes the file
    int refused;          // 0: O_DIRECT is on; else the errno
    char path[PATH_MAX];  // of the caller's file; else FOLDER/llmc_zero.rankRRRRR (the lock file adds .lock)
} file_folder;

// Returns 0 or an error. After an error nothing is open and no file is left behind.
int folder_open(file_folder *f, const char *folder, int rank, int64_t bytes);
// Uses the caller's file instead, which remains after folder_close. bytes: the space to reserve; 0: none.
int folder_take(file_folder *f, int fd, const char *path, int64_t bytes);
void folder_close(file_folder *f);
// Returns 1 if the caller's file has been removed.
int folder_is_gone(const file_folder *f);

// Fails with ZERO_ERR_IO.
#define FILE_FAIL(advice, ...) (zero_fail(ZERO_ERR_IO, __VA_ARGS__), zero_failed_advice("%s", advice))

// -------- faults for tests

typedef enum {
    FILE_READ,
    FILE_WRITE,
    FILE_SUBMIT,     // of requests to io_uring
    FILE_URING,      // opens a ring
    FILE_PIN,        // registers buffers
    FILE_DIRECT,     // switches to O_DIRECT
    FILE_RESERVE,    // reserves a file's space
    FILE_IN_MEMORY,  // refuses a folder in memory; 0: accepts it
    FILE_OPERATIONS
} file_operation;

// Called before each operation, on any thread. Returns `bytes` to allow it, less for a short read or write,
// or a negative errno. Operations are refused only in the objects that tests link, which are compiled with
// FILE_FAULTS (tests/tests.mk): by *file_fault, if it is not NULL.
#ifdef FILE_FAULTS
extern long (*file_fault)(file_operation what, size_t bytes);
static inline long file_allowed(file_operation what, size_t bytes) {
    return file_fault ? file_fault(what, bytes) : (long)bytes;
}
#else
static inline long file_allowed(file_operation what, size_t bytes) { return (long)bytes; }
#endif

#endif
