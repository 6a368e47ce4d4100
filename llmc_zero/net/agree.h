// One failure for all ranks: what one rank cannot do, no rank does.
#ifndef LLMC_ZERO_AGREE_H
#define LLMC_ZERO_AGREE_H
#include "exchange.h"

// (collective) If one rank has failed, all fail with the failure of the lowest that has, which names that
// rank unless all have failed. They leave together: a rank that ended before all know of the failure would
// look like its cause. By net_gather and net_broadcast, or by the collectives of a voice.
typedef struct {
    void *ctx;
    int (*share)(void *ctx, double mine, double *all);  // all (ranks): each rank's
    int (*broadcast)(void *ctx, int root, void *data, size_t bytes);
    int (*barrier)(void *ctx);
} voice;
voice voice_of_net(net *n);
int failure_agree_by(voice v, const net *n, int rc);
int failure_agree(net *n, int rc);

#endif
