// The file ("card") in which rank 0 writes its addresses: a few lines of text. A partly written one is not a
// card yet.
#ifndef LLMC_ZERO_NET_RENDEZVOUS_FILE_H
#define LLMC_ZERO_NET_RENDEZVOUS_FILE_H
#include "secret.h"
#include "sockets.h"
#include <limits.h>
#include <stdint.h>

enum { CARD_ADDRESSES = 15, CARD_ROOM = 64 };  // bytes that a path leaves below PATH_MAX
typedef struct {
    char host[64];
    int pid, port;
    uint64_t run, node;  // run: random, of this startup; node: of the machine
    long long written;   // seconds since 1970 by rank 0's clock
    double changed;      // the same by the file system's clock, if it was read
    char key[SECRET_TEXT];
    int n;
    net_address at[CARD_ADDRESSES];  // of that machine, with port
} card;

// Returns the path of the file: for a folder, llmc_zero.start in it. A folder may appear later, so callers
// call this each time.
void card_path(const char *given, char path[PATH_MAX]);
// Overwrites the card of an earlier run; any other file is an error and stays unchanged. Fills in the
// addresses and the time. 0, or a ZERO_ERR_* with the sentence.
int card_write(const char *path, card *c);
// 0, or a negative errno: -EBADMSG if it is not a card, -EPERM if other users can access it
int card_read(const char *path, card *c);
const char *card_fault(int error);                 // describes such an errno
void card_remove(const char *path, uint64_t run);  // keeps a card of another run

#endif
