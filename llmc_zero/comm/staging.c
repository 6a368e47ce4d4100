#include "staging.h"
#include "../base/error.h"
#include "../net/exchange.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// -------- addresses

// A window has two halves, so that a rank can fill one while others still read the other. Messages need one.
static char *out_at(const comm_host *h, exchange_kind x, int dest) {
    return h->out + h->half * h->half_bytes + (x == EXCHANGE_SCATTER ? dest * h->part : 0);
}
static char *in_at(const comm_host *h, exchange_kind x, int src) {
    const size_t part = x == EXCHANGE_SCATTER ? h->in_part : 0;
    return h->in + (h->half ^ 1) * h->half_bytes + src * h->in_stride + part;
}
char *staging_out(const comm *c, exchange_kind x, int dest) { return out_at(c->host, x, dest) + STAMP_BYTES; }
char *staging_in(const comm *c, exchange_kind x, int src) { return in_at(c->host, x, src) + STAMP_BYTES; }

// -------- exchanges

// Lets ranks check that they are in the same collective before they use each other's data.
typedef struct {
    uint32_t number, kind;
    int32_t root, unit, units, purpose;
    int64_t bytes;
} stamp;

static int check_stamp(comm *c, exchange_kind x, int src, const stamp *mine) {
    stamp s;
    memcpy(&s, in_at(c->host, x, src), sizeof s);
    if (!memcmp(&s, mine, sizeof s)) return 0;
    char units[48] = "";
    if (mine->units && s.units && mine->unit != s.unit)
        snprintf(units, sizeof units, " (units %d and %d)", (int)mine->unit, (int)s.unit);
    return net_fail_unlike(c->net, src, units);
}

static int exchange_messages(comm *c, net_use use, exchange_kind x, int root, size_t bytes) {
    char *send[c->group.ranks], *receive[c->group.ranks];
    for (int r = 0; r < c->group.ranks; r++) {
        send[r] = out_at(c->host, x, r);
        receive[r] = in_at(c->host, x, r);
    }
    return net_exchange(c->net, x, use, root, send, receive, bytes);
}

// First waits until the device has filled the staging and has read the data of the last exchange.
int staging_exchange(comm *c, comm_use use, exchange_kind x, int root, size_t bytes) {
    comm_host *h = c->host;
    const net_use waits = { use.unit, use.units };
    const stamp mine = { h->exchanges, x, root, use.unit, use.units, use.purpose, (int64_t)bytes };
    for (int r = 0; r < c->group.ranks; r++) memcpy(out_at(h, x, r), &mine, sizeof mine);
    if (h->queued) ZERO_TRY(c->device->f->wait(c->device, COMM));
    h->queued = 0;
    ZERO_TRY(h->window ? window_meet(h->window, waits, x)
                       : exchange_messages(c, waits, x, root, STAMP_BYTES + bytes));
    h->half ^= 1;
    h->exchanges++;
    for (int r = 0; r < c->group.ranks; r++) {
        const int sends = r != c->group.rank && (x != EXCHANGE_ROOT || r == root);
        if (sends) ZERO_TRY(check_stamp(c, x, r, &mine));
    }
    return 0;
}

// -------- opening and closing

// The window is (ranks, 2, half). In each half of its part a rank has bytes for all ranks, or a part for
// each.
static int use_window(comm *c, memory *m, size_t half) {
    comm_host *h = c->host;
    h->half_bytes = half;
    h->in_stride = 2 * half;
    h->in_part = c->group.rank * h->part;
    h->gather_bytes = half - STAMP_BYTES;
    h->in = window_memory(h->window);
    h->out = h->in + c->group.rank * h->in_stride;
    ZERO_TRY(c->device->f->pin(c->device, h->in, c->group.ranks * h->in_stride));
    return memory_note(m, &c->planned[COMM_WINDOW]);
}

// The buffers are (ranks, part).
static int use_messages(comm *c, memory *m, size_t bytes) {
    comm_host *h = c->host;
    device *d = c->device;
    h->in_stride = h->part;
    h->gather_bytes = h->scatter_bytes;
    h->out = memory_alloc(m, &c->planned[COMM_MESSAGES]);
    h->in = memory_alloc(m, &c->planned[COMM_MESSAGES]);
    if (!h->out || !h->in) return ZERO_ERR_MEMORY;
    ZERO_TRY(d->f->pin(d, h->out, bytes));
    return d->f->pin(d, h->in, bytes);
}

int staging_open(comm *c, const zero_config *config, memory *m) {
    const size_t half = c->planned[COMM_MESSAGES].bytes;
    const int waiting = c->group.ranks * (1 + config->overlap);
    char why[WINDOW_WHY] = "as configured";
    comm_host *h = c->host = calloc(1, sizeof *h);
    if (!h) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the collectives' state");
    h->part = comm_part(half, c->group.ranks);
    h->scatter_bytes = h->part - STAMP_BYTES;
    if (config->comm.shared_window) ZERO_TRY(window_open(&h->window, c->net, 2 * half, waiting, why));
    if (h->window)
        snprintf(c->name, sizeof c->name, "%s, shared window", c->net->name);
    else
        snprintf(c->name, sizeof c->name, "%s, messages (%s)", c->net->name, why);
    return h->window ? use_window(c, m, half) : use_messages(c, m, half);
}

void staging_close(comm *c) {
    comm_host *h = c->host;
    device *d = c->device;
    if (!h) return;
    if (h->in) d->f->unpin(d, h->in);
    if (h->out && !h->window) d->f->unpin(d, h->out);
    if (h->window) window_close(h->window);
    free(h);
    c->host = NULL;
}
