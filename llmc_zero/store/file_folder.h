// The file that a rank's states have in one folder: created or taken over, locked, its space reserved, and
// removed at the end. Its first block names the process that it belongs to.
#ifndef LLMC_ZERO_STORE_FILE_FOLDER_H
#define LLMC_ZERO_STORE_FILE_FOLDER_H
#include <limits.h>
#include <stdint.h>

typedef struct {
    int fd;
    int opened;   // 1: the file was created here, and is removed here
    int given;    // 1: the caller has opened it, and closes it
    int direct;   // 1: reads and writes go past the page cache
    int refused;  // else why not, an errno
    char path[PATH_MAX];
} file_folder;

// Returns 0, or an error, and then nothing is open and no file of this call is left. `bytes` include the
// first block.
int folder_open(file_folder *f, const char *folder, int rank, int64_t bytes);
// The same for a file that the caller has opened, which stays. bytes: to reserve; 0: none.
int folder_take(file_folder *f, int fd, const char *path, int64_t bytes);
void folder_unlink(file_folder *f);  // the file goes with its last descriptor
void folder_close(file_folder *f);
// Returns 1 if somebody has removed the file.
int folder_is_gone(const file_folder *f);

#endif
