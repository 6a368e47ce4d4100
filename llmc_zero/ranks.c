// Services for the trainer: sums, broadcasts and barriers over the ranks, and a common end after a failure.
#include "internal.h"
#include "net/failure.h"
#include "base/clock.h"

int zero_rank(const zero *z) { return z->net.rank; }
int zero_ranks(const zero *z) { return z->net.ranks; }

typedef struct {
    zero *z;
    const double *mine;
    double *all;
    int n;
} share_request;

static int run_share(void *ctx, task *k) {
    share_request *s = ctx;
    return comm_share(&s->z->comm, comm_for_scalars, s->mine, s->all, s->n);
}
int share_values(zero *z, const double *mine, double *all, int n) {
    return tasks_run(&z->tasks, run_share, &(share_request){ z, mine, all, n });
}

static int run_barrier(void *ctx, task *k) { return comm_barrier(&((zero *)ctx)->comm); }
int zero_barrier(zero *z) { return tasks_run(&z->tasks, run_barrier, z); }

int zero_sum(zero *z, double *values, int n) {
    if (n < 1 || n > 64) return zero_fail(ZERO_ERR_ARGUMENT, "zero_sum: %d values; 1 to 64", n);
    ZERO_TRY(comm_failed(&z->comm));  // the values may be leftovers of a failed collective
    double all[z->comm.group.ranks * n];
    ZERO_TRY(share_values(z, values, all, n));
    for (int i = 0; i < n; i++) {
        values[i] = all[i];
        for (int r = 1; r < z->comm.group.ranks; r++) values[i] += all[r * n + i];
    }
    return 0;
}

typedef struct {
    zero *z;
    int root;
    void *data;
    size_t bytes;
} broadcast_request;

static int run_broadcast(void *ctx, task *k) {
    broadcast_request *s = ctx;
    return comm_broadcast(&s->z->comm, comm_for_scalars, s->root, s->data, s->bytes);
}
int zero_broadcast(zero *z, int root, void *data, size_t bytes) {
    if (root < 0 || root >= z->comm.group.ranks)
        return zero_fail(ZERO_ERR_ARGUMENT, "zero_broadcast: root %d of %d ranks", root, z->comm.group.ranks);
    return tasks_run(&z->tasks, run_broadcast, &(broadcast_request){ z, root, data, bytes });
}

int wait_for_device(zero *z, device_stream s) {
    ZERO_TRY(z->device.f->wait(&z->device, s));
    return comm_failed(&z->comm);
}

// -------- failure

static int run_nothing(void *ctx, task *k) { return 0; }
int end_collectives(zero *z) {
    ZERO_TRY(comm_failed(&z->comm));
    return tasks_run(&z->tasks, run_nothing, NULL);
}

int agree(zero *z, int rc) {
    ZERO_TRY(end_collectives(z));
    return failure_agree(&z->net, rc);
}

// There is no plugin, or creating it failed. If the ranks share their failures, the lowest rank prints. If
// not, each may be the only one that failed: rank 0 prints at once, the others unless a launcher ends them
// first.
static void __attribute__((noreturn)) end_unconnected(int status, const char *sentence) {
    enum { MOST_TURNS = 20 };
    int rank = zero_launched().rank, lower = zero_failed()->lower;
    if (lower > 0) clock_nap(launched_by_mpi() ? 3 : 1);
    if (lower < 0 && rank > 0) clock_nap(3 + 0.3 * (rank < MOST_TURNS ? rank : MOST_TURNS));
    failure_end(NULL, status, lower > 0 ? NULL : sentence);
}

void zero_end_job(zero *z, int status, const char *sentence) {
    if (z) failure_end(&z->net, status, sentence);
    end_unconnected(status, sentence);
}
