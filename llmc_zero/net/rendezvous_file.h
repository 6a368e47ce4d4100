// The file in which rank 0 writes where it listens: a few lines of text. Half of them are no card yet.
#ifndef LLMC_ZERO_RENDEZVOUS_FILE_H
#define LLMC_ZERO_RENDEZVOUS_FILE_H
#include "secret.h"
#include "sockets.h"
#include <limits.h>
#include <stdint.h>

enum { CARD_ADDRESSES = 15, CARD_ROOM = 64 };  // bytes that a path leaves below PATH_MAX
typedef struct {
    char host[64];
    int pid, port;
    uint64_t run, node;  // run: random, of this start-up; node: of the machine
    long long written;   // seconds since 1970 by rank 0's clock
    double changed;      // the same by the file system's, where it has been read
    char key[SECRET_TEXT];
    int n;
    net_address at[CARD_ADDRESSES];  // of that machine, with the port
} card;

// Returns the path of the file: of a folder, llmc_zero.start in it. A folder may appear later, so the caller
// asks each time.
void card_path(const char *given, char path[PATH_MAX]);
// Writes over the card of an earlier run; anything else that is there is an error and stays as it is. Fills
// in the addresses and the time. 0, or a ZERO_ERR_* with the sentence.
int card_write(const char *path, card *c);
// 0, or a negative errno: -EBADMSG where it is no card, -EPERM where it is not this user's alone
int card_read(const char *path, card *c);
const char *card_fault(int error);                 // what such an errno means
void card_remove(const char *path, uint64_t run);  // leaves a card of another run

#endif
