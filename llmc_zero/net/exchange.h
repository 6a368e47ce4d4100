// What the ranks send each other, and the wait for it. One failure for all ranks: what one rank cannot do, no
// rank does.
#ifndef LLMC_ZERO_EXCHANGE_H
#define LLMC_ZERO_EXCHANGE_H
#include "net.h"

// (collective) From one thread at a time. After a failure every later exchange returns the same error.
int net_exchange(net *n, exchange_kind x, net_use use, int root, char *const *send, char *const *receive,
                 size_t bytes);
int net_gather(net *n, const void *mine, void *all, size_t bytes);  // all (ranks * bytes): each rank's
int net_least(net *n, int value);  // the least of the ranks' values, which are at least 0; negative: an error
int net_broadcast(net *n, int root, void *data, size_t bytes);

// (collective) If one rank has failed, all fail with the failure of the lowest that has, which names that
// rank unless all have failed. They leave together: a rank that ended before all know of the failure would
// look like its cause.
int failure_agree(net *n, int rc);

#endif
