#include "at_work.h"
#include "../base/clock.h"
#include "../net/net.h"

double at_work_turn_s(const zero *z) {
    const double part = z->config.comm.timeout_s / 4;
    return part < 1 ? part : 1;
}

int at_work_share(zero *z, int done, int *all) {
    int theirs[z->net.ranks];
    *all = done;
    if (z->net.ranks == 1) return 0;
    ZERO_TRY(end_collectives(z));
    ZERO_TRY(net_gather(&z->net, &done, theirs, sizeof done));
    for (int r = 0; r < z->net.ranks; r++) *all &= theirs[r];
    return 0;
}

at_work at_work_begin(zero *z) { return (at_work){ z, clock_now() }; }

int at_work_goes_on(at_work *w) {
    int all;
    if (clock_now() - w->reported_s < at_work_turn_s(w->z)) return 0;
    ZERO_TRY(at_work_share(w->z, 0, &all));
    w->reported_s = clock_now();
    return 0;
}

int at_work_end(at_work *w, int rc) {
    for (int all = 0; !all;) ZERO_TRY(at_work_share(w->z, 1, &all));
    return agree(w->z, rc);
}
