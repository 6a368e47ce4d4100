// The staging of the host's collectives, and its exchange between the ranks of a group: shared memory on one
// node (comm/window.c), otherwise two buffers and messages.
//
// If the nodes have as many consecutive ranks each, a power of two, data passes through two groups: near, the
// ranks of a node, by a window; and far, the ranks of equal place on the nodes, by messages. The sum over the
// ranks of a node is then a subtree of the sum over all ranks. Otherwise one group has all ranks.
#ifndef LLMC_ZERO_COMM_STAGING_H
#define LLMC_ZERO_COMM_STAGING_H
#include "comm.h"

// -------- shared memory between ranks of one node (comm/window.c)

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

// -------- staging

// Every exchange starts with a stamp that identifies its collective.
enum { STAMP_BYTES = 64 };

typedef struct {
    net_group of;
    window *window;                      // NULL: messages
    size_t scatter_bytes, gather_bytes;  // the most that an exchange can send: to each rank, to all ranks
    // where the bytes are; see staging_out and staging_in
    char *out, *in;
    size_t half_bytes, part, in_stride, in_part;
    int half;  // for the next exchange
} staging;

typedef struct comm_host {
    staging all;             // every rank
    staging inside, across;  // with two groups; `across` uses the memory of `all`
    staging *near, *far;     // the groups through which data passes; one group: &all and NULL
    size_t message_bytes;    // of each buffer for messages
    int hosts;               // ranks of `far`; 1: one group
    int queued;              // 1: copies between staging and the device may still be queued
    uint32_t exchanges;      // number of exchanges so far, in all groups
} comm_host;

// The bytes of half the staging that each rank's part has.
static inline size_t comm_part(size_t half, int ranks) { return half / ranks / 64 * 64; }

// (collective) Sets c->host, c->name and c->way.window. After an error call comm_close_host.
int staging_open(comm *c, const zero_config *config, memory *m);
// Returns why ranks on several nodes are one group.
const char *staging_why_flat(const net *n);

// With messages: returns staging for some of the ranks, in the memory of `all`.
staging staging_between(const comm *c, net_group of);

// Ranks are numbered within the group of s.

// Returns where this rank's bytes go before an exchange: in EXCHANGE_SCATTER for rank dest, else for all.
char *staging_out(const staging *s, exchange_kind x, int dest);
// Exchanges `bytes` bytes (SCATTER: per rank). Fails if the ranks are in different collectives. root: for
// EXCHANGE_ROOT.
int staging_exchange(comm *c, staging *s, comm_use use, exchange_kind x, int root, size_t bytes);
// Returns the bytes that rank src has sent in the last exchange. They stay until the next one begins. The
// addresses of consecutive ranks are equally far apart.
char *staging_in(const staging *s, exchange_kind x, int src);

#endif
