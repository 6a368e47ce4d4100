// The port that a rank listens on during startup, and the strangers connected to it.
#ifndef LLMC_ZERO_NET_DOOR_H
#define LLMC_ZERO_NET_DOOR_H
#include "contact.h"

enum { STRANGERS = 256 };  // in addition to one per rank
typedef struct {
    int listener;        // -1: none
    int is_local;        // other machines are refused
    contact *strangers;  // (most) allocated by the caller
    int most;
    uint64_t came;  // strangers so far
    int refused;    // how many did not know the secret, and the last of them
    char last[NET_NAME];
} door;

// Accepts waiting connections, at most a quarter of the places, so that earlier ones get their turn. With
// fewer at a time the system's own queue stays full in a flood, and the system then drops ranks too, which
// retry after one second, two, four, and so on. 0, or a negative errno.
int door_let_in(door *d, const party *p);
// No descriptor is left, and a stranger may hold one. door_drop_first returns 1 if it has dropped the first
// stranger.
int door_is_full(int rc);
int door_drop_first(door *d);
// The stranger does not know the secret. The answer has no tag: with one the stranger could try out keys.
void door_turn_away(door *d, const party *p, contact *stranger);

#endif
