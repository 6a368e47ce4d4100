// The file in which rank 0 publishes its addresses and a random key, for ranks of the same user. Readers
// reject a partly written file.
#ifndef LLMC_ZERO_NET_START_FILE_H
#define LLMC_ZERO_NET_START_FILE_H
#include "contact.h"
#include <limits.h>

enum { START_FILE_ADDRESSES = 15 };
typedef struct {  // the file's bytes
    char begins[24];
    char host[NET_NAME];
    int32_t pid, port, n;  // pid 0: not read or written yet
    uint64_t node;         // the machine
    double written;        // seconds since 1970 by rank 0's clock
    secret key;
    net_address at[START_FILE_ADDRESSES];  // (n) of that machine, with port
} start_file;

// Sets path to the file: `given`, or llmc_zero.start in it if it is a folder. The folder may appear later, so
// call this before each use.
void start_file_path(const char *given, char path[PATH_MAX]);
// Writes the start file, overwriting that of an earlier run. Any other file is an error and stays unchanged.
// Fills in the key, the addresses and the time. Returns 0 or a ZERO_ERR_*.
int start_file_write(const char *path, start_file *f);
// Returns 0 or a negative errno: -EBADMSG if it is not a start file, -EPERM if other users can access it.
int start_file_read(const char *path, start_file *f);
const char *start_file_fault(int error);                        // describes that errno
void start_file_remove(const char *path, const start_file *f);  // does not remove another run's file

#endif
