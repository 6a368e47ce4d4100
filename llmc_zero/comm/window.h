// Shared memory between ranks of one node.
#ifndef LLMC_ZERO_COMM_WINDOW_H
#define LLMC_ZERO_COMM_WINDOW_H
#include "../net/net.h"

typedef struct window window;
enum { WINDOW_WHY = 96 };

// (collective, of all nodes) Sets *w to a window for the ranks of this node, which are consecutive and as
// many on every node, with `bytes` bytes per rank; or leaves it NULL, with the reason in `why`, if the ranks
// of any node cannot share memory. waiting: how many threads of this node may wait in window_meet.
int window_open(window **w, net *ranks, size_t bytes, int waiting, char why[WINDOW_WHY]);
void window_close(window *w);
char *window_memory(const window *w);  // (ranks, bytes)
// (collective) Waits for all ranks of the window. They may then read what each has written before its call.
int window_meet(window *w, net_use use, exchange_kind x);

#endif
