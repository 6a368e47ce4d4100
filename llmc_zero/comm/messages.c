// The transport between nodes: packed bytes sent as messages, from one buffer into another.
#include "../base/error.h"
#include "host.h"
#include <stdlib.h>

typedef struct {
    char *send, *receive;
} staging;

static char *messages_out(comm *c, exchange_kind x, int half, int dest) {
    const staging *s = c->host->state;
    return s->send + (x == EXCHANGE_SCATTER ? dest * c->host->scatter_bytes : 0);
}

static const char *messages_in(comm *c, exchange_kind x, int half, int src) {
    const staging *s = c->host->state;
    return s->receive + (x == EXCHANGE_ROOT ? 0 : src * c->host->scatter_bytes);
}

static int messages_exchange(comm *c, const comm_call *call, exchange_kind x, int half, int root,
                             size_t bytes) {
    char *send[c->group.ranks], *receive[c->group.ranks];
    for (int r = 0; r < c->group.ranks; r++) {
        send[r] = messages_out(c, x, half, r);
        receive[r] = (char *)messages_in(c, x, half, r);
    }
    return net_exchange(c->net, x, host_net_use(call), root, send, receive, bytes);
}

static void messages_close(comm *c) {
    device *d = c->device;
    staging *s = c->host->state;
    if (s->send) d->f->unpin(d, s->send);
    if (s->receive) d->f->unpin(d, s->receive);
    free(s);
}

static const comm_transport messages_transport = {
    .out = messages_out, .in = messages_in, .exchange = messages_exchange, .close = messages_close
};

int host_open_messages(comm *c, const zero_config *config, memory *m) {
    device *d = c->device;
    struct comm_host *h = c->host;
    staging *s = calloc(1, sizeof *s);
    if (!s) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the staging");
    comm_room room = comm_messages_room(config, c->group.ranks);
    h->state = s;
    h->transport = &messages_transport;
    h->scatter_bytes = room.scatter_bytes;
    h->gather_bytes = room.gather_bytes;
    s->send = memory_alloc(m, &c->planned[COMM_MESSAGES]);
    s->receive = memory_alloc(m, &c->planned[COMM_MESSAGES]);
    if (!s->send || !s->receive) return ZERO_ERR_MEMORY;
    ZERO_TRY(d->f->pin(d, s->send, room.bytes));
    return d->f->pin(d, s->receive, room.bytes);
}
