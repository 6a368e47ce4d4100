// Collectives by NCCL: from device memory to device memory, queued on the device's streams, for ranks that
// have a GPU each. What a rank sends is what the host's staging would carry, and by default the shards have
// the same bits as with it.
//
//   reductions  on stream COMM, by a communicator of their own
//   gathers     on stream GATHER, by another: a gather does not wait for a reduction that is queued before it
//   to end, only to begin
//
// Nothing here waits for the device. Work on two of the streams is ordered by the caller, with events. A
// thread watches over both: when NCCL reports an error, or a collective that could begin has not ended within
// comm_timeout_s, it aborts the communicators, so that the streams and whoever waits for them go on (with
// wrong numbers), and from then on every call here fails with one sentence. The first of these calls takes up
// to half a second longer where a limit is over: the ranks tell each other who is still there (net/net.h,
// give_up). If NCCL does not even abort, within comm_timeout_s or 10 s, whoever waits for a stream waits for
// ever: then, and nowhere else, the library writes the sentence to stderr itself, and ends the job.
#ifndef LLMC_ZERO_COMM_NCCL_H
#define LLMC_ZERO_COMM_NCCL_H
#include "comm.h"

#ifdef ZERO_HAVE_NCCL
// (collective) Over the transport that connects the ranks by now; sets c->nccl, and m's mover to NCCL's
// allocator. Loads the library. Returns within comm_timeout_s for each of the two communicators; where one
// rank cannot, all fail with its sentence, as soon as it knows. After an error: comm_nccl_close (clean 0).
int comm_nccl_open(comm *c, const zero_config *config, device *d, memory *m);
// Allocates the planned staging for reductions, unless NCCL sums. It has room for this rank's part of the
// largest bucket from each rank, so that a reduction is one group, but for 256 MiB at most or as window_bytes
// says. A reduction that has no room goes in rounds, each a group of its own. Without c->nccl: nothing; and
// so below.
int comm_nccl_stage(comm *c, memory *m);
// (collective) When all memory is there and its numbers do not matter yet. Tells NCCL of the blocks that
// the mover has given, so that it moves them without copies of its own: all ranks have the same ones
// in the same order. Then calls rehearse, which queues each kind of collective once, since NCCL connects
// ranks only then; and books what NCCL has taken of the device's memory, by the driver's figures: on a GPU
// that several ranks share, this rank's even part of it. What other programs take meanwhile is counted.
int comm_nccl_prepare(comm *c, memory *m, int (*rehearse)(void *), void *ctx);
// Whether gathers go between symmetric windows.
int comm_nccl_has_windows(const comm *c);
// As comm_reduce_scatter and comm_all_gather. With reduce_nccl each full's part of this rank is overwritten
// by the sum.
int comm_nccl_reduce_scatter(comm *c, comm_use use, const comm_piece *pieces, int n, zero_dtype full_type,
                             zero_dtype shard_type, int add);
int comm_nccl_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n, size_t elem_bytes);
// Before the device and its memory are closed. clean: all ranks do, and the streams are waited for.
void comm_nccl_close(comm *c, int clean);
// 0, or ZERO_ERR_COMM: to be asked after every wait for one of the device's streams, before what lies in its
// memory is believed.
int comm_nccl_failed(comm *c);
#else
#include "../error.h"
static inline int comm_nccl_open(comm *c, const zero_config *config, device *d, memory *m) {
    (void)c;
    (void)config;
    (void)d;
    (void)m;
    return zero_fail(ZERO_ERR_ARGUMENT,
                     "built without NCCL; install NVIDIA's package libnccl-dev and build again");
}
static inline int comm_nccl_reduce_scatter(comm *c, comm_use use, const comm_piece *pieces, int n,
                                           zero_dtype full_type, zero_dtype shard_type, int add) {
    (void)c;
    (void)use;
    (void)pieces;
    (void)n;
    (void)full_type;
    (void)shard_type;
    (void)add;
    return ZERO_ERR_MISUSE;
}
static inline int comm_nccl_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n,
                                       size_t elem_bytes) {
    (void)c;
    (void)use;
    (void)pieces;
    (void)n;
    (void)elem_bytes;
    return ZERO_ERR_MISUSE;
}
static inline int comm_nccl_stage(comm *c, memory *m) {
    (void)c;
    (void)m;
    return 0;
}
static inline int comm_nccl_prepare(comm *c, memory *m, int (*rehearse)(void *), void *ctx) {
    (void)c;
    (void)m;
    (void)rehearse;
    (void)ctx;
    return 0;
}
static inline int comm_nccl_has_windows(const comm *c) {
    (void)c;
    return 0;
}
static inline void comm_nccl_close(comm *c, int clean) {
    (void)c;
    (void)clean;
}
static inline int comm_nccl_failed(comm *c) {
    (void)c;
    return 0;
}
#endif
#endif
