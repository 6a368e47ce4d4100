// Files on disk: read by offset, and written so that they appear whole under their name or not at all. Each
// function returns 0, or -1 with gpt2_fail's sentence, which begins with the path.
#ifndef GPT2_DISK_H
#define GPT2_DISK_H
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// *fd: a regular file to read, which the caller closes. No pipe's writer is waited for.
int disk_open(const char *path, int *fd, int64_t *bytes);
FILE *disk_open_stream(const char *path, int64_t *bytes);  // the same; NULL where the others return -1
// Fills `to`, or fails where the file ends earlier.
int disk_read(int fd, const char *path, int64_t at, size_t bytes, void *to);

// A file that is being written under a name of its own.
typedef struct {
    const char *path;  // its name at the end; the caller's
    char temporary[PATH_MAX];
    FILE *f;  // NULL: disk_create has failed
} disk_file;
// A file or a link that has the temporary name already is not followed.
int disk_create(disk_file *d, const char *path);
int disk_write(disk_file *d, const void *data, size_t bytes);
// Syncs the file and its folder and gives it its name. With `failed`, or if that fails, it is removed and the
// result is -1. After disk_create it comes in any case.
int disk_finish(disk_file *d, int failed);

// A name beside `path` that nothing has: path.0123456789abcdef.tmp
int disk_temporary(char name[PATH_MAX], const char *path);
// Returns when the entries of the folder that holds `path` are on disk.
int disk_sync_parent(const char *path);

#endif
