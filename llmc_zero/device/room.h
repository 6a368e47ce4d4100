// How much of the host's memory a rank may still take, and which limit says so.
#ifndef LLMC_ZERO_ROOM_H
#define LLMC_ZERO_ROOM_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t left;      // bytes, for this rank
    char limit[256];  // "the machine has 812.0 MiB available for 2 ranks"
} host_room;

// Writes the smallest of: what the system calls available, the memory limits of this process's cgroups
// (versions 1 and 2, wherever they are mounted), which the ranks of the host share; RLIMIT_AS and
// RLIMIT_DATA, which are this rank's own. root: "", or for tests a folder that holds proc/ and sys/. Returns
// 0, or ZERO_ERR_IO if the system does not say what is available.
int host_room_find(host_room *room, int ranks_on_host, const char *root);

#endif
