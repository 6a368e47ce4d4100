// The collectives through the host's memory, and how its parts work together. Bytes go one of three ways:
//
//   comm/staged.c     packed into staging, exchanged, and unpacked or summed: the general way
//   comm/direct.c     ranks on one node read each other's memory
//   comm/unstaged.c   between nodes, messages go from array to array
//
// Staging is exchanged by a transport: shared memory on one node (comm/window.c) or messages
// (comm/messages.c).
#ifndef LLMC_ZERO_COMM_HOST_H
#define LLMC_ZERO_COMM_HOST_H
#include "comm.h"

// A collective under way.
typedef struct {
    comm_use use;
    comm_kind kind;    // what its bytes are counted as
    const char *name;  // for errors, "an all-gather"
} comm_call;
static inline net_use host_net_use(const comm_call *call) {
    return (net_use){ call->name, call->use.unit, call->use.units };
}

typedef struct {
    // Where the bytes for rank `dest` go before an exchange, and where those from `src` are after it: those
    // of all ranks at equal distances. half: 0 or 1, in turn.
    char *(*out)(comm *c, exchange_kind x, int half, int dest);
    const char *(*in)(comm *c, exchange_kind x, int half, int src);
    // All ranks' `bytes` (to each rank, for SCATTER; to all, else) change hands. When it returns, the
    // previous exchange's other half is free.
    int (*exchange)(comm *c, const comm_call *call, exchange_kind x, int half, int root, size_t bytes);
    int is_window;
    void (*close)(comm *c);
} comm_transport;

struct comm_host {
    const comm_transport *transport;     // NULL: not opened
    void *state;                         // of the transport
    size_t scatter_bytes, gather_bytes;  // room in staging: to each rank, to all
    int half;                            // of the next exchange
    uint32_t exchanges;                  // done so far
    int queued;      // copies between staging and the device are queued, and perhaps not done
    char *incoming;  // (ranks, scatter_bytes) of the device: what staging held for it, to be summed there
    int direct;      // all ranks can read each other's memory
    int unstaged;    // large messages go from array to array
};

extern const comm_functions comm_host_functions;

// (collective) Opens a transport and sets c->f.
int comm_open_host(comm *c, const zero_config *config, memory *m);
void comm_close_host(comm *c, int clean);

// -------- exchanges (exchange.c)

// A stamp goes before the bytes of every exchange, and says which collective they belong to.
enum { STAMP_BYTES = 64 };
// Where this rank's bytes for `dest` go, after the stamp. root: EXCHANGE_ROOT's.
char *host_out(comm *c, const comm_call *call, exchange_kind x, int dest, int root, size_t bytes);
// Those of an exchange in that half.
const char *host_in(comm *c, exchange_kind x, int half, int src);
// Exchanges and checks the stamps.
int host_exchange(comm *c, const comm_call *call, exchange_kind x, int root, size_t bytes);
// The ranks tell each other n numbers, under a stamp that says of which collective and how many bytes it
// moves. all[r] = rank r's, in staging until the next exchange.
int host_announce(comm *c, const comm_call *call, size_t total, const int64_t *mine, int n,
                  const int64_t **all);
int host_barrier(comm *c, const comm_call *call);

// -------- the three ways: total is all ranks' bytes

int host_staged_gather(comm *c, const comm_call *call, device *d, const comm_piece *pieces, int n,
                       size_t elem_bytes);
int host_staged_reduce(comm *c, const comm_call *call, const comm_piece *pieces, int n, zero_dtype full_type,
                       zero_dtype shard_type, int add);

int host_direct_open(comm *c);  // sets host->direct if all ranks can, and it pays
// 1: a collective of n pieces goes that way, alike on all ranks.
int host_goes_direct(const comm *c, comm_kind kind, size_t total, int n);
int host_direct_gather(comm *c, const comm_call *call, const comm_piece *pieces, int n, size_t elem_bytes,
                       size_t total);
int host_direct_reduce(comm *c, const comm_call *call, const comm_piece *pieces, int n, zero_dtype full_type,
                       zero_dtype shard_type, int add, size_t total);
extern size_t host_direct_least[COMM_OTHER];  // total from which on it does, by kind; for tests to set

int host_goes_unstaged(const comm *c, size_t total, int n);
int host_unstaged_gather(comm *c, const comm_call *call, const comm_piece *pieces, int n, size_t elem_bytes,
                         size_t total);
int host_unstaged_reduce(comm *c, const comm_call *call, const comm_piece *pieces, int n,
                         zero_dtype full_type, zero_dtype shard_type, int add, size_t total);
extern size_t host_unstaged_least;  // bytes of a piece, over all ranks' parts, from which on it does

// -------- transports

typedef struct {
    size_t bytes;                        // of the window, or of each of the two buffers of messages
    size_t scatter_bytes, gather_bytes;  // room in it: to each rank, to all
} comm_room;
comm_room comm_window_room(const zero_config *c, int ranks);
comm_room comm_messages_room(const zero_config *c, int ranks);
int comm_check_room(const zero_config *c, const comm_room *room, int ranks);

// 1: opened; 0: there can be no window, and why
int host_open_window(comm *c, const zero_config *config, memory *m, char *why, size_t why_bytes);
int host_open_messages(comm *c, const zero_config *config, memory *m);

#endif
