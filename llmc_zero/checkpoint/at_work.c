#include "at_work.h"
#include "../base/clock.h"
#include "../net/net.h"
#include <math.h>

double at_work_turn_s(const zero *z) { return fmin(z->config.comm.timeout_s / 4, 1); }

int at_work_share(zero *z, int done) {
    if (z->net.ranks > 1) ZERO_TRY(end_collectives(z));
    return net_least(&z->net, done);
}

at_work at_work_begin(zero *z) { return (at_work){ z, clock_now() }; }

int at_work_goes_on(at_work *w) {
    if (clock_now() - w->reported_s < at_work_turn_s(w->z)) return 0;
    ZERO_TRY(at_work_share(w->z, 0));
    w->reported_s = clock_now();
    return 0;
}

int at_work_end(at_work *w, int rc) {
    int all = 0;
    while (!all) all = at_work_share(w->z, 1);
    return all < 0 ? all : agree(w->z, rc);
}
