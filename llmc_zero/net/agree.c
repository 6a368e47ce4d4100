#include "agree.h"
#include "../error.h"

static int share_by_net(void *ctx, double mine, double *all) {
    return net_gather(ctx, &mine, all, sizeof mine);
}
static int broadcast_by_net(void *ctx, int root, void *data, size_t bytes) {
    return net_broadcast(ctx, root, data, bytes);
}
static int barrier_by_net(void *ctx) { return net_least(ctx, 0); }
voice voice_of_net(net *n) { return (voice){ n, share_by_net, broadcast_by_net, barrier_by_net }; }

int failure_agree_by(voice v, const net *n, int rc) {
    if (n->ranks == 1) return rc;
    zero_failure first = *zero_last_failure();
    double all[n->ranks];
    int failed = 0, lowest = n->ranks;
    ZERO_TRY(v.share(v.ctx, rc != 0, all));
    for (int r = n->ranks - 1; r >= 0; r--) {
        if (!all[r]) continue;
        failed++;
        lowest = r;
    }
    if (!failed) return 0;
    ZERO_TRY(v.broadcast(v.ctx, lowest, &first, sizeof first));
    v.barrier(v.ctx);  // if that fails, the first failure is still the one to report
    zero_fail_again(&first);
    if (failed < n->ranks) zero_failed_on(lowest, net_host(n, lowest));
    return zero_failed_after(n->rank);
}

int failure_agree(net *n, int rc) { return failure_agree_by(voice_of_net(n), n, rc); }
