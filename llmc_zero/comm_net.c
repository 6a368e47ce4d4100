/* What the ranks tell each other at the start, by either net's exchange. */
#include "comm_net.h"
#include "error.h"

int comm_net_agree(comm *c, int value) {
    int all[c->ranks], least = value;
    char *send[c->ranks], *receive[c->ranks];
    for (int r = 0; r < c->ranks; r++) {
        all[r] = value;
        send[r] = (char *)&value;
        receive[r] = (char *)&all[r];
    }
    ZERO_TRY(c->net->exchange(c, EXCHANGE_GATHER, 0, send, receive, sizeof value));
    for (int r = 0; r < c->ranks; r++) least = all[r] < least ? all[r] : least;
    return least;
}

int comm_net_broadcast_text(comm *c, char *text, int bytes) {
    char *all[c->ranks];
    for (int r = 0; r < c->ranks; r++) all[r] = text;
    return c->net->exchange(c, EXCHANGE_ROOT, 0, all, all, (size_t)bytes);
}
