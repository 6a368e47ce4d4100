// The transport between nodes: packed bytes go out and come in as messages, half of the staging for each.
#include "comm.h"
#include "../error.h"
#include <stdlib.h>

typedef struct {
    char *send, *receive;
} staging;

static char *messages_out(comm *c, exchange_kind x, int half, int dest) {
    (void)half;
    return ((staging *)c->state)->send + (x == EXCHANGE_SCATTER ? dest * c->scatter_bytes : 0);
}
static const char *messages_in(comm *c, exchange_kind x, int half, int src) {
    (void)half;
    return ((staging *)c->state)->receive + (x == EXCHANGE_ROOT ? 0 : src * c->scatter_bytes);
}

static int messages_exchange(comm *c, exchange_kind x, int half, int root, size_t bytes) {
    char *send[c->ranks], *receive[c->ranks];
    for (int r = 0; r < c->ranks; r++) {
        send[r] = messages_out(c, x, half, r);
        receive[r] = (char *)messages_in(c, x, half, r);
    }
    return net_exchange(c->net, x, comm_net_use(c), root, send, receive, bytes);
}

static void messages_close(comm *c) {
    staging *s = c->state;
    if (s->send) c->device->f->unpin(c->device, s->send);
    if (s->receive) c->device->f->unpin(c->device, s->receive);
    free(s);
    c->state = NULL;
}

static const comm_transport messages_transport = { messages_out, messages_in, messages_exchange,
                                                   messages_close };

int comm_messages_open(comm *c, const zero_config *config, memory *m) {
    staging *s = calloc(1, sizeof *s);
    if (!s) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the staging");
    comm_room room = comm_messages_room(config, c->ranks);
    c->state = s;
    c->transport = &messages_transport;
    c->unstaged = !c->device->asynchronous;
    c->scatter_bytes = room.scatter_bytes;
    c->gather_bytes = room.gather_bytes;
    s->send = memory_alloc(m, &c->planned[COMM_MESSAGES]);
    s->receive = memory_alloc(m, &c->planned[COMM_MESSAGES]);
    if (!s->send || !s->receive) return ZERO_ERR_MEMORY;
    ZERO_TRY(c->device->f->pin(c->device, s->send, room.bytes));
    return c->device->f->pin(c->device, s->receive, room.bytes);
}
