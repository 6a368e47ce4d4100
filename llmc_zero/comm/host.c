#include "nccl.h"
#include "../net/failure.h"
#include "../error.h"
#include "../device/kernels.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// 1: a window, 0: messages
static int open_transport(comm *c, const zero_config *config, memory *m) {
    char why[96] = "as configured";
    if (config->comm.shared_window) {
        int opened = comm_window_open(c, config, m, why, sizeof why);
        if (opened) return opened;
    }
    snprintf(c->name, sizeof c->name, "%s, messages (%s)", c->net->name, why);
    return comm_messages_open(c, config, m);
}

static int open_staging(comm *c, const zero_config *config, device *d, memory *m, int *window) {
    *window = open_transport(c, config, m);
    if (*window < 0) return *window;
    ZERO_TRY(comm_check_room(config, &(comm_room){ .scatter_bytes = c->scatter_bytes }, c->ranks));
    if (!c->planned[COMM_ADDRESSES].blocks) return 0;
    d->table = memory_alloc(m, &c->planned[COMM_ADDRESSES]);
    return d->table ? 0 : ZERO_ERR_MEMORY;
}

int comm_open_incoming(comm *c, memory *m) {
    if (c->ranks == 1 || !c->device->asynchronous || c->nccl) return 0;
    c->incoming = memory_alloc(m, &c->planned[COMM_INCOMING]);
    return c->incoming ? 0 : ZERO_ERR_MEMORY;
}

void comm_join(comm *c, net *n) { *c = (comm){ .net = n, .rank = n->rank, .ranks = n->ranks }; }

int comm_open(comm *c, const zero_config *config, device *d, memory *m) {
    c->device = d;
    c->gather_stream = COMM;
    if (c->ranks == 1) {
        snprintf(c->name, sizeof c->name, c->net->f ? "%s, one rank" : "%s", c->net->name);
        return 0;
    }
    int window = 0;
    ZERO_TRY(failure_agree(c->net, open_staging(c, config, d, m, &window)));
    return window ? comm_direct_open(c) : 0;
}

void comm_close(comm *c) {
    if (c->transport) c->transport->close(c);
    c->transport = NULL;
}

net_use comm_net_use(const comm *c) {
    return (net_use){ .name = c->part_of, .unit = c->use.unit, .units = c->use.units };
}

void comm_count(comm *c, comm_kind kind, size_t bytes) {
    int64_t *kinds[] = { c->traffic.all_gather, c->traffic.reduce_scatter, c->traffic.other };
    int64_t *counter = c->use.counter ? c->use.counter : &kinds[kind][c->use.purpose];
    *counter += (int64_t)bytes;
}

// Goes before the bytes of every exchange. Ranks that call in different orders would else read each other's
// bytes for their own.
typedef struct {
    uint32_t number, exchange;
    int32_t root, unit, units, purpose;
    int64_t bytes;
} stamp;

static stamp stamp_of(const comm *c, exchange_kind x, int root, size_t bytes) {
    return (
        stamp){ c->exchanges, x, root, c->use.unit, c->use.units, (int32_t)c->use.purpose, (int64_t)bytes };
}

static char *out_stamped(comm *c, exchange_kind x, int dest, int root, size_t bytes) {
    stamp s = stamp_of(c, x, root, bytes);
    return (char *)memcpy(c->transport->out(c, x, c->half, dest), &s, sizeof s) + STAMP_BYTES;
}

static int check_stamp(comm *c, exchange_kind x, int src, const stamp *mine) {
    stamp s;
    memcpy(&s, c->transport->in(c, x, c->half ^ 1, src), sizeof s);
    if (!memcmp(&s, mine, sizeof s)) return 0;
    char units[48] = "";
    if (mine->units && s.units && mine->unit != s.unit)
        snprintf(units, sizeof units, " (units %d and %d)", (int)mine->unit, (int)s.unit);
    return zero_fail(ZERO_ERR_COMM,
                     "rank %d and rank %d are in different collectives%s: all ranks must call the same hooks "
                     "in the same order, in "
                     "validation and sampling too",
                     c->rank, src, units);
}

