#include "staging.h"
#include "../base/error.h"
#include <stdio.h>
#include <string.h>

// -------- addresses

// A window has two halves, so that a rank can fill one while others still read the other. Messages need one.
// The stamp is before the bytes.
char *staging_out(const staging *s, exchange_kind x, int dest) {
    return s->out + s->half * s->half_bytes + (x == EXCHANGE_SCATTER ? dest * s->part : 0) + STAMP_BYTES;
}
char *staging_in(const staging *s, exchange_kind x, int src) {
    const size_t part = x == EXCHANGE_SCATTER ? s->in_part : 0;
    return s->in + (s->half ^ 1) * s->half_bytes + src * s->in_stride + part + STAMP_BYTES;
}

// -------- exchanges

// Lets ranks check that they are in the same collective before they use each other's data.
typedef struct {
    uint32_t number, kind;
    int32_t root, unit, units, purpose;
    int64_t bytes;
} stamp;

static int check_stamp(comm *c, const staging *s, exchange_kind x, int src, const stamp *mine) {
    stamp theirs;
    memcpy(&theirs, staging_in(s, x, src) - STAMP_BYTES, sizeof theirs);
    if (!memcmp(&theirs, mine, sizeof theirs)) return 0;
    char units[48] = "";
    if (mine->units && theirs.units && mine->unit != theirs.unit)
        snprintf(units, sizeof units, " (units %d and %d)", (int)mine->unit, (int)theirs.unit);
    return net_fail_unlike(c->net, s->of.first + src * s->of.step, units);
}

static int exchange_messages(comm *c, const staging *s, net_use use, exchange_kind x, int root,
                             size_t bytes) {
    char *send[c->group.ranks], *receive[c->group.ranks];
    memset(send, 0, sizeof send);
    for (int i = 0; i < s->of.ranks; i++) {
        const int r = s->of.first + i * s->of.step;
        send[r] = staging_out(s, x, i) - STAMP_BYTES;
        receive[r] = staging_in(s, x, i) - STAMP_BYTES;
    }
    return net_exchange(c->net, x, use, s->of.first + root * s->of.step, send, receive, bytes);
}

// First waits until the device has filled the staging and has read the data of the last exchange.
int staging_exchange(comm *c, staging *s, comm_use use, exchange_kind x, int root, size_t bytes) {
    comm_host *h = c->host;
    const net_use waits = { use.unit, use.units, s->of };
    const stamp mine = { h->exchanges, x, root, use.unit, use.units, use.purpose, (int64_t)bytes };
    for (int i = 0; i < s->of.ranks; i++) memcpy(staging_out(s, x, i) - STAMP_BYTES, &mine, sizeof mine);
    if (h->queued) ZERO_TRY(c->device->f->wait(c->device, COMM));
    h->queued = 0;
    ZERO_TRY(s->window ? window_meet(s->window, waits, x)
                       : exchange_messages(c, s, waits, x, root, STAMP_BYTES + bytes));
    s->half ^= 1;
    h->exchanges++;
    for (int i = 0; i < s->of.ranks; i++) {
        const int sends = i != s->of.rank && (x != EXCHANGE_ROOT || i == root);
        if (sends) ZERO_TRY(check_stamp(c, s, x, i, &mine));
    }
    return 0;
}

// -------- opening and closing

// The window is (ranks, 2, half). In each half, a rank has bytes for all ranks, or a part for each.
static int use_window(comm *c, memory *m, staging *s, net_group of, window *w) {
    const size_t half = c->planned[COMM_WINDOW].bytes / 2, part = comm_part(half, of.ranks);
    char *in = window_memory(w);
    *s = (staging){ .of = of,
                    .window = w,
                    .scatter_bytes = part - STAMP_BYTES,
                    .gather_bytes = half - STAMP_BYTES,
                    .out = in + of.rank * 2 * half,
                    .in = in,
                    .half_bytes = half,
                    .part = part,
                    .in_stride = 2 * half,
                    .in_part = of.rank * part };
    ZERO_TRY(c->device->f->pin(c->device, in, of.ranks * s->in_stride));
    return memory_note(m, &c->planned[COMM_WINDOW]);
}

// The buffers are (ranks, part).
staging staging_between(const comm *c, net_group of) {
    const size_t part = comm_part(c->host->message_bytes, of.ranks), most = part - STAMP_BYTES;
    return (staging){ .of = of,
                      .scatter_bytes = most,
                      .gather_bytes = most,
                      .out = c->host->all.out,
                      .in = c->host->all.in,
                      .part = part,
                      .in_stride = part };
}

static int use_messages(comm *c, memory *m, net_group of) {
    const memory_request *r = &c->planned[COMM_MESSAGES];
    staging *all = &c->host->all;
    ZERO_TRY_ALLOC(all->out = memory_alloc_pinned(m, r));
    ZERO_TRY_ALLOC(all->in = memory_alloc_pinned(m, r));
    c->host->message_bytes = r->bytes;
    *all = staging_between(c, of);
    return 0;
}

// Two groups: a window for the L ranks of each node.
static int use_both(comm *c, memory *m, net_group all, window *w) {
    comm_host *h = c->host;
    const int rank = all.rank, L = c->net->ranks_on_node;
    h->hosts = c->net->hosts;
    h->near = &h->inside;
    h->far = &h->across;
    ZERO_TRY(use_window(c, m, &h->inside, comm_near(rank, L), w));
    ZERO_TRY(use_messages(c, m, all));
    h->across = staging_between(c, comm_far(rank, all.ranks, L));
    return 0;
}

const char *staging_why_flat(const net *n) {
    if (!n->hosts) return "nodes differ in their number of ranks, or these are not consecutive";
    return n->ranks_on_node > 1 ? "the number of ranks per node is not a power of two"
                                : "ranks on several nodes";
}

int staging_open(comm *c, const zero_config *config, memory *m) {
    const net_group all = { c->group.rank, c->group.ranks, 0, 1 };
    const char *flat = c->device->asynchronous ? "ranks on several nodes" : staging_why_flat(c->net);
    const int shares = c->way.window, waiting = shares * (1 + config->overlap);
    char why[WINDOW_WHY] = "as configured";
    window *w = NULL;
    comm_host *h = c->host = memory_array(m, 1, sizeof *h);
    ZERO_TRY_ALLOC(h);
    h->near = &h->all;
    h->hosts = 1;
    if (config->comm.shared_window) snprintf(why, sizeof why, "%s", flat);
    if (shares) ZERO_TRY(window_open(&w, c->net, 2 * c->planned[COMM_MESSAGES].bytes, waiting, why));
    if (!w) {
        c->way.window = 0;
        snprintf(c->name, sizeof c->name, "%s, messages (%s)", c->net->name, why);
        return use_messages(c, m, all);
    }
    if (shares == all.ranks) {
        snprintf(c->name, sizeof c->name, "%s, shared window", c->net->name);
        return use_window(c, m, &h->all, all, w);
    }
    snprintf(c->name, sizeof c->name, "%s, shared windows of %d ranks, messages between %d hosts",
             c->net->name, shares, c->net->hosts);
    return use_both(c, m, all, w);
}
