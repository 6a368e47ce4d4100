// What a trainer needs of its ranks: sums, broadcasts, barriers, and one end for all of them after a failure.
#include "internal.h"
#include "comm/nccl.h"
#include "net/late.h"
#include "net/net.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int zero_rank(const zero *z) { return z->comm.rank; }
int zero_ranks(const zero *z) { return z->comm.ranks; }

typedef struct {
    zero *z;
    double *values;
    int n;
    int root;
    void *data;
    size_t bytes;
} scalar_request;

static int run_barrier(void *ctx, task *k) {
    (void)k;
    return comm_barrier(&((zero *)ctx)->comm);
}
int zero_barrier(zero *z) { return tasks_run(&z->tasks, run_barrier, z); }

static int run_sum(void *ctx, task *k) {
    (void)k;
    scalar_request *s = ctx;
    comm *c = &s->z->comm;
    double all[c->ranks * s->n];
    ZERO_TRY(comm_share(c, comm_for_scalars, s->values, all, s->n));
    for (int i = 0; i < s->n; i++) {
        s->values[i] = all[i];
        for (int r = 1; r < c->ranks; r++) s->values[i] += all[r * s->n + i];
    }
    return 0;
}
int zero_sum(zero *z, double *values, int n) {
    if (n < 1 || n > 64) return zero_fail(ZERO_ERR_ARGUMENT, "zero_sum: %d values; 1 to 64", n);
    ZERO_TRY(comm_nccl_failed(
        &z->comm));  // the values may come from what a collective that has failed left behind
    scalar_request s = { .z = z, .values = values, .n = n };
    return tasks_run(&z->tasks, run_sum, &s);
}

static int run_broadcast(void *ctx, task *k) {
    (void)k;
    scalar_request *s = ctx;
    return comm_broadcast(&s->z->comm, comm_for_scalars, s->root, s->data, s->bytes);
}
int zero_broadcast(zero *z, int root, void *data, size_t bytes) {
    if (root < 0 || root >= z->comm.ranks)
        return zero_fail(ZERO_ERR_ARGUMENT, "zero_broadcast: root %d of %d ranks", root, z->comm.ranks);
    scalar_request s = { .z = z, .root = root, .data = data, .bytes = bytes };
    return tasks_run(&z->tasks, run_broadcast, &s);
}

int zero_first_to_fail(zero *z) {
    if (z) {
        const comm_net *net = z->comm.net;
        int first = comm_window_first_to_fail(&z->comm);
        if (net) first = net->first_to_fail(&z->comm, first);
        if (first >= 0) return first;
        double turn = comm_turn_s(z->comm.rank);  // without a window: in turn, the first ends the others
        nanosleep(&(struct timespec){ (time_t)turn, (long)((turn - (time_t)turn) * 1e9) }, NULL);
        return 1;
    }
    int shared_as = zero_failure_shared_as();
    if (shared_as > 0 && !comm_mpi_launched()) {  // nobody else ends this rank; rank 0 speaks first
        nanosleep(&(struct timespec){ 1, 0 }, NULL);
        zero_end_all(NULL, 1);
    }
    return shared_as == 0 || zero_launched().rank == 0;
}

int wait_for_device(zero *z, device_stream s) {
    ZERO_TRY(z->device.f->wait(&z->device, s));
    return z->comm.nccl ? comm_nccl_failed(&z->comm) : 0;
}

// All ranks fail if one does, with the error of the lowest rank that failed; where others did not, it is
// named.
int agree(zero *z, int rc) {
    comm *c = &z->comm;
    struct {
        int rc;
        char sentence[512];
    } mine = { rc, "" }, first = { 0, "" };
    double failed = rc != 0;
    if (rc) snprintf(mine.sentence, sizeof mine.sentence, "%s", zero_last_error());
    int comm_rc = zero_sum(z, &failed, 1), who = 0;
    for (int r = 0; !comm_rc && failed && !first.rc && r < c->ranks; r++) {
        first = mine;
        who = r;
        comm_rc = zero_broadcast(z, r, &first, sizeof first);
    }
    if (comm_rc || !failed) return comm_rc ? comm_rc : rc;
    if (failed < c->ranks && strncmp(first.sentence, "rank ", 5))
        zero_fail(first.rc, "rank %d (host %s): %s", who, comm_host(c, who), first.sentence);
    else
        zero_fail(first.rc, "%s", first.sentence);
    return zero_fail_shared(first.rc, c->rank);
}

void zero_end_all(zero *z, int status) {
    if (z && z->comm.net) z->comm.net->abort(&z->comm, status);
    exit(status);
}
