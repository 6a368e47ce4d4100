// The record of what a program does to a folder, from disk.c to tests/power_loss.c: a sequence of these, each
// followed by its texts and bytes. All ranks append to one file under a lock, so the order is total.
#ifndef TESTS_SHIM_RECORD_H
#define TESTS_SHIM_RECORD_H
#include <stdint.h>

typedef enum {
    RECORD_OPEN,      // path; at: 1: it was created
    RECORD_WRITE,     // bytes at offset `at`
    RECORD_TRUNCATE,  // to `at` bytes
    RECORD_SYNC,      // a file or a folder
    RECORD_RENAME,    // path, other
    RECORD_UNLINK,    // path
    RECORD_MKDIR,     // path
    RECORD_RMDIR,     // path
} record_kind;

typedef struct {
    int32_t kind;
    int32_t handle;  // of an open file: unique among all ranks' opens
    int64_t at;
    int64_t bytes;                // written
    int32_t path_len, other_len;  // texts, without a 0 at the end
} record;

#endif
