// The file that a rank's states have in one folder, with its space reserved. It has no name, so it goes with
// the process, however that ends. A lock beside it, a small file, names the process that uses the folder.
#ifndef LLMC_ZERO_STORE_FILE_FOLDER_H
#define LLMC_ZERO_STORE_FILE_FOLDER_H
#include <limits.h>
#include <stdint.h>

typedef struct {
    int fd;
    int lock;             // -1: the caller has opened the file, and closes it
    int direct;           // 1: reads and writes go past the page cache
    int refused;          // else why not, an errno
    char path[PATH_MAX];  // of the caller's file; else FOLDER/llmc_zero.rankRRRRR, whose lock adds .lock
} file_folder;

// Returns 0, or an error, and then nothing is open and no file of this call is left.
int folder_open(file_folder *f, const char *folder, int rank, int64_t bytes);
// The same for a file that the caller has opened, which stays. bytes: to reserve; 0: none.
int folder_take(file_folder *f, int fd, const char *path, int64_t bytes);
void folder_close(file_folder *f);
// Returns 1 if somebody has removed the caller's file.
int folder_is_gone(const file_folder *f);

#endif
