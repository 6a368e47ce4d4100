// Collectives between the ranks of a group: a table of functions. comm_open chooses the implementation:
//
//   self   comm/self.c   one rank, which only copies
//   host   comm/host.c   through host memory, in one or two groups (comm/staging.h): for CPUs, and GPUs
//                        without NCCL
//   nccl   comm/nccl.c   from GPU to GPU, reductions in one or two groups; data in host memory still goes
//                        through the host's functions
//
// Every collective has a purpose (comm_use). All ranks call the same collectives in the same order.
#ifndef LLMC_ZERO_COMM_COMM_H
#define LLMC_ZERO_COMM_COMM_H
#include "../device/device.h"
#include "../base/memory.h"
#include "../net/net.h"
#include "../zero.h"

// One unit's part in a collective, in device memory.
typedef struct {
    char *full;   // ranks * elems elements, of the ranks that take part
    char *shard;  // elems elements; may be inside full
    int64_t elems;
    const float *plus;  // (elems) a reduction adds these to the mean; may be the shard; NULL: nothing
} comm_piece;

// The purpose of a collective, the same on all ranks. Errors name the units; traffic is counted by purpose.
typedef struct {
    zero_purpose purpose;
    int unit, units;   // its first unit, and their number; units 0: scalars
    int64_t *counter;  // where to add the bytes sent; NULL: to the traffic of this purpose
    net_group of;      // a gather: the ranks that take part; ranks 0: all. All ranks call it, each for
                       // its comm_near or its comm_far of config.param_group
} comm_use;
static const comm_use comm_for_scalars = { .purpose = ZERO_FOR_SCALARS };

// The two groups of a rank: `near` consecutive ranks, and the ranks of equal place in all such groups.
static inline net_group comm_near(int rank, int near) {
    return (net_group){ rank % near, near, rank / near * near, 1 };
}
static inline net_group comm_far(int rank, int ranks, int near) {
    return (net_group){ rank / near, ranks / near, rank % near, near };
}

typedef enum { COMM_ALL_GATHER, COMM_REDUCE_SCATTER, COMM_OTHER } comm_kind;  // how traffic is counted

typedef struct comm comm;

// For device memory. Unless a comment states otherwise, each returns 0 or a negative error.
typedef struct {
    // The next two may only queue work on the device, so the host cannot use the result yet when they return.
    // On comm.gather_stream: full = the shards of all ranks that take part, in their order.
    int (*all_gather)(comm *c, comm_use use, const comm_piece *pieces, int n, size_t elem_bytes);
    // On stream COMM: shard = this rank's part of full, summed over the ranks in tree order in fp32, times
    // scale, plus `plus`, rounded once.
    int (*reduce_scatter)(comm *c, comm_use use, const comm_piece *pieces, int n, zero_dtype full_type,
                          zero_dtype shard_type, float scale);
    // (optional) Call it when all memory is allocated and its contents do not matter yet. Calls rehearse,
    // which runs each kind of collective once. An error may be this rank's alone: end the job.
    int (*prepare)(comm *c, memory *m, int (*rehearse)(void *), void *ctx);
    // (optional) Call it before closing the device and its memory. clean: 1 if all ranks close normally.
    void (*close)(comm *c, int clean);
} comm_functions;

// How bytes move: in a running job as connected, in a plan and in virtual time as the settings request.
typedef struct {
    int ranks;
    int window;  // how many ranks share memory: all, or those of a node; 0: messages
    int nccl;    // how many ranks reduce together first: all, or those of a node; 0: NCCL is not used
} comm_way;

// The GPU that a rank uses.
typedef struct {
    uint64_t machine;
    uint64_t gpu;            // a hash of machine and bus address; NCCL identifies GPUs by these two
    unsigned char uuid[16];  // MIG instances of one GPU have different UUIDs
    int visible;             // number of devices that the rank sees
    int may_share;           // 1: the user chose the device by number, or allowed NCCL to share GPUs
} rank_gpu;

