// Between hosts large buffers go straight from the arrays onto the network, and from it into them: through
// staging each byte would be copied twice more. What comes in to be summed waits for that in staging. Sums,
// their order and the traffic are the same.
#include "comm.h"
#include "../error.h"
#include "../device/kernels.h"
#include <string.h>

size_t comm_unstaged_least = 256 << 10;

int comm_goes_unstaged(const comm *c, size_t total, int n) {
    return c->unstaged && total / n >= comm_unstaged_least;
}

// The stamp that staged bytes would have before them.
static int announce(comm *c, comm_kind kind, size_t total) {
    const int64_t *all[c->ranks], none = 0;
    return comm_announce(c, kind, total, &none, 1, all);
}

// Messages as long as those through staging: the limit of a wait is one for so many bytes.
static int gather_piece(comm *c, const comm_piece *p, size_t elem_bytes) {
    size_t bytes = p->elems * elem_bytes;
    char *send[c->ranks], *receive[c->ranks], *own = p->full + c->rank * bytes;
    for (size_t at = 0; at < bytes; at += c->gather_bytes) {
        size_t n = bytes - at < c->gather_bytes ? bytes - at : c->gather_bytes;
        for (int r = 0; r < c->ranks; r++) {
            send[r] = p->shard + at;
            receive[r] = p->full + r * bytes + at;
        }
        ZERO_TRY(net_exchange(c->net, EXCHANGE_GATHER, comm_net_use(c), 0, send, receive, n));
        comm_count(c, COMM_ALL_GATHER, (c->ranks - 1) * n);
    }
    if (own != p->shard) memcpy(own, p->shard, bytes);
    return 0;
}

int comm_unstaged_gather(comm *c, const comm_piece *pieces, int n, size_t elem_bytes, size_t total) {
    ZERO_TRY(announce(c, COMM_ALL_GATHER, total));
    for (int i = 0; i < n; i++) ZERO_TRY(gather_piece(c, &pieces[i], elem_bytes));
    return 0;
}

// Elements [pos, pos + n) of each rank's part.
static int reduce_run(comm *c, const comm_piece *p, int64_t pos, int64_t n, zero_dtype full_type,
                      zero_dtype shard_type, int add) {
    size_t size = dtype_bytes(full_type);
    char *send[c->ranks], *receive[c->ranks];
    const void *parts[c->ranks];
    for (int r = 0; r < c->ranks; r++) {
        send[r] = p->full + (r * p->elems + pos) * size;
        receive[r] = (char *)c->transport->in(c, EXCHANGE_SCATTER, c->half, r);
        parts[r] = r == c->rank ? send[r] : receive[r];
    }
    ZERO_TRY(net_exchange(c->net, EXCHANGE_SCATTER, comm_net_use(c), 0, send, receive, n * size));
    comm_count(c, COMM_REDUCE_SCATTER, (c->ranks - 1) * n * size);
    kernel_sum_ranks(shard_type, p->shard + pos * dtype_bytes(shard_type), full_type, parts, c->ranks,
                     1.0f / c->ranks, n, add);
    return 0;
}

int comm_unstaged_reduce(comm *c, const comm_piece *pieces, int n, zero_dtype full_type,
                         zero_dtype shard_type, int add, size_t total) {
    int64_t most = c->scatter_bytes / dtype_bytes(full_type);
    ZERO_TRY(announce(c, COMM_REDUCE_SCATTER, total));
    for (const comm_piece *p = pieces; p < pieces + n; p++)
        for (int64_t pos = 0; pos < p->elems; pos += most)
            ZERO_TRY(reduce_run(c, p, pos, p->elems - pos < most ? p->elems - pos : most, full_type,
                                shard_type, add));
    return 0;
}
