// The record of a program's operations on a folder, written by disk.c and read by tests/power_loss.c. It is a
// sequence of `record` structs, each followed by its paths and bytes. All ranks append to one file under a
// lock, so the operations have a total order.
#ifndef TESTS_SHIM_RECORD_H
#define TESTS_SHIM_RECORD_H
#include <stdint.h>

typedef enum {
    RECORD_OPEN,      // path; at 1: created it
    RECORD_WRITE,     // bytes at offset `at`
    RECORD_TRUNCATE,  // to `at` bytes, or extended to them
    RECORD_SYNC,      // of a file or a folder
    RECORD_RENAME,    // from `path` to `other`
    RECORD_UNLINK,    // path
    RECORD_MKDIR,     // path
    RECORD_RMDIR,     // path
} record_kind;

typedef struct {
    int32_t kind;
    int32_t handle;  // identifies the open file, uniquely among all ranks
    int64_t at;
    int64_t bytes;                // number of bytes written
    int32_t path_len, other_len;  // of the paths, which have no terminating zero
} record;

#endif
