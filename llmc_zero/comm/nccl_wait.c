// Limits and failures: a call of NCCL, or a collective on the device, that does not end within timeout_s.
#ifdef ZERO_HAVE_NCCL
#include "../base/clock.h"
#include "../net/failure.h"
#include "nccl_state.h"
#include <stdio.h>

// Keeps the first failure. call: NCCL's function; "": work on the device. rc: NCCL's error, or ncclInProgress
// after timeout_s. NCCL cannot say which rank stalled, so the ranks ask each other.
static int fail(nccl_state *n, const collective *w, const char *call, ncclResult_t rc) {
    net *ranks = n->c->net;
    const char *last = nccl.GetLastError(NULL), *error = nccl.GetErrorString(rc);
    char about[96] = "", outcome[128 + ZERO_LIST] = " failed", said[480] = "";
    char units[NET_UNITS], silent[ranks->ranks], list[ZERO_LIST];
    if (w)
        snprintf(about, sizeof about, "the %s of %s (collective %llu)%s",
                 w->kind == COMM_ALL_GATHER ? "all-gather" : "reduce-scatter",
                 net_units(w->use.unit, w->use.units, units), (unsigned long long)w->number,
                 *call ? ": " : "");
    if (rc == ncclInProgress) {
        int known = failure_ask(ranks, silent) > 0;
        snprintf(outcome, sizeof outcome,
                 " did not end within %g s: another rank died, hangs, or is in another collective%s%s",
                 ranks->timeout_s, known ? "; no word from " : "",
                 known ? net_list(ranks, silent, list) : "");
        error = "";
    }
    if (*error || *last)
        snprintf(said, sizeof said, "; NCCL reports: %s%s%.400s", error, *error && *last ? ": " : "", last);
    zero_fail_rank(ZERO_ERR_COMM, ranks->rank, net_host(ranks, ranks->rank), ": %s%s%s%s", about, call,
                   outcome, said);
    if (w) zero_failed_at_unit(w->use.unit);
    n->failure = *zero_failed();
    return ZERO_ERR_COMM;
}

// -------- calls to NCCL

int nccl_settle(nccl_state *n, const communicator *k, const collective *w) {
    patience p = patience_start();
    double waited = 0;
    while (n->rc == ncclInProgress && waited <= n->c->net->timeout_s) {
        clock_pause(waited);
        waited = patience_waited(&p);
        ncclResult_t asked = nccl.CommGetAsyncError(k->comm, &n->rc);
        if (asked) n->rc = asked;
    }
    return n->rc ? fail(n, w, n->call, n->rc) : 0;
}

// -------- collectives on the device

static int has_passed(void *event) {
    const int has = cudaEventQuery(event) == cudaSuccess;
    cudaGetLastError();  // the next launch must not report "not ready" as an error
    return has;
}

// A collective's limit starts when the device reaches it, so earlier work on its stream does not count.
static int look(nccl_state *n) {
    const double now = patience_waited(&n->waited), limit = n->c->net->timeout_s;
    collective *w = NULL;
    for (; n->first < n->next; n->first++) {
        w = &n->queue[n->first % QUEUED];
        if (!has_passed(w->end)) break;
        w = NULL;
    }
    if (w && w->began < 0 && has_passed(w->begin)) w->began = now;
    if (w && w->began >= 0 && now - w->began > limit) return fail(n, w, "", ncclInProgress);
    for (const communicator *k = n->of; k < n->of + COMMUNICATORS; k++) {
        ncclResult_t state = ncclSuccess, rc = k->comm ? nccl.CommGetAsyncError(k->comm, &state) : state;
        if (!rc) rc = state;
        if (rc && rc != ncclInProgress) return fail(n, w, w ? "" : "a connection", rc);
    }
    return 0;
}

// If another thread holds the lock, it is calling NCCL or failing, with a limit of its own.
int nccl_check(void *state) {
    nccl_state *n = state;
    if (pthread_mutex_trylock(&n->lock)) return 0;
    int rc = n->failure.fields.code ? zero_fail_again(&n->failure) : look(n);
    pthread_mutex_unlock(&n->lock);
    return rc;
}

// First waits until the ring has room.
int nccl_begin(nccl_state *n, const communicator *k, comm_kind kind, comm_use use, collective **out) {
    device *d = n->c->device;
    collective *w = *out = &n->queue[n->next % QUEUED];
    int rc = d->f->wait_event(d, w->end);
    pthread_mutex_lock(&n->lock);
    if (rc) return rc;
    if (n->failure.fields.code) return zero_fail_again(&n->failure);
    if (n->next - n->first == QUEUED) n->first++;
    w->kind = kind;
    w->use = use;
    w->number = n->next + 1;
    w->began = -1;
    return d->f->record(d, w->begin, k->on);
}

int nccl_finish(nccl_state *n, const communicator *k, collective *w, int rc) {
    device *d = n->c->device;
    if (!rc) rc = d->f->record(d, w->end, k->on);
    n->next += !rc;
    pthread_mutex_unlock(&n->lock);
    return rc || n->overlaps ? rc : d->f->wait_event(d, w->end);
}
#endif
