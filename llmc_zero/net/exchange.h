// Exchanges between the ranks, and the wait for them. If one rank fails, all ranks fail.
#ifndef LLMC_ZERO_NET_EXCHANGE_H
#define LLMC_ZERO_NET_EXCHANGE_H
#include "net.h"

// (collective) From one thread at a time. After a failure every later exchange returns the same error.
int net_exchange(net *n, exchange_kind x, net_use use, int root, char *const *send, char *const *receive,
                 size_t bytes);
int net_gather(net *n, const void *mine, void *all, size_t bytes);  // all (ranks * bytes): from each rank
int net_least(net *n, int value);  // the smallest of the ranks' values (>= 0); negative: an error
int net_broadcast(net *n, int root, void *data, size_t bytes);

// (collective) If any rank has failed, all fail with the failure of the lowest one, which names that rank
// unless all have failed. They leave together: a rank that ended before all know of the failure would look
// like its cause.
int failure_agree(net *n, int rc);

#endif
