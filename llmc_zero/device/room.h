// How much host memory a rank may still allocate, and which limit determines it.
#ifndef LLMC_ZERO_DEVICE_ROOM_H
#define LLMC_ZERO_DEVICE_ROOM_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t left;      // bytes, for this rank
    char limit[256];  // "the machine has 812.0 MiB available for 2 ranks"
} host_room;

// Finds the smallest of: this rank's share of the available memory, its share of the memory limits of this
// process's cgroups (versions 1 and 2, wherever they are mounted), RLIMIT_AS and RLIMIT_DATA. root: ""; in
// tests, a folder with proc/ and sys/. ZERO_ERR_IO: the system does not report available memory.
int host_room_find(host_room *room, int ranks_on_host, const char *root);

#endif
