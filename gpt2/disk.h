// Files on disk: read by offset, and written atomically under their name. Each function returns 0, or -1 with
// gpt2_fail's message, which begins with the path.
#ifndef GPT2_DISK_H
#define GPT2_DISK_H
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// Opens a regular file for reading; the caller closes *fd. Does not wait for a pipe's writer.
int disk_open(const char *path, int *fd, int64_t *bytes);
// Like disk_open, as a stream that the caller closes. *f is NULL, and the result 0, if there is no such file.
int disk_open_stream(const char *path, FILE **f);
// Fills `to`, or fails if the file ends earlier.
int disk_read(int fd, const char *path, int64_t at, size_t bytes, void *to);

// Reads the header of one of llm.c's files: 256 numbers, the first of which is `magic`. kind: for messages.
int disk_read_header(int fd, const char *path, int64_t bytes, const char *kind, int32_t magic,
                     int32_t header[256]);

// A file being written under a temporary name.
typedef struct {
    const char *path;  // its final name, owned by the caller
    char temporary[PATH_MAX];
    FILE *f;  // NULL: disk_create has failed
} disk_file;
// Neither opens an existing file nor follows a symlink at the temporary name.
int disk_create(disk_file *d, const char *path);
int disk_write(disk_file *d, const void *data, size_t bytes);
// Syncs the file, gives it its final name and syncs its folder. If `failed` is set, or on an error before the
// rename, removes the file instead. Returns 0 or -1. Call it after disk_create, even if that failed.
int disk_finish(disk_file *d, int failed);

// Fills in a random name next to `path`: path.0123456789abcdef.tmp
int disk_temporary(char name[PATH_MAX], const char *path);
// Waits until the entries of path's folder are on disk.
int disk_sync_parent(const char *path);

#endif
