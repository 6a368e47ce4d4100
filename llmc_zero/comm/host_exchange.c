// Exchanges of staging between the ranks.
#include "host.h"
#include "../base/error.h"
#include <stdio.h>
#include <string.h>

// Lets ranks check that they are in the same collective before they use each other's data.
typedef struct {
    uint32_t number, exchange;
    int32_t root, unit, units, purpose;
    int64_t bytes;
} stamp;

static stamp stamp_of(const comm *c, const comm_call *call, exchange_kind x, int root, size_t bytes) {
    return (stamp){ .number = c->host->exchanges,
                    .exchange = x,
                    .root = root,
                    .unit = call->use.unit,
                    .units = call->use.units,
                    .purpose = (int32_t)call->use.purpose,
                    .bytes = (int64_t)bytes };
}

char *host_out(comm *c, const comm_call *call, exchange_kind x, int dest, int root, size_t bytes) {
    stamp s = stamp_of(c, call, x, root, bytes);
    char *out = c->host->transport->out(c, x, c->host->half, dest);
    memcpy(out, &s, sizeof s);
    return out + STAMP_BYTES;
}

const char *host_in(comm *c, exchange_kind x, int half, int src) {
    return c->host->transport->in(c, x, half, src) + STAMP_BYTES;
}

static int check_stamp(comm *c, exchange_kind x, int src, const stamp *mine) {
    stamp s;
    memcpy(&s, c->host->transport->in(c, x, c->host->half ^ 1, src), sizeof s);
    if (!memcmp(&s, mine, sizeof s)) return 0;
    char units[48] = "";
    if (mine->units && s.units && mine->unit != s.unit)
        snprintf(units, sizeof units, " (units %d and %d)", (int)mine->unit, (int)s.unit);
    return zero_fail(ZERO_ERR_COMM,
                     "rank %d and rank %d are in different collectives%s: all ranks must call the same hooks "
                     "in the same order, in validation and sampling too",
                     c->group.rank, src, units);
}

// First waits until the device has filled the staging and has read the data of the last exchange.
static int run_exchange(comm *c, const comm_call *call, exchange_kind x, int root, size_t bytes) {
    struct comm_host *h = c->host;
    if (h->queued) ZERO_TRY(c->device->f->wait(c->device, COMM));
    h->queued = 0;
    ZERO_TRY(h->transport->exchange(c, call, x, h->half, root, bytes));
    h->half ^= 1;
    h->exchanges++;
    return 0;
}

int host_exchange(comm *c, const comm_call *call, exchange_kind x, int root, size_t bytes) {
    stamp mine = stamp_of(c, call, x, root, bytes);
    ZERO_TRY(run_exchange(c, call, x, root, STAMP_BYTES + bytes));
    for (int r = 0; r < c->group.ranks; r++) {
        int sends = r != c->group.rank && (x != EXCHANGE_ROOT || r == root);
        if (sends) ZERO_TRY(check_stamp(c, x, r, &mine));
    }
    return 0;
}

int host_barrier(comm *c, const comm_call *call) { return run_exchange(c, call, EXCHANGE_BARRIER, 0, 0); }
