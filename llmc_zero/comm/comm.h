// Collectives between the ranks. The algorithms (comm.c) pack into staging, exchange, and unpack or sum in
// rank order; a transport only exchanges: through memory shared on one node (comm/window.c) or by messages
// (comm/messages.c). One rank needs neither. With a window, large buffers go past it where ranks can read
// each other's memory (comm/direct.c).
#ifndef LLMC_ZERO_COMM_H
#define LLMC_ZERO_COMM_H
#include "../device/device.h"
#include "../memory.h"
#include "../net/net.h"
#include "../zero.h"

typedef struct {  // one unit's part in a collective: memory of the device
    char *full;   // ranks * elems elements
    char *shard;  // elems elements; may lie inside full
    int64_t elems;
} comm_piece;

typedef enum { COMM_ALL_GATHER, COMM_REDUCE_SCATTER, COMM_OTHER } comm_kind;  // what traffic is counted as

// What a collective is for: the same on all ranks. Errors name the units, and traffic is counted by purpose.
typedef struct {
    zero_purpose purpose;
    int unit, units;  // the first unit that it is about, and how many; units 0: none (scalars)
    int64_t
        *counter;  // counts the bytes sent in place of the traffic of this purpose; NULL: the traffic does
} comm_use;
static const comm_use comm_for_scalars = { .purpose = ZERO_FOR_SCALARS };

typedef struct comm comm;
typedef struct {
    // Where the bytes for rank `dest` go before an exchange, and where those from `src` are after it. half: 0
    // or 1, in turn.
    char *(*out)(comm *c, exchange_kind x, int half, int dest);
    const char *(*in)(comm *c, exchange_kind x, int half, int src);
    // All ranks' `bytes` (to each rank, for SCATTER; to all, else) change hands. When it returns, the
    // previous exchange's other half is free.
    int (*exchange)(comm *c, exchange_kind x, int half, int root, size_t bytes);
    void (*close)(comm *c);
} comm_transport;

// One group of ranks with a connection of its own.
struct comm {
    net *net;  // the ranks, and what connects them
    int rank, ranks;
    device *device;  // whose memory the pieces are in
    char
        *incoming;  // (ranks, scatter_bytes) of the device: what the host's staging held for it, to be summed
    const comm_transport *transport;  // NULL: one rank
    void *nccl;                       // of comm/nccl.c; NULL: the collectives go through the host
    device nccl_device;               // with NCCL: memory's mover, which outlives nccl
    device_functions nccl_functions;  // of it
    device_stream gather_stream;      // what comm_all_gather queues on: COMM, with NCCL GATHER
    int direct;                       // ranks read each other's memory, on all of them
    int unstaged;                     // messages go from array to array
    char name[160];
    memory_request *planned;             // (COMM_MEMORIES): what is allocated, from before comm_open on
    size_t scatter_bytes, gather_bytes;  // room in staging: to each rank, to all
    int half;                            // of the next exchange
    uint32_t exchanges;                  // done so far
    zero_traffic traffic;
    comm_use use;         // of the collective under way
    const char *part_of;  // its name, for errors; NULL: the exchange's own name says it
    void *state;          // of the transport
};

// comm/staging.c: what the collectives ask of the allocator, from the settings alone.
typedef enum {
    COMM_WINDOW,     // shared memory, which the window maps: only noted
    COMM_MESSAGES,   // two blocks: what goes out, what comes in
    COMM_ADDRESSES,  // CUDA, more ranks than one launch takes addresses of
    COMM_INCOMING,   // CUDA: bytes of the other ranks, to be summed
    COMM_NCCL,       // what NCCL takes: measured once it is connected, and only noted
    COMM_MEMORIES
} comm_memory;
// How the ranks exchange. A job that runs knows it; a plan assumes what the settings ask for.
typedef struct {
    int ranks;
    int window;  // 1: by shared memory; 0: by messages
    int nccl;    // 1: parameters and gradients go by NCCL
} comm_way;
// reduced_bytes: this rank's part of the largest reduction, as it travels.
int comm_plan(memory_request planned[COMM_MEMORIES], const zero_config *c, const comm_way *way,
              size_t reduced_bytes);
typedef struct {
    size_t bytes;                        // of the window, or of each of the two buffers of messages
    size_t scatter_bytes, gather_bytes;  // room in it: to each rank, to all
} comm_room;
comm_room comm_window_room(const zero_config *c, int ranks);
comm_room comm_messages_room(const zero_config *c, int ranks);
int comm_check_room(const zero_config *c, const comm_room *room, int ranks);

// The group is all ranks of n. Then, once the device is there, opens the transport that the configuration
// asks for, its staging booked in m.
void comm_join(comm *c, net *n);
int comm_open(comm *c, const zero_config *config, device *d, memory *m);
comm_way comm_way_of(const comm *c);  // the one that was opened
// The device's memory for what the others sent through the host. Not with NCCL, so once that has been opened.
int comm_open_incoming(comm *c, memory *m);
void comm_close(comm *c);

// Queued on the device's COMM stream, gathers on gather_stream: done there, not yet for the host, when these
// two return. shard of piece = mean over ranks of their full's part of this rank: summed in rank order in
// fp32, times 1/ranks, rounded once. add: added to the shard instead, which is fp32.
int comm_reduce_scatter(comm *c, comm_use use, const comm_piece *pieces, int n, zero_dtype full_type,
                        zero_dtype shard_type, int add);
int comm_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n, size_t elem_bytes);
// Host memory:
int comm_broadcast(comm *c, comm_use use, int root, void *data, size_t bytes);
// all[r * n + i] = rank r's mine[i]
int comm_share(comm *c, comm_use use, const double *mine, double *all, int n);
int comm_barrier(comm *c);

// comm.c, for those below: the ranks tell each other n numbers, under a stamp that says of which collective
// and how many bytes it moves. all[r] = rank r's, in staging until the next exchange.
enum { STAMP_BYTES = 64 };
int comm_announce(comm *c, comm_kind kind, size_t total, const int64_t *mine, int n, const int64_t **all);
void comm_count(comm *c, comm_kind kind, size_t bytes);

// comm/direct.c
int comm_direct_open(comm *c);  // sets c->direct if all ranks can, and it pays
// 1: a collective of n pieces, `total` bytes over all ranks' parts, goes that way: alike on all ranks.
int comm_goes_direct(const comm *c, comm_kind kind, size_t total, int n);
int comm_direct_gather(comm *c, const comm_piece *pieces, int n, size_t elem_bytes, size_t total);
int comm_direct_reduce(comm *c, const comm_piece *pieces, int n, zero_dtype full_type, zero_dtype shard_type,
                       int add, size_t total);
extern size_t comm_direct_least[COMM_OTHER];  // total from which on it does, by kind; alike on all ranks; for
                                              // tests to set

// comm/unstaged.c, in the same way
int comm_goes_unstaged(const comm *c, size_t total, int n);
int comm_unstaged_gather(comm *c, const comm_piece *pieces, int n, size_t elem_bytes, size_t total);
int comm_unstaged_reduce(comm *c, const comm_piece *pieces, int n, zero_dtype full_type,
                         zero_dtype shard_type, int add, size_t total);
extern size_t comm_unstaged_least;  // bytes of a piece, over all ranks' parts, from which on it does

// transports
int comm_window_open(comm *c, const zero_config *config, memory *m, char *why,
                     size_t why_bytes);  // 1: opened; 0: cannot, and why
int comm_messages_open(comm *c, const zero_config *config, memory *m);

// What an exchange that is part of the collective under way serves.
net_use comm_net_use(const comm *c);

#endif
