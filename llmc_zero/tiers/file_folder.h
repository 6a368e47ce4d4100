// A rank's file of states in one folder, with its space reserved. It has no name, so it disappears with the
// process, however that ends. A small lock file beside it names the process that uses the folder.
#ifndef LLMC_ZERO_TIERS_FILE_FOLDER_H
#define LLMC_ZERO_TIERS_FILE_FOLDER_H
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int fd;
    int lock;             // -1: the caller has opened the file, and closes it
    int direct;           // 1: O_DIRECT is on
    int refused;          // if not, the errno
    char path[PATH_MAX];  // of the caller's file; else FOLDER/llmc_zero.rankRRRRR; the lock adds .lock
} file_folder;

// Returns 0, or an error that leaves nothing open and no file behind.
int folder_open(file_folder *f, const char *folder, int rank, int64_t bytes);
// The same for a file that the caller has opened, which stays. bytes: to reserve; 0: none.
int folder_take(file_folder *f, int fd, const char *path, int64_t bytes);
void folder_close(file_folder *f);
// Returns 1 if the caller's file has been removed.
int folder_is_gone(const file_folder *f);

// -------- how tests make an operation on a file fail

typedef enum {
    FILE_READ,
    FILE_WRITE,
    FILE_SUBMIT,     // a row of requests to io_uring
    FILE_URING,      // the opening of a ring
    FILE_PIN,        // the registration of buffers
    FILE_DIRECT,     // the switch to O_DIRECT
    FILE_RESERVE,    // of a file's space
    FILE_IN_MEMORY,  // the refusal of a folder in memory; 0: it is taken
    FILE_OPERATIONS
} file_operation;

// Is asked before each operation, by any thread. Returns `bytes` to let it happen, less for a short read or
// write, or a negative errno. NULL: nothing is asked.
extern long (*file_fault)(file_operation what, size_t bytes);

static inline long file_allowed(file_operation what, size_t bytes) {
    return file_fault ? file_fault(what, bytes) : (long)bytes;
}

#endif
