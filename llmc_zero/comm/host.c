// The collectives through host memory: chooses how their bytes are sent.
#include "host.h"
#include "../base/error.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// -------- collectives

static comm_call call_of(comm_use use, const comm_piece *pieces, int n, size_t elem_bytes) {
    return (comm_call){ .use = use,
                        .kind = COMM_ALL_GATHER,
                        .name = "an all-gather",
                        .pieces = pieces,
                        .n = n,
                        .elem_bytes = elem_bytes };
}

static int host_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n, size_t elem_bytes) {
    const comm_call call = call_of(use, pieces, n, elem_bytes);
    return host_staged_gather(c, &call, c->device);
}

static int host_reduce_scatter(comm *c, comm_use use, const comm_piece *pieces, int n, zero_dtype full_type,
                               zero_dtype shard_type, int add) {
    comm_call call = call_of(use, pieces, n, dtype_bytes(full_type));
    call.kind = COMM_REDUCE_SCATTER;
    call.name = "a reduce-scatter";
    call.full_type = full_type;
    call.shard_type = shard_type;
    call.add = add;
    return host_staged_reduce(c, &call);
}

// -------- in host memory

int comm_broadcast(comm *c, comm_use use, int root, void *data, size_t bytes) {
    const comm_call call = { .use = use, .kind = COMM_OTHER, .name = "a broadcast" };
    if (c->group.ranks == 1) return 0;
    size_t room = c->host->gather_bytes - STAMP_BYTES;
    for (size_t pos = 0; pos < bytes; pos += room) {
        size_t n = bytes - pos < room ? bytes - pos : room;
        int half = c->host->half;
        if (c->group.rank == root) {
            memcpy(host_out(c, &call, EXCHANGE_ROOT, 0, root, n), (char *)data + pos, n);
            comm_count(c, use, COMM_OTHER, n * (c->group.ranks - 1));
        }
        ZERO_TRY(host_exchange(c, &call, EXCHANGE_ROOT, root, n));
        if (c->group.rank != root) memcpy((char *)data + pos, host_in(c, EXCHANGE_ROOT, half, root), n);
    }
    return 0;
}

// Counts its bytes as COMM_OTHER, because it does not gather parameters.
int comm_share(comm *c, comm_use use, const double *mine, double *all, int n) {
    comm_piece p = { (char *)all, (char *)mine, n };
    comm_call call = call_of(use, &p, 1, sizeof *mine);
    call.kind = COMM_OTHER;
    if (c->group.ranks > 1) return host_staged_gather(c, &call, &device_host);
    memcpy(all, mine, n * sizeof *mine);
    return 0;
}

int comm_barrier(comm *c) { return c->group.ranks == 1 ? 0 : host_barrier(c, &(comm_call){ .name = NULL }); }

const comm_functions comm_host_functions = { .all_gather = host_all_gather,
                                             .reduce_scatter = host_reduce_scatter,
                                             .close = comm_close_host };

// -------- opening and closing

static int open_staging(comm *c, const zero_config *config, memory *m, int *window) {
    char why[96] = "as configured";
    if (!(c->host = calloc(1, sizeof *c->host)))
        return zero_fail(ZERO_ERR_MEMORY, "out of memory for the collectives' state");
    if (config->comm.shared_window) *window = host_open_window(c, config, m, why, sizeof why);
    if (*window < 0) return *window;
    if (!*window) {
        snprintf(c->name, sizeof c->name, "%s, messages (%s)", c->net->name, why);
        ZERO_TRY(host_open_messages(c, config, m));
    }
    return 0;
}

int comm_open_host(comm *c, const zero_config *config, memory *m) {
    int window = 0;
    c->f = &comm_host_functions;
    return net_agree(c->net, open_staging(c, config, m, &window));
}

void comm_close_host(comm *c, int clean) {
    struct comm_host *h = c->host;
    if (h && h->transport) h->transport->close(c);
    free(h);
    c->host = NULL;
}
