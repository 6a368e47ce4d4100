// Services for the trainer: sums, broadcasts and barriers over the ranks, and ending the job after a failure.
#include "internal.h"
#include "net/failure.h"
#include "base/clock.h"
#include "device/virtual_time.h"
#include <string.h>

int zero_rank(const zero *z) { return z->net.rank; }
int zero_ranks(const zero *z) { return z->net.ranks; }

int zero_gather(zero *z, const double *mine, double *all, int n) {
    if (n < 1) return zero_fail(ZERO_ERR_ARGUMENT, "zero_gather: %d values: must be at least 1", n);
    ZERO_TRY(end_collectives(z));
    return tasks_fail(&z->tasks, comm_share(&z->comm, comm_for_scalars, mine, all, n));
}

int zero_barrier(zero *z) {
    ZERO_TRY(end_collectives(z));
    return tasks_fail(&z->tasks, comm_barrier(&z->comm));
}

int zero_sum(zero *z, double *values, int n) {
    if (n < 1 || n > 64) return zero_fail(ZERO_ERR_ARGUMENT, "zero_sum: %d values: must be 1 to 64", n);
    const int ranks = z->comm.group.ranks;
    double all[ranks * n];
    ZERO_TRY(zero_gather(z, values, all, n));
    for (int apart = 1; apart < ranks; apart *= 2)  // one level of the tree
        for (int r = 0; r + apart < ranks; r += 2 * apart)
            for (int i = 0; i < n; i++) all[r * n + i] += all[(r + apart) * n + i];
    memcpy(values, all, n * sizeof *values);
    return 0;
}

int zero_broadcast(zero *z, int root, void *data, size_t bytes) {
    if (root < 0 || root >= z->comm.group.ranks)
        return zero_fail(ZERO_ERR_ARGUMENT, "zero_broadcast: root %d: must be 0 to %d", root,
                         z->comm.group.ranks - 1);
    ZERO_TRY(end_collectives(z));
    return tasks_fail(&z->tasks, comm_broadcast(&z->comm, comm_for_scalars, root, data, bytes));
}

int wait_for_device(zero *z, device_stream s) { return z->device.f->wait(&z->device, s); }

// -------- virtual time

void zero_virtual_compute(zero *z, double seconds) { device_virtual_run(&z->device, COMPUTE, seconds); }

void zero_virtual_wait(zero *z) { z->device.f->wait(&z->device, COMPUTE); }

double zero_virtual_busy(const zero *z, zero_time what) { return z->device.time->busy[what]; }

double zero_virtual_now(const zero *z) {
    const virtual_time *v = z->device.time;
    return virtual_max(v->thread[LANE_TRAINER], v->stream[COMPUTE]);
}

// -------- failure

static int run_nothing(void *ctx, task *k) { return 0; }
int end_collectives(zero *z) { return tasks_run(&z->tasks, run_nothing, NULL); }

int agree(zero *z, int rc) {
    ZERO_TRY(end_collectives(z));
    return net_agree(&z->net, rc);
}

// For ranks that have no plugin, or whose zero_create failed. If the ranks have shared their failures, the
// lowest rank that failed prints. Otherwise each may be the only one that failed: rank 0 prints at once, and
// the others wait before they print, so that a launcher can end them first.
static void __attribute__((noreturn)) end_unconnected(int status, const char *message) {
    enum { MOST_TURNS = 20 };
    int rank = zero_launched().rank, lower = zero_failed()->lower;
    if (lower > 0) clock_nap(launched_by_mpi() ? 3 : 1);
    if (lower < 0 && rank > 0) clock_nap(3 + 0.3 * (rank < MOST_TURNS ? rank : MOST_TURNS));
    failure_end(NULL, status, lower > 0 ? NULL : message);
}

void zero_end_job(zero *z, int status, const char *message) {
    if (z) failure_end(&z->net, status, message);
    end_unconnected(status, message);
}
