// Through staging, in rounds of as many elements as fit: each rank packs what it sends, all exchange, and
// each unpacks gathered data, or sums its own part in rank order.
#include "../base/error.h"
#include "host.h"

// The pieces' shards, concatenated.
typedef struct {
    const comm_piece *pieces;
    int64_t total;
} chain;

static chain chain_of(const comm_piece *pieces, int n) {
    chain ch = { pieces, 0 };
    for (int i = 0; i < n; i++) ch.total += pieces[i].elems;
    return ch;
}

// The piece that contains pos, the offset of pos in it, and how many of `len` elements are left in it.
static const comm_piece *chain_at(const chain *ch, int64_t pos, int64_t *inside, int64_t *len) {
    const comm_piece *p = ch->pieces;
    for (; pos >= p->elems; p++) pos -= p->elems;
    if (*len > p->elems - pos) *len = p->elems - pos;
    *inside = pos;
    return p;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Either `to` or `from` is staging.
static int move(comm *c, device *d, void *to, const void *from, size_t bytes) {
    c->host->queued |= d->asynchronous;
    return d->f->copy(d, COMM, to, from, bytes);
}

// -------- reductions

// Packs elements [pos, pos + n) of every other rank's part into staging.
static int pack(comm *c, const comm_call *call, const chain *ch, int64_t pos, int64_t n, size_t size) {
    for (int dest = 0; dest < c->group.ranks; dest++) {
        if (dest == c->group.rank) continue;
        char *out = host_out(c, call, EXCHANGE_SCATTER, dest, 0, n * size);
        for (int64_t done = 0, len; done < n; done += len) {
            int64_t inside;
            len = n - done;
            const comm_piece *p = chain_at(ch, pos + done, &inside, &len);
            const char *from = p->full + (dest * p->elems + inside) * size;
            ZERO_TRY(move(c, c->device, out + done * size, from, len * size));
        }
        comm_count(c, call->use, call->kind, n * size);
    }
    return 0;
}

// The other ranks' data, where the device can read it.
static int receive(comm *c, int half, size_t bytes, rank_parts *sent) {
    const char *in = host_in(c, EXCHANGE_SCATTER, half, 0);
    size_t stride = host_in(c, EXCHANGE_SCATTER, half, 1) - in;
    *sent = (rank_parts){ c->group.ranks, c->group.rank, NULL, in, stride };
    if (!c->incoming) return 0;
    for (int r = 0; r < c->group.ranks; r++)
        if (r != c->group.rank)
            ZERO_TRY(move(c, c->device, c->incoming + r * c->incoming_bytes, in + r * stride, bytes));
    sent->others = c->incoming;
    sent->stride = c->incoming_bytes;
    return 0;
}

// Sums this rank's part of the round.
static int sum_round(comm *c, const chain *ch, int64_t pos, int64_t n, const rank_parts *sent,
                     zero_dtype full_type, zero_dtype shard_type, int add) {
    device *d = c->device;
    size_t size = dtype_bytes(full_type);
    c->host->queued |= d->asynchronous;
    for (int64_t done = 0, len; done < n; done += len) {
        int64_t inside;
        len = n - done;
        const comm_piece *p = chain_at(ch, pos + done, &inside, &len);
        rank_parts parts = *sent;
        parts.own = p->full + (parts.rank * p->elems + inside) * size;
        parts.others += done * size;
        ZERO_TRY(d->f->sum_ranks(d, COMM, shard_type, p->shard + inside * dtype_bytes(shard_type), full_type,
                                 &parts, 1.0f / parts.ranks, len, add));
    }
    return 0;
}

int host_staged_reduce(comm *c, const comm_call *call, const comm_piece *pieces, int n_pieces,
                       zero_dtype full_type, zero_dtype shard_type, int add) {
    const chain ch = chain_of(pieces, n_pieces);
    size_t size = dtype_bytes(full_type);
    int64_t chunk = (c->host->scatter_bytes - STAMP_BYTES) / size;
    rank_parts sent;
    for (int64_t pos = 0; pos < ch.total; pos += chunk) {
        int64_t n = least(ch.total - pos, chunk);
        int half = c->host->half;
        ZERO_TRY(pack(c, call, &ch, pos, n, size));
        ZERO_TRY(host_exchange(c, call, EXCHANGE_SCATTER, 0, n * size));
        ZERO_TRY(receive(c, half, n * size, &sent));
        ZERO_TRY(sum_round(c, &ch, pos, n, &sent, full_type, shard_type, add));
    }
    return 0;
}

// -------- gathers

// Copies into staging and into this rank's own part; own may equal from. On a CPU in pieces small enough to
// be in the cache for the second copy.
static int copy_twice(comm *c, device *d, char *out, char *own, const char *from, size_t bytes) {
    size_t piece = d->asynchronous ? bytes : 16 << 10;
    for (size_t at = 0; at < bytes; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        ZERO_TRY(move(c, d, out + at, from + at, n));
        if (own != from) ZERO_TRY(move(c, d, own + at, from + at, n));
    }
    return 0;
}

static int unpack(comm *c, device *d, int src, const char *in, const chain *ch, int64_t pos, int64_t n,
                  size_t size) {
    for (int64_t done = 0, len; done < n; done += len) {
        int64_t inside;
        len = n - done;
        const comm_piece *p = chain_at(ch, pos + done, &inside, &len);
        ZERO_TRY(move(c, d, p->full + (src * p->elems + inside) * size, in + done * size, len * size));
    }
    return 0;
}

static int gather_round(comm *c, const comm_call *call, device *d, const chain *ch, int64_t pos, int64_t n,
                        size_t size) {
    int half = c->host->half;
    char *out = host_out(c, call, EXCHANGE_GATHER, 0, 0, n * size);
    for (int64_t done = 0, len; done < n; done += len) {
        int64_t inside;
        len = n - done;
        const comm_piece *p = chain_at(ch, pos + done, &inside, &len);
        char *own = p->full + (c->group.rank * p->elems + inside) * size;
        ZERO_TRY(copy_twice(c, d, out + done * size, own, p->shard + inside * size, len * size));
    }
    ZERO_TRY(host_exchange(c, call, EXCHANGE_GATHER, 0, n * size));
    for (int r = 0; r < c->group.ranks; r++) {
        if (r == c->group.rank) continue;
        ZERO_TRY(unpack(c, d, r, host_in(c, EXCHANGE_GATHER, half, r), ch, pos, n, size));
        // r has copied as much to us as we to r
        comm_count(c, call->use, call->kind, n * size);
    }
    return 0;
}

int host_staged_gather(comm *c, const comm_call *call, device *d, const comm_piece *pieces, int n,
                       size_t elem_bytes) {
    const chain ch = chain_of(pieces, n);
    int64_t chunk = (c->host->gather_bytes - STAMP_BYTES) / elem_bytes;
    for (int64_t pos = 0; pos < ch.total; pos += chunk)
        ZERO_TRY(gather_round(c, call, d, &ch, pos, least(ch.total - pos, chunk), elem_bytes));
    return 0;
}
