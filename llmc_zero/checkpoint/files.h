// A checkpoint's folder on disk. Each function returns 0, or ZERO_ERR_IO with a message that names the path.
#ifndef LLMC_ZERO_CHECKPOINT_FILES_H
#define LLMC_ZERO_CHECKPOINT_FILES_H
#include <limits.h>
#include <stddef.h>

#define MANIFEST "manifest.json"
#define FILE_END ".states"  // suffix of the name of a rank's file

enum { FILE_NAME = 64 };  // size of the name of a file in the folder

// Sets path to folder/name. Fails if the result is too long.
int folder_path(char path[PATH_MAX], const char *folder, const char *name);
int folder_make(const char *folder);  // unless it exists
// Return when the entries of the folder, or of its parent, are on disk.
int folder_sync(const char *folder);
int folder_sync_parent(const char *folder);
// Creates a file for writing and sets *fd. Fails if the name exists, even as a symlink.
int folder_create_file(const char *path, int *fd);
int folder_write(int fd, const char *path, const void *data, size_t bytes);
// Closes the file, even after an error, and returns once it is on disk.
int folder_close_written(int fd, const char *path);
// Removes zero_save's files except the manifest and those whose names end in `keep`; keep NULL: all of them.
int folder_clean(const char *folder, const char *keep);

#endif
