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
// of 1.
typedef struct {
    int rank, ranks, ranks_on_node;
} zero_launch_info;
zero_launch_info zero_launched(void);
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
// into config.same. Allowed at any time.
int zero_require_same(zero *z, const char *lines);
// After a failure: returns 1 on the rank that is to print, 0 on the others; z may be NULL. With a shared
// window the first rank that calls it gets the 1, and others that wait in a collective fail. Without one the
// ranks cannot agree: rank r returns 1 after r * 0.2 s, from the 15th on little more than 3 s, by when
// zero_end_all of an earlier one has most likely ended it. Connected by TCP, a rank that hears that another
// one has ended the job ends here, with that one's status, as MPI's launcher would end it. With NULL the
// launcher's rank 0 gets the 1; without MPI, where zero_create has failed on all ranks, the lowest that is
// left, and the others end here a second later.
int zero_first_to_fail(zero *z);
// Ends all ranks of the job with this exit status, and does not return. z may be NULL: then this process
// exits, and the launcher ends the others where status is not 0 (srun with --kill-on-bad-exit).
void zero_end_all(zero *z, int status);

#ifdef __cplusplus
}
#endif
#endif
