// Exchanges: each rank sends to the others and receives from them. If one rank fails, all ranks fail. All are
// collective: call them from one thread at a time. After a failure every later one returns the same error.
#ifndef LLMC_ZERO_NET_EXCHANGE_H
#define LLMC_ZERO_NET_EXCHANGE_H
#include "net.h"

// SCATTER and GATHER: sends `bytes` bytes from send[r] to each rank r and receives as many into receive[r].
// ROOT: only from root to the others. BARRIER: no bytes. Rank r takes no part if send[r] is NULL.
int net_exchange(net *n, exchange_kind x, net_use use, int root, char *const *send, char *const *receive,
                 size_t bytes);
int net_gather(net *n, const void *mine, void *all, size_t bytes);  // all (ranks, bytes): from each rank
int net_least(net *n, int value);  // returns the smallest of the ranks' values (>= 0); negative: an error
int net_broadcast(net *n, int root, void *data, size_t bytes);

// If any rank has failed, all fail with the failure of the lowest such rank, and the message names it unless
// all have failed. All ranks return together, because a rank that ended before the others knew of the failure
// would look like the cause.
int net_agree(net *n, int rc);

#endif