struct comm {
    const comm_functions *f;  // NULL: not opened
    net *net;                 // connects the ranks
    struct {
        int rank, ranks;
    } group;
    device *device;               // its memory holds the pieces
    device_stream gather_stream;  // the stream of all_gather
    comm_way way;                 // how bytes move
    int only_queues;              // 1: collectives only queue work on the device and need no thread
    char name[160];               // for the start table
    rank_gpu *gpus;               // (ranks) each rank's GPU (comm/gpus.c); NULL: one rank, or no CUDA
    int ranks_on_device;          // ranks that share this rank's device, itself included; 1 on a CPU
    memory_request *planned;      // (COMM_MEMORIES)
    zero_traffic traffic;
    char *incoming;  // (comm_slots, incoming_bytes) data to sum; NULL: it is summed where it arrives
    size_t incoming_bytes;
    struct comm_host *host;  // of comm/host.c; NULL: one rank
    struct comm_nccl *nccl;  // of comm/nccl.c; NULL: not used
    device mover;            // with comm.nccl_memory: the device with NCCL's allocator, as memory's mover
    device_functions mover_functions;
};

// -------- the memory of the collectives, computed only from the settings (comm/sizes.c)

typedef enum {
    COMM_WINDOW,    // mapped shared memory: only recorded
    COMM_MESSAGES,  // two blocks: outgoing, incoming
    COMM_INCOMING,  // CUDA: data from the other ranks, before it is summed, and sums to send
    COMM_NCCL,      // NCCL's own memory: measured after it has connected; only recorded
    COMM_MEMORIES
} comm_memory;
// Returns 1, or the number of hosts if reductions pass through two groups (comm/staging.h).
static inline int comm_hosts(const comm_way *way) {
    const int near = way->nccl ? way->nccl : way->window;
    return near ? way->ranks / near : 1;
}
// How the host's functions pass gathered data: first between the ranks `far`, by messages, then between ranks
// of this rank's host, by the window of so many ranks. Either may be this rank alone.
typedef struct {
    net_group far, near;
} comm_route;
comm_route comm_route_of(int window, int rank, net_group of);
// Returns the number of slots of COMM_INCOMING: one for each rank and, with two groups, two for each host's
// fp32 sums, which may be twice as wide as the data.
static inline int comm_slots(const comm_way *way) {
    return way->ranks + (comm_hosts(way) > 1 ? 2 * comm_hosts(way) : 0);
}
// Returns the bytes that a rank sends in a reduction of shards of so many elements; some may be fp32 sums.
int64_t comm_reduction_bytes(const comm_way *way, int64_t elems, int elem_bytes);
// Returns what the settings request, for nodes with on_node consecutive ranks each. The sum over the ranks of
// a node must be a subtree of the sum over all, so on_node must be a power of two.
comm_way comm_way_asked(const zero_config *c, int ranks, int on_node);
// reduced_bytes: this rank's part of the largest reduction, in the dtype in which it is sent.
int comm_plan(memory_request planned[COMM_MEMORIES], const zero_config *c, const comm_way *way,
              size_t reduced_bytes);

// -------- opening and closing (comm/open.c)

// (collective) Opens the requested implementation between the ranks of `ranks`, with the memory planned for
// it. `planned` must live until comm_close. Before comm_stage, plan again for c->way. After an error, which
// may be this rank's alone, call comm_close (clean 0).
int comm_open(comm *c, net *ranks, const zero_config *config, device *d, memory *m, memory_request *planned);
int comm_stage(comm *c, memory *m);  // allocates the planned COMM_INCOMING
void comm_close(comm *c, int clean);

// Counts sent bytes.
static inline void comm_count(comm *c, comm_use use, comm_kind kind, size_t bytes) {
    int64_t *kinds[] = { c->traffic.all_gather, c->traffic.reduce_scatter, c->traffic.other };
    int64_t *counter = use.counter ? use.counter : &kinds[kind][use.purpose];
    *counter += (int64_t)bytes;
}

// The part that concerns this rank alone (comm/self.c): copies its shard; scales and rounds its part of full.
int comm_copy_own(comm *c, comm_use use, const comm_piece *pieces, int n, size_t elem_bytes);
int comm_reduce_own(comm *c, comm_use use, const comm_piece *pieces, int n, zero_dtype full_type,
                    zero_dtype shard_type, float scale);

// -------- the table's functions, with the defaults of the optional ones

