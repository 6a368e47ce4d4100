/* The transport between nodes: packed bytes go out and come in as MPI messages, half of the staging for each. */
#include "comm.h"
#include "error.h"
#include <stdlib.h>

typedef struct { char *send, *receive; } staging;

static char *messages_out(comm *c, comm_exchange x, int half, int dest) {
    (void)half;
    return ((staging *)c->state)->send + (x == EXCHANGE_SCATTER ? dest * c->scatter_bytes : 0);
}
static const char *messages_in(comm *c, comm_exchange x, int half, int src) {
    (void)half;
    return ((staging *)c->state)->receive + (x == EXCHANGE_ROOT ? 0 : src * c->scatter_bytes);
}

static int messages_exchange(comm *c, comm_exchange x, int half, int root, size_t bytes) {
    char *send[c->ranks], *receive[c->ranks];
    for (int r = 0; r < c->ranks; r++) {
        send[r] = messages_out(c, x, half, r);
        receive[r] = (char *)messages_in(c, x, half, r);
    }
    return comm_mpi_exchange(c, x, root, send, receive, bytes);
}

static void messages_close(comm *c) { free(c->state); c->state = NULL; }

static const comm_transport messages_transport = { messages_out, messages_in, messages_exchange, messages_close };

int comm_messages_open(comm *c, const zero_config *config, memory *m) {
    staging *s = malloc(sizeof *s);
    if (!s) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the staging");
    size_t half = (size_t)config->window_bytes / 2;
    c->state = s;
    c->transport = &messages_transport;
    c->scatter_bytes = c->gather_bytes = half / c->ranks / 64 * 64;
    s->send = memory_alloc(m, ZERO_WORKING, "message staging", half);
    s->receive = memory_alloc(m, ZERO_WORKING, "message staging", half);
    return s->send && s->receive ? 0 : ZERO_ERR_MEMORY;
}