// Before it the host's staging holds what goes out, and nothing on the device reads what came in with the
// exchange before: with NCCL the device does not use that staging at all. bytes: what the stamp says.
static int exchange_for(comm *c, exchange_kind x, int root, size_t bytes, size_t carried) {
    stamp mine = stamp_of(c, x, root, bytes);
    if (!c->nccl) ZERO_TRY(c->device->f->wait(c->device, COMM));
    ZERO_TRY(c->transport->exchange(c, x, c->half, root, x == EXCHANGE_BARRIER ? 0 : STAMP_BYTES + carried));
    c->half ^= 1;
    c->exchanges++;
    for (int r = 0; r < c->ranks && x != EXCHANGE_BARRIER; r++)
        if (r != c->rank && (x != EXCHANGE_ROOT || r == root)) ZERO_TRY(check_stamp(c, x, r, &mine));
    return 0;
}

static int exchange(comm *c, exchange_kind x, int root, size_t bytes) {
    return exchange_for(c, x, root, bytes, bytes);
}

int comm_announce(comm *c, comm_kind kind, size_t total, const int64_t *mine, int n, const int64_t **all) {
    int half = c->half;
    memcpy(out_stamped(c, EXCHANGE_GATHER, 0, kind, total), mine, n * sizeof *mine);
    ZERO_TRY(exchange_for(c, EXCHANGE_GATHER, kind, total, n * sizeof *mine));
    for (int r = 0; r < c->ranks; r++)
        all[r] = (const int64_t *)(c->transport->in(c, EXCHANGE_GATHER, half, r) + STAMP_BYTES);
    return 0;
}

// The pieces' shards, seen as one long shard: calls fn for each run of elements [pos, pos + len) of it that
// lies in one piece.
typedef struct {
    const comm_piece *pieces;
    int n;
    int64_t total;
} chain;
static chain chain_of(const comm_piece *pieces, int n) {
    chain ch = { pieces, n, 0 };
    for (int i = 0; i < n; i++) ch.total += pieces[i].elems;
    return ch;
}
// The piece at pos, where pos lies in it, and how many of `len` elements are left in it.
static const comm_piece *chain_at(const chain *ch, int64_t pos, int64_t *inside, int64_t *len) {
    const comm_piece *p = ch->pieces;
    for (; pos >= p->elems; p++) pos -= p->elems;
    if (*len > p->elems - pos) *len = p->elems - pos;
    *inside = pos;
    return p;
}

static int move(device *d, void *to, const void *from, size_t bytes) {
    return d->f->copy(d, COMM, to, from, bytes);
}

// What rank src sent for this round's sum, where the device can read it; *rc is set on failure.
static const char *received(comm *c, int half, int src, size_t bytes, int *rc) {
    const char *in = c->transport->in(c, EXCHANGE_SCATTER, half, src) + STAMP_BYTES;
    if (!c->incoming) return in;
    char *own = c->incoming + src * c->scatter_bytes;
    *rc = move(c->device, own, in, bytes);
    return own;
}

