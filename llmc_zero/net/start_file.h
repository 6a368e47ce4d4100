// The file in which rank 0 writes its addresses and a random key, for the ranks of this user alone. A partly
// written one is not a start file yet.
#ifndef LLMC_ZERO_NET_START_FILE_H
#define LLMC_ZERO_NET_START_FILE_H
#include "contact.h"
#include <limits.h>

enum { CARD_ADDRESSES = 15 };
typedef struct {  // the file's content, after its first line
    char begins[24];
    char host[NET_NAME];
    int32_t pid, port, n;  // pid 0: not read or written yet
    uint64_t node;         // the machine
    double written;        // seconds since 1970 by rank 0's clock
    secret key;
    net_address at[CARD_ADDRESSES];  // (n) of that machine, with port
} card;

// Returns the path of the file: for a folder, llmc_zero.start in it. A folder may appear later, so callers
// call this each time.
void card_path(const char *given, char path[PATH_MAX]);
// Overwrites the card of an earlier run; any other file is an error and stays unchanged. Fills in the key,
// the addresses and the time. 0, or a ZERO_ERR_* with the sentence.
int card_write(const char *path, card *c);
// 0, or a negative errno: -EBADMSG if it is not a card, -EPERM if other users can access it
int card_read(const char *path, card *c);
const char *card_fault(int error);                  // describes such an errno
void card_remove(const char *path, const card *c);  // keeps a card of another run

#endif
