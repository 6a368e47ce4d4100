// A checkpoint's folder on disk. Each function returns 0, or ZERO_ERR_IO with the path in the sentence.
#ifndef LLMC_ZERO_CHECKPOINT_FOLDER_H
#define LLMC_ZERO_CHECKPOINT_FOLDER_H
#include <limits.h>
#include <stddef.h>

#define MANIFEST "manifest.json"

enum { FILE_NAME = 64 };  // room for the name of a file in the folder

// Writes folder/name; a path that is too long is an error.
int folder_path(char path[PATH_MAX], const char *folder, const char *name);
int folder_make(const char *folder);  // one that exists is taken as it is
// Returns when the entries of the folder are on disk, or those of the folder that holds it.
int folder_sync(const char *folder);
int folder_sync_parent(const char *folder);
// *fd: a new file to write; a file or a link of that name is an error.
int folder_create_file(const char *path, int *fd);
int folder_write(int fd, const char *path, const void *data, size_t bytes);
// Returns when the file is on disk. It is closed in any case.
int folder_close_written(int fd, const char *path);
// Removes the files that zero_save makes, but not those whose names `keep` knows. keep NULL: all.
typedef int (*name_check)(const void *ctx, const char *name);
int folder_clean(const char *folder, name_check keep, const void *ctx);

#endif