static int reduce_round(comm *c, const chain *ch, int64_t pos, int64_t n, zero_dtype full_type,
                        zero_dtype shard_type, int add) {
    size_t size = dtype_bytes(full_type);
    for (int dest = 0; dest < c->ranks; dest++) {  // pack what the others own
        if (dest == c->rank) continue;
        char *out = out_stamped(c, EXCHANGE_SCATTER, dest, 0, n * size);
        for (int64_t done = 0, len; done < n; done += len) {
            int64_t inside;
            len = n - done;
            const comm_piece *p = chain_at(ch, pos + done, &inside, &len);
            ZERO_TRY(
                move(c->device, out + done * size, p->full + (dest * p->elems + inside) * size, len * size));
        }
        comm_count(c, COMM_REDUCE_SCATTER, n * size);
    }
    int half = c->half, rc = 0;
    ZERO_TRY(exchange(c, EXCHANGE_SCATTER, 0, n * size));
    const char *others[c->ranks];
    const void *parts[c->ranks];
    for (int r = 0; r < c->ranks && !rc; r++)
        if (r != c->rank) others[r] = received(c, half, r, n * size, &rc);
    ZERO_TRY(rc);
    for (int64_t done = 0, len; done < n; done += len) {  // sum what this rank owns
        int64_t inside;
        len = n - done;
        const comm_piece *p = chain_at(ch, pos + done, &inside, &len);
        for (int r = 0; r < c->ranks; r++)
            parts[r] = r == c->rank ? p->full + (r * p->elems + inside) * size : others[r] + done * size;
        ZERO_TRY(c->device->f->sum_ranks(c->device, COMM, shard_type,
                                         p->shard + inside * dtype_bytes(shard_type), full_type, parts,
                                         c->ranks, 1.0f / c->ranks, len, add));
    }
    return 0;
}

static int reduce_scatter(comm *c, const comm_piece *pieces, int n, zero_dtype full_type,
                          zero_dtype shard_type, int add) {
    chain ch = chain_of(pieces, n);
    if (c->ranks == 1) {
        for (int i = 0; i < n; i++)
            if (pieces[i].shard != pieces[i].full) {
                const void *part = pieces[i].full;
                ZERO_TRY(c->device->f->sum_ranks(c->device, COMM, shard_type, pieces[i].shard, full_type,
                                                 &part, 1, 1.0f, pieces[i].elems, add));
            }
        return 0;
    }
    size_t total = ch.total * c->ranks * dtype_bytes(full_type);
    if (comm_goes_direct(c, COMM_REDUCE_SCATTER, total, n))
        return comm_direct_reduce(c, pieces, n, full_type, shard_type, add, total);
    if (comm_goes_unstaged(c, total, n))
        return comm_unstaged_reduce(c, pieces, n, full_type, shard_type, add, total);
    int64_t chunk = (c->scatter_bytes - STAMP_BYTES) / dtype_bytes(full_type);
    for (int64_t pos = 0; pos < ch.total; pos += chunk)
        ZERO_TRY(reduce_round(c, &ch, pos, ch.total - pos < chunk ? ch.total - pos : chunk, full_type,
                              shard_type, add));
    return 0;
}

int comm_reduce_scatter(comm *c, comm_use use, const comm_piece *pieces, int n, zero_dtype full_type,
                        zero_dtype shard_type, int add) {
    c->use = use;
    if (c->nccl) return comm_nccl_reduce_scatter(c, use, pieces, n, full_type, shard_type, add);
    c->part_of = "a reduce-scatter";
    int rc = reduce_scatter(c, pieces, n, full_type, shard_type, add);
    c->part_of = NULL;
    return rc;
}

// Into staging and into this rank's own part; own may be from. On a processor in pieces that the cache still
// holds at the second copy.
static int copy_twice(device *d, char *out, char *own, const char *from, size_t bytes) {
    size_t piece = d->asynchronous ? bytes : 16 << 10;
    for (size_t at = 0; at < bytes; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        ZERO_TRY(move(d, out + at, from + at, n));
        if (own != from) ZERO_TRY(move(d, own + at, from + at, n));
    }
    return 0;
}

