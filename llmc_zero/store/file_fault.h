// How tests make an operation on a file fail.
#ifndef LLMC_ZERO_STORE_FILE_FAULT_H
#define LLMC_ZERO_STORE_FILE_FAULT_H
#include <stddef.h>

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