static inline int comm_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n, size_t elem_bytes) {
    return (use.of.ranks == 1 ? comm_copy_own : c->f->all_gather)(c, use, pieces, n, elem_bytes);
}
static inline int comm_reduce_scatter(comm *c, comm_use use, const comm_piece *pieces, int n,
                                      zero_dtype full_type, zero_dtype shard_type, float scale) {
    return c->f->reduce_scatter(c, use, pieces, n, full_type, shard_type, scale);
}
static inline int comm_prepare(comm *c, memory *m, int (*rehearse)(void *), void *ctx) {
    return c->f->prepare ? c->f->prepare(c, m, rehearse, ctx) : 0;
}

// -------- rounds (comm/rounds.c)

// Elements [from, from + n) of a piece's shard, at `at` in the staging.
typedef struct {
    const comm_piece *piece;
    int64_t from, n, at;
} comm_run;
typedef struct {
    comm_run *runs;                // set by the caller: room for a run of each piece
    const comm_piece *next, *end;  // set by the caller: the remaining pieces
    int64_t inside;                // elements of `next` that are done
    int n_runs;
    int64_t elems;  // of all runs
} comm_round;
// Finds the runs of the next `room` elements. Returns n_runs, 0 if no elements are left.
int comm_next_round(comm_round *r, int64_t room);
// A sum of the data of several ranks in a round, in tree order. The data is packed, or in `full`.
typedef struct {
    int ranks, own;      // their number, and this rank's number among them
    zero_dtype type;     // of the data
    const char *others;  // rank r's data starts at others + r * stride
    size_t stride;
    const char *mine;  // this rank's data; NULL: part `part` of each piece's full
    int part;
    char *sums;  // where to put fp32 sums; NULL: into the shards, times scale, plus `plus`, rounded once
    zero_dtype shard_type;
    float scale;
} comm_sum;
// Makes s the sum of what the ranks of a group have sent to this one.
static inline void comm_sum_of(comm_sum *s, net_group of, zero_dtype type, const char *others,
                               size_t stride) {
    *s = (comm_sum){ of.ranks, of.rank, type, others, stride, NULL, of.rank, NULL, s->shard_type, s->scale };
}
int comm_sum_round(comm *c, const comm_round *r, const comm_sum *s);
// Sums the ranks of one host for every host's part, of which s describes the first: from one to the next,
// `others` advances by `step` bytes and `sums` by `apart`.
int comm_sum_hosts(comm *c, const comm_round *r, comm_sum s, int hosts, size_t step, size_t apart);

// -------- for host memory; they return when the data has arrived (comm/host.c)

// As comm_all_gather, of several ranks.
int comm_gather_in_host(comm *c, comm_use use, const comm_piece *piece, size_t elem_bytes);
int comm_broadcast(comm *c, comm_use use, int root, void *data, size_t bytes);
// all[r * n + i] = rank r's mine[i]
int comm_share(comm *c, comm_use use, const double *mine, double *all, int n);
int comm_barrier(comm *c);

// -------- which GPU each rank uses, and whether ranks may share one (comm/gpus.c)

// (collective) Fills c->gpus and counts c->ranks_on_device. Ranks that share a device take turns on it, which
// is slow, so with comm.nccl -1 sharing is an error unless all of them have requested it.
int gpus_open(comm *c, const zero_config *config, memory *m);
// What ranks may share: a device, or a GPU, which MIG divides into several devices.
typedef enum { ON_DEVICE, ON_GPU } gpu_sharing;
// Returns the lowest rank that shares its device or GPU with rank r; r itself if no lower one does.
int gpus_first(const comm *c, int r, gpu_sharing what);
// Fails with "ranks 0 and 1 are on one GPU of host h, where 3 ranks have 2 GPUs", then tail. other: the
// higher rank.
int gpus_fail(const comm *c, int code, int other, gpu_sharing what, const char *tail);
// Returns 0 if each rank on rank r's machine can have its own GPU; otherwise the number of ranks that can.
int gpus_room(const comm *c, int r);

// -------- implementations. comm_open_... sets c->f.

int comm_open_self(comm *c);
int comm_open_host(comm *c, const zero_config *config, memory *m);  // (collective)
void comm_close_host(comm *c, int clean);
extern const comm_functions comm_host_functions;
// In virtual time (zero_virtual.h, comm/virtual.c). On PROCESSOR the calling thread waits for the bytes.
int comm_open_virtual(comm *c, memory *m);
int comm_virtual_gather(comm *c, device_stream s, comm_use use, const comm_piece *pieces, int n,
                        size_t elem_bytes);
void comm_virtual_share(comm *c, const double *mine, double *all, int n);

#endif