static int gather_round(comm *c, comm_kind kind, device *d, const chain *ch, int64_t pos, int64_t n,
                        size_t size) {
    char *out = out_stamped(c, EXCHANGE_GATHER, 0, 0, n * size);
    for (int64_t done = 0, len; done < n; done += len) {
        int64_t inside;
        len = n - done;
        const comm_piece *p = chain_at(ch, pos + done, &inside, &len);
        ZERO_TRY(copy_twice(d, out + done * size, p->full + (c->rank * p->elems + inside) * size,
                            p->shard + inside * size, len * size));
    }
    int half = c->half;
    ZERO_TRY(exchange(c, EXCHANGE_GATHER, 0, n * size));
    for (int r = 0; r < c->ranks; r++) {
        if (r == c->rank) continue;
        const char *in = c->transport->in(c, EXCHANGE_GATHER, half, r) + STAMP_BYTES;
        for (int64_t done = 0, len; done < n; done += len) {
            int64_t inside;
            len = n - done;
            const comm_piece *p = chain_at(ch, pos + done, &inside, &len);
            ZERO_TRY(move(d, p->full + (r * p->elems + inside) * size, in + done * size, len * size));
        }
        comm_count(c, kind, n * size);  // what r copied to us is what we copied to r
    }
    return 0;
}

// Through staging.
static int gather_rounds(comm *c, comm_kind kind, device *d, const chain *ch, size_t elem_bytes) {
    int64_t chunk = (c->gather_bytes - STAMP_BYTES) / elem_bytes;
    for (int64_t pos = 0; pos < ch->total; pos += chunk) {
        int64_t left = ch->total - pos;
        ZERO_TRY(gather_round(c, kind, d, ch, pos, left < chunk ? left : chunk, elem_bytes));
    }
    return 0;
}

static int gather_pieces(comm *c, const comm_piece *pieces, int n, size_t elem_bytes) {
    chain ch = chain_of(pieces, n);
    if (c->ranks == 1) {
        for (int i = 0; i < n; i++)
            if (pieces[i].shard != pieces[i].full)
                ZERO_TRY(move(c->device, pieces[i].full, pieces[i].shard, pieces[i].elems * elem_bytes));
        return 0;
    }
    size_t total = ch.total * c->ranks * elem_bytes;
    if (comm_goes_direct(c, COMM_ALL_GATHER, total, n))
        return comm_direct_gather(c, pieces, n, elem_bytes, total);
    if (comm_goes_unstaged(c, total, n)) return comm_unstaged_gather(c, pieces, n, elem_bytes, total);
    return gather_rounds(c, COMM_ALL_GATHER, c->device, &ch, elem_bytes);
}

int comm_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n, size_t elem_bytes) {
    c->use = use;
    if (c->nccl) return comm_nccl_all_gather(c, use, pieces, n, elem_bytes);
    c->part_of = "an all-gather";
    int rc = gather_pieces(c, pieces, n, elem_bytes);
    c->part_of = NULL;
    return rc;
}

int comm_broadcast(comm *c, comm_use use, int root, void *data, size_t bytes) {
    c->use = use;
    if (c->ranks == 1) return 0;
    for (size_t pos = 0; pos < bytes; pos += c->gather_bytes - STAMP_BYTES) {
        size_t room = c->gather_bytes - STAMP_BYTES, n = bytes - pos < room ? bytes - pos : room;
        int half = c->half;
        if (c->rank == root) {
            memcpy(out_stamped(c, EXCHANGE_ROOT, 0, root, n), (char *)data + pos, n);
            comm_count(c, COMM_OTHER, n * (c->ranks - 1));
        }
        ZERO_TRY(exchange(c, EXCHANGE_ROOT, root, n));
        if (c->rank != root)
            memcpy((char *)data + pos, c->transport->in(c, EXCHANGE_ROOT, half, root) + STAMP_BYTES, n);
    }
    return 0;
}

int comm_share(comm *c, comm_use use, const double *mine, double *all, int n) {
    comm_piece p = { (char *)all, (char *)mine, n };
    chain ch = chain_of(&p, 1);
    c->use = use;
    if (c->ranks == 1) {
        memcpy(all, mine, n * sizeof *mine);
        return 0;
    }
    c->part_of = "an all-gather";
    int rc = gather_rounds(c, COMM_OTHER, &device_host, &ch, sizeof *mine);
    c->part_of = NULL;
    return rc;
}

int comm_barrier(comm *c) { return c->ranks == 1 ? 0 : exchange(c, EXCHANGE_BARRIER, 0, 0); }
