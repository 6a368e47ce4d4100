// The ranks of a job: their numbers, sums and broadcasts over them, and how all of them end after a failure.
// Part of zero.h, which includes this file.
#ifndef LLMC_ZERO_JOB_H
#define LLMC_ZERO_JOB_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero zero;  // of zero.h, which includes this file

// Returns the launcher's values from the environment (Open MPI's mpirun, srun --mpi=pmix); without a
// launcher, rank 0 of 1. If the variables contradict each other, or come from a launcher that Open MPI does
// not work with, ranks is 0 and zero_last_error() explains it.
typedef struct {
    int rank, ranks, ranks_on_node;
} zero_launch;
zero_launch zero_launched(void);
// Return this rank's number, from 0, and the number of ranks; neither changes while z exists.
int zero_rank(const zero *z);
int zero_ranks(const zero *z);
// (collective) Returns 0 when all ranks have called it.
int zero_barrier(zero *z);
// (collective) Replaces values[0..n), n from 1 to 64, with their sums over the ranks, added in tree order, so
// all ranks get the same bits. For losses, counts, and decisions that must be the same on all ranks. Allowed
// at any time, also between hooks.
int zero_sum(zero *z, double *values, int n);
// (collective) Copies `bytes` bytes at data from rank `root` to all ranks. Allowed at any time.
int zero_broadcast(zero *z, int root, void *data, size_t bytes);
// (collective) Returns 0 if all ranks pass the same text: lines "name = value", at most 16 MiB, with each
// name once and in the same order. Otherwise it fails with ZERO_ERR_ARGUMENT on all ranks and names the first
// line that differs: "rank 1 (host b) has threads = 8 and rank 0 (host a) has threads = 4". Allowed at any
// time. To compare lines before zero_create allocates, pass them in config.start.same.
int zero_require_same(zero *z, const char *lines);
// Ends all ranks of the job after a failure, within seconds and with this exit status, with or without a
// launcher. Does not return. Only one rank writes its message (NULL: nothing) and a newline to stderr: the
// lowest rank that failed, or the rank that knows which one hangs. Only stdout is flushed, because any other
// stream may be on a disk that no longer responds. Pass z NULL before zero_create or after it failed. To
// check a call: if (rc) zero_end_job(z, 1, zero_last_error());
#ifdef __GNUC__
__attribute__((noreturn))
#endif
void zero_end_job(zero *z, int status, const char *message);

#ifdef __cplusplus
}
#endif
#endif
