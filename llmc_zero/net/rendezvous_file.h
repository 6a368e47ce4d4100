// The file through which rank 0 says where it is: a few lines of text, there as a whole or not at all.
#ifndef LLMC_ZERO_RENDEZVOUS_FILE_H
#define LLMC_ZERO_RENDEZVOUS_FILE_H
#include "sockets.h"
#include <limits.h>
#include <stdint.h>

enum { CARD_ADDRESSES = 15 };
typedef struct {
    char host[64];
    int pid, port;
    uint64_t run, node;  // of this start-up, random; of the machine
    long long written;   // seconds since 1970 by rank 0's clock
    int n;
    net_address at[CARD_ADDRESSES];  // of that machine, with the port
} card;

// The file that is meant: in a folder, llmc_zero.start. A folder may appear later: to be asked each time.
void card_path(const char *given, char path[PATH_MAX]);
// Replaces the card of an earlier run; anything else that is there is an error and stays as it is. Fills in
// the addresses and the time. 0, or a ZERO_ERR_* with the sentence.
int card_write(const char *path, card *c);
int card_read(const char *path, card *c);          // 0, or -errno; -EBADMSG: it is no such file
void card_remove(const char *path, uint64_t run);  // not one that another job has put there meanwhile

#endif
