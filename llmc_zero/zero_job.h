// The ranks of a job: who they are, sums and broadcasts between them, and one end for all of them after a
// failure.
#ifndef LLMC_ZERO_JOB_H
#define LLMC_ZERO_JOB_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero zero;  // of zero.h, which includes this file

// What the launcher (Open MPI, PMIx, Slurm, RANK and WORLD_SIZE) says in the environment; without one, rank 0
// of 1. ranks 0: the variables cannot be right, and zero_last_error() says why.
typedef struct {
    int rank, ranks, ranks_on_node;
} zero_launch;
zero_launch zero_launched(void);
// Return this rank's number, from 0, and how many ranks there are: the same from zero_create to zero_destroy.
int zero_rank(const zero *z);
int zero_ranks(const zero *z);
// (collective) Returns 0 when all ranks have come here.
int zero_barrier(zero *z);
// (collective) Returns 0 and in values[0..n), n from 1 to 64, their sums over the ranks: added in rank order,
// the same bits on all ranks. For losses, counts, decisions that all ranks must take alike. Allowed at any
// time, between hooks too.
int zero_sum(zero *z, double *values, int n);
// (collective) Returns 0 and in data, of `bytes` bytes on every rank, what rank `root` has in it. Allowed at
// any time.
int zero_broadcast(zero *z, int root, void *data, size_t bytes);
// (collective) Returns 0 when all ranks pass the same text: lines "name = value", at most 16 MiB, each name
// once and in one order. Else ZERO_ERR_ARGUMENT on all ranks, with the first line that differs: "rank 1 (host
// b) has threads = 8 and rank 0 (host a) has threads = 4". What must be alike before there is a plugin goes
// into config.start.same. Allowed at any time.
int zero_require_same(zero *z, const char *lines);
// Ends all ranks of the job after a failure, with this exit status, and does not return. One rank writes the
// sentence and a newline to stderr: the lowest that has failed, or the one that knows best which rank hangs.
// NULL: nothing is written. All ranks end within seconds, with and without a launcher. Of the program's
// streams only stdout is flushed, since another one may be on a disk that does not answer. z may be NULL,
// before zero_create or after it has failed. A program's check of a call: if (rc) zero_end_job(z, 1,
// zero_last_error());
#ifdef __GNUC__
__attribute__((noreturn))
#endif
void zero_end_job(zero *z, int status, const char *sentence);

#ifdef __cplusplus
}
#endif
#endif
