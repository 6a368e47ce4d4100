// The port at which a rank listens while the ranks start, and the strangers at it.
#ifndef LLMC_ZERO_DOOR_H
#define LLMC_ZERO_DOOR_H
#include "contact.h"

enum { STRANGERS = 256 };  // beside as many as there are ranks
typedef struct {
    int listener;        // -1: none
    int is_local;        // other machines are not let in
    contact *strangers;  // (most) the caller's
    int most;
    uint64_t came;  // strangers, so far
    int refused;    // how many did not know the secret, and the last of them
    char last[NET_NAME];
} door;

// Lets in who is waiting, a quarter of the places at most, so that those who came before have their turn.
// With fewer at a time the system's own queue stays full in a flood, and then it drops ranks too, whose
// system tries again after one second, two, four, and so on. 0, or a negative errno.
int door_let_in(door *d, const party *p);
// No descriptor is left, and a stranger may have one. Returns 1 where the first who came has been dropped.
int door_is_full(int rc);
int door_drop_first(door *d);
// The stranger does not know the secret. It is told so by an answer without a tag: with one it could try out
// keys.
void door_turn_away(door *d, const party *p, contact *stranger);

#endif
