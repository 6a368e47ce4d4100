#include "exchange.h"
#include "../base/clock.h"
#include "failure.h"
#include <string.h>

// Waits until the exchange is done or has failed. Returns 1 after timeout_s, with the ranks in
// missing[ranks].
static int wait_for_all(net *n, net_use use, exchange_kind x, char *missing) {
    const double look_s = 50e-3;
    patience p = patience_start();
    double looked = p.last;
    for (int done = 0;;) {
        double waited = patience_waited(&p);
        ZERO_TRY(link_poll(n, &done));
        if (done) return 0;
        if (n->ending) return zero_fail_rank(ZERO_ERR_COMM, n->rank, NULL, " ends the job");
        if (p.last - looked > look_s || waited > n->timeout_s) {
            link_pending(n, missing);
            failure_waits(n, use, x, waited, missing);
            ZERO_TRY(failure_seen(n, use));
            if (waited > n->timeout_s) return 1;
            looked = p.last;
        }
        clock_pause(waited);
    }
}

static int exchange(net *n, exchange_kind x, net_use use, int root, char *const *send, char *const *receive,
                    size_t bytes, char *missing) {
    n->exchanges++;
    for (int r = 0; r < n->ranks; r++)
        missing[r] = r != n->rank && send[r] && (x != EXCHANGE_ROOT || r == root);
    failure_waits(n, use, x, 0, missing);  // already here, because the first poll may block
    int rc = link_begin(n, x, root, send, receive, bytes);
    if (!rc) rc = wait_for_all(n, use, x, missing);
    failure_waits(n, use, x, 0, NULL);
    if (!rc) return 0;
    failure_close(n);
    if (!n->ending && rc < 0) failure_keep(n);  // otherwise the thread that ends the job keeps its failure
    return rc;
}

int net_exchange(net *n, exchange_kind x, net_use use, int root, char *const *send, char *const *receive,
                 size_t bytes) {
    if (n->ranks == 1 || !n->link) return 0;
    char missing[n->ranks];
    pthread_mutex_lock(&n->lock);
    if (n->closed && !n->failed) failure_keep(n);
    int rc = n->failed ? zero_fail_again(&n->failure)
                       : exchange(n, x, use, root, send, receive, bytes, missing);
    pthread_mutex_unlock(&n->lock);
    return rc > 0 ? failure_late(n, use, x, missing) : rc;
}

static const net_use scalars = { .units = 0 };

int net_gather(net *n, const void *mine, void *all, size_t bytes) {
    char *send[n->ranks], *receive[n->ranks];
    for (int r = 0; r < n->ranks; r++) {
        send[r] = (char *)mine;
        receive[r] = (char *)all + r * bytes;
    }
    for (int r = 0; r < n->ranks; r++)  // in virtual time the other ranks do as this one
        if (r == n->rank || !n->link) memcpy(receive[r], mine, bytes);
    return net_exchange(n, EXCHANGE_GATHER, scalars, 0, send, receive, bytes);
}

int net_least(net *n, int value) {
    int all[n->ranks], least = value;
    ZERO_TRY(net_gather(n, &value, all, sizeof value));
    for (int r = 0; r < n->ranks; r++)
        if (all[r] < least) least = all[r];
    return least;
}

int net_broadcast(net *n, int root, void *data, size_t bytes) {
    char *all[n->ranks];
    for (int r = 0; r < n->ranks; r++) all[r] = data;
    return net_exchange(n, EXCHANGE_ROOT, scalars, root, all, all, bytes);
}

int net_agree(net *n, int rc) {
    failure_record first = *zero_failed();
    int all[n->ranks], failed = 0, lowest = n->ranks, mine = rc != 0;
    if (n->ranks == 1 || !n->link) return rc;
    ZERO_TRY(net_gather(n, &mine, all, sizeof mine));
    for (int r = n->ranks - 1; r >= 0; r--) {
        failed += all[r];
        if (all[r]) lowest = r;
    }
    if (!failed) return 0;
    ZERO_TRY(net_broadcast(n, lowest, &first, sizeof first));
    net_least(n, 0);  // even if this fails, the first failure is reported
    zero_fail_again(&first);
    if (failed < n->ranks) zero_failed_on(lowest, net_host(n, lowest));
    return zero_failed_after(n->rank);
}
