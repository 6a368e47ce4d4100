// The collectives through host memory, and the interfaces between their files. Data is packed into staging,
// exchanged, and unpacked or summed (comm/staged.c). A transport exchanges staging, through shared memory on
// one node (comm/window.c) or messages (comm/messages.c).
#ifndef LLMC_ZERO_COMM_HOST_H
#define LLMC_ZERO_COMM_HOST_H
#include "comm.h"
#include "../net/exchange.h"

// A collective in progress.
typedef struct {
    comm_use use;
    comm_kind kind;    // how its bytes are counted
    const char *name;  // for errors, "an all-gather"
    const comm_piece *pieces;
    int n;
    size_t elem_bytes;                 // of the pieces' full
    zero_dtype full_type, shard_type;  // of a reduction
    int add;                           // of a reduction
} comm_call;
static inline net_use host_net_use(const comm_call *call) {
    return (net_use){ call->name, call->use.unit, call->use.units };
}

typedef struct {
    // Return the address of the bytes for rank `dest` before an exchange, and of those from `src` after it.
    // Addresses of consecutive ranks are equally far apart. half: alternates between 0 and 1.
    char *(*out)(comm *c, exchange_kind x, int half, int dest);
    const char *(*in)(comm *c, exchange_kind x, int half, int src);
    // Exchanges `bytes` bytes (SCATTER: per rank; otherwise in total). When it returns, the half used by the
    // previous exchange is free.
    int (*exchange)(comm *c, const comm_call *call, exchange_kind x, int half, int root, size_t bytes);
    int is_window;
    void (*close)(comm *c);
} comm_transport;

struct comm_host {
    const comm_transport *transport;     // NULL: not opened
    void *state;                         // of the transport
    size_t scatter_bytes, gather_bytes;  // capacity of the staging: to each rank, to all
    int half;                            // for the next exchange
    uint32_t exchanges;                  // number of exchanges so far
    int queued;                          // 1: copies between staging and the device may still be queued
};

extern const comm_functions comm_host_functions;

// (collective) Opens a transport and sets c->f.
int comm_open_host(comm *c, const zero_config *config, memory *m);
void comm_close_host(comm *c, int clean);

// -------- exchanges (comm/host_exchange.c)

// Every exchange starts with a stamp that identifies its collective.
enum { STAMP_BYTES = 64 };
// Writes the stamp and returns the address of this rank's bytes for `dest`. root: for EXCHANGE_ROOT.
char *host_out(comm *c, const comm_call *call, exchange_kind x, int dest, int root, size_t bytes);
// Returns the address of the bytes received in that half.
const char *host_in(comm *c, exchange_kind x, int half, int src);
// Runs the exchange and checks the stamps.
int host_exchange(comm *c, const comm_call *call, exchange_kind x, int root, size_t bytes);
int host_barrier(comm *c, const comm_call *call);

// -------- collectives (comm/staged.c)

int host_staged_gather(comm *c, const comm_call *call, device *d);
int host_staged_reduce(comm *c, const comm_call *call);

// -------- transports

typedef struct {
    size_t bytes;                        // of the window, or of each of the two buffers of messages
    size_t scatter_bytes, gather_bytes;  // capacity: to each rank, to all ranks
} comm_room;
comm_room comm_window_room(const zero_config *c, int ranks);
comm_room comm_messages_room(const zero_config *c, int ranks);

// Returns 1 if the window is open, 0 with the reason in `why` if a window is impossible, or a negative error.
int host_open_window(comm *c, const zero_config *config, memory *m, char *why, size_t why_bytes);
int host_open_messages(comm *c, const zero_config *config, memory *m);

#endif
