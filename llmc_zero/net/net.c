// What the ranks tell each other at the start, by either net's exchange.
#include "net.h"
#include "../error.h"
#include <string.h>

int comm_net_gather(comm *c, const void *mine, void *all, size_t bytes) {
    char *send[c->ranks], *receive[c->ranks];
    for (int r = 0; r < c->ranks; r++) {
        send[r] = (char *)mine;
        receive[r] = (char *)all + r * bytes;
    }
    memcpy(receive[c->rank], mine, bytes);
    return c->net->exchange(c, EXCHANGE_GATHER, 0, send, receive, bytes);
}

int comm_net_agree(comm *c, int value) {
    int all[c->ranks], least = value;
    ZERO_TRY(comm_net_gather(c, &value, all, sizeof value));
    for (int r = 0; r < c->ranks; r++) least = all[r] < least ? all[r] : least;
    return least;
}

int comm_net_broadcast_text(comm *c, char *text, int bytes) {
    char *all[c->ranks];
    for (int r = 0; r < c->ranks; r++) all[r] = text;
    return c->net->exchange(c, EXCHANGE_ROOT, 0, all, all, (size_t)bytes);
}
