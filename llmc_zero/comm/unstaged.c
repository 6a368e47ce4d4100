// Between nodes, large messages go from array to array, without the two copies through staging. Only data to
// be summed is received into staging. Sums, their order and the traffic are the same as with staging.
#include "../device/kernels.h"
#include "../base/error.h"
#include "host.h"
#include <string.h>

size_t host_unstaged_least = 256 << 10;

int host_goes_unstaged(const comm *c, const comm_call *call) {
    return c->host->unstaged && call->total / call->n >= host_unstaged_least;
}

// Exchanges only the stamp that precedes staged data.
static int announce(comm *c, const comm_call *call) {
    const int64_t *all[c->group.ranks], none = 0;
    return host_announce(c, call, &none, 1, all);
}

// No message is larger than the staging, because the time limit of a wait is chosen for that size.
static int gather_piece(comm *c, const comm_call *call, const comm_piece *p) {
    int ranks = c->group.ranks;
    size_t bytes = p->elems * call->elem_bytes, most = c->host->gather_bytes;
    char *send[ranks], *receive[ranks], *own = p->full + c->group.rank * bytes;
    for (size_t at = 0; at < bytes; at += most) {
        size_t n = bytes - at < most ? bytes - at : most;
        for (int r = 0; r < ranks; r++) {
            send[r] = p->shard + at;
            receive[r] = p->full + r * bytes + at;
        }
        ZERO_TRY(net_exchange(c->net, EXCHANGE_GATHER, host_net_use(call), 0, send, receive, n));
        comm_count(c, call->use, call->kind, (ranks - 1) * n);
    }
    if (own != p->shard) memcpy(own, p->shard, bytes);
    return 0;
}

int host_unstaged_gather(comm *c, const comm_call *call) {
    ZERO_TRY(announce(c, call));
    for (int i = 0; i < call->n; i++) ZERO_TRY(gather_piece(c, call, &call->pieces[i]));
    return 0;
}

// Reduces elements [pos, pos + n) of each rank's part.
static int reduce_run(comm *c, const comm_call *call, const comm_piece *p, int64_t pos, int64_t n) {
    int ranks = c->group.ranks;
    size_t size = call->elem_bytes;
    char *send[ranks], *receive[ranks];
    const void *parts[ranks];
    for (int r = 0; r < ranks; r++) {
        send[r] = p->full + (r * p->elems + pos) * size;
        receive[r] = (char *)c->host->transport->in(c, EXCHANGE_SCATTER, c->host->half, r);
        parts[r] = r == c->group.rank ? send[r] : receive[r];
    }
    ZERO_TRY(net_exchange(c->net, EXCHANGE_SCATTER, host_net_use(call), 0, send, receive, n * size));
    comm_count(c, call->use, call->kind, (ranks - 1) * n * size);
    kernel_sum_ranks(call->shard_type, p->shard + pos * dtype_bytes(call->shard_type), call->full_type, parts,
                     ranks, 1.0f / ranks, n, call->add);
    return 0;
}

int host_unstaged_reduce(comm *c, const comm_call *call) {
    int64_t most = c->host->scatter_bytes / call->elem_bytes;
    ZERO_TRY(announce(c, call));
    for (const comm_piece *p = call->pieces; p < call->pieces + call->n; p++)
        for (int64_t pos = 0; pos < p->elems; pos += most)
            ZERO_TRY(reduce_run(c, call, p, pos, p->elems - pos < most ? p->elems - pos : most));
    return 0;
}
