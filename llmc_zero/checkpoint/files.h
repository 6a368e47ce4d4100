// A checkpoint's folder on disk. Each function returns 0, or ZERO_ERR_IO with the path in the sentence.
#ifndef LLMC_ZERO_CHECKPOINT_FILES_H
#define LLMC_ZERO_CHECKPOINT_FILES_H
#include <limits.h>
#include <stddef.h>

#define MANIFEST "manifest.json"
#define FILE_END ".states"  // the end of the name of a rank's file

enum { FILE_NAME = 64 };  // room for the name of a file in the folder

// Writes folder/name; too long a path is an error.
int folder_path(char path[PATH_MAX], const char *folder, const char *name);
int folder_make(const char *folder);  // an existing one is used as it is
// Returns when the entries of the folder, or of its parent, are on disk.
int folder_sync(const char *folder);
int folder_sync_parent(const char *folder);
// *fd: a new file to write; an existing file or symlink of that name is an error.
int folder_create_file(const char *path, int *fd);
int folder_write(int fd, const char *path, const void *data, size_t bytes);
// Returns when the file is on disk, and closes it in either case.
int folder_close_written(int fd, const char *path);
// Removes the files that zero_save makes, except the manifest and those whose names end in `keep`; NULL: all.
int folder_clean(const char *folder, const char *keep);

#endif
