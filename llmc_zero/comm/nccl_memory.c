// NCCL and memory: its allocator, the buffers registered with it so that it can send them without a copy, and
// the device memory that it uses itself.
#ifdef ZERO_HAVE_NCCL
#include "../base/clock.h"
#include "host.h"
#include "nccl_state.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// -------- the allocator

// Allocates device memory that NCCL can access from other GPUs and from the network.
static void *alloc_for_nccl(device *d, size_t bytes, const char **why) {
    static _Thread_local char text[160];
    void *p = NULL;
    ncclResult_t rc = nccl.MemAlloc(&p, bytes);
    *why = text;
    if (rc) {
        const char *last = nccl.GetLastError(NULL);
        int known = last && *last;
        snprintf(text, sizeof text, "ncclMemAlloc: %s%s%.100s", nccl.GetErrorString(rc), known ? ": " : "",
                 known ? last : "");
        cudaGetLastError();  // so that the next launch does not report this error again
        return NULL;
    }
    if (!d->f->clear(d, COMPUTE, p, bytes) && !d->f->wait(d, COMPUTE)) return p;
    snprintf(text, sizeof text, "%.159s", zero_last_error());
    nccl.MemFree(p);
    return NULL;
}

static void release_for_nccl(device *d, void *p, size_t bytes) { nccl.MemFree(p); }

void nccl_set_mover(comm *c, memory *m) {
    c->mover_functions = *c->device->f;
    c->mover_functions.alloc = alloc_for_nccl;
    c->mover_functions.release = release_for_nccl;
    c->mover = *c->device;
    c->mover.f = &c->mover_functions;
    m->mover = &c->mover;
}

// -------- NCCL's own memory

int nccl_bytes_left(size_t *left) {
    size_t all;
    cudaError_t rc = cudaMemGetInfo(left, &all);
    if (rc == cudaSuccess) return 0;
    return zero_fail(ZERO_ERR_DEVICE, "CUDA: cudaMemGetInfo: %s", cudaGetErrorString(rc));
}

// If ranks share a GPU, the driver reports the memory of all of them, so each records an equal share. No rank
// allocates in the meantime.
int nccl_count_taken(nccl_state *n, size_t before) {
    size_t left;
    ZERO_TRY(nccl_bytes_left(&left));
    if (left < before) n->taken += (before - left) / n->c->ranks_on_device;
    return 0;
}

// -------- registered buffers

// A refusal by NCCL is not an error: it then copies through its own buffers.
static int register_in(nccl_state *n, int i, const memory_block *b) {
    registration *r = &n->registered[n->n_registered];
    *r = (registration){ .lane = i };
    ASK(n, CommRegister, n->lanes[i].comm, b->base, b->bytes, &r->handle);
    if (n->rc != ncclInProgress) n->rc = ncclSuccess;
    ZERO_TRY(nccl_settle(n, &n->lanes[i]));
    n->n_registered += r->handle != NULL;
    return 0;
}

// Registers each block with the communicators that read or write it. All ranks have the same blocks in the
// same order.
static int register_moved(nccl_state *n, memory *m) {
    int rc = 0, blocks = 0;
    for (const memory_block *b = m->blocks; b; b = b->next) blocks++;
    n->registered = memory_array(m, LANES * blocks, sizeof *n->registered);
    if (!n->registered) return ZERO_ERR_MEMORY;
    pthread_mutex_lock(&n->lock);
    if (n->failed) rc = nccl_relay(n);
    for (const memory_block *b = m->blocks; b && nccl.CommRegister && nccl.CommDeregister; b = b->next) {
        if (b->owner != m->mover) continue;
        if (!rc && b->moved_by & ZERO_MOVED_BY_REDUCTIONS) rc = register_in(n, REDUCE, b);
        if (!rc && b->moved_by & ZERO_MOVED_BY_GATHERS) rc = register_in(n, GATHERING, b);
    }
    pthread_mutex_unlock(&n->lock);
    return rc;
}

int nccl_deregister_all(nccl_state *n) {
    while (n->n_registered) {
        const registration *r = &n->registered[--n->n_registered];
        lane *l = &n->lanes[r->lane];
        ASK(n, CommDeregister, l->comm, r->handle);
        ZERO_TRY(nccl_settle(n, l));
    }
    return 0;
}

// -------- the rehearsal

// Returns 1 with the failure in *why if rc is not 0 or the watching thread has found a failure.
static int rehearsal_failed(nccl_state *n, int rc, failure_record *why) {
    pthread_mutex_lock(&n->lock);
    int failed = rc || n->failed;
    if (!rc && failed) nccl_relay(n);
    pthread_mutex_unlock(&n->lock);
    if (failed && !why->fields.code) *why = *zero_failed();
    return failed;
}

static int are_lanes_done(const nccl_state *n) {
    int done = 1;
    for (const lane *l = n->lanes; l < n->lanes + LANES; l++)
        done &= cudaStreamQuery(l->stream) == cudaSuccess;
    cudaGetLastError();  // the next launch must not report "not ready" as an error
    return done;
}

// Appends the last error to the failure in *why. It names the rank that no longer responds.
static int fail_after(failure_record *why) {
    size_t used = strlen(why->fields.sentence);
    snprintf(why->fields.sentence + used, sizeof why->fields.sentence - used, "; %s", zero_last_error());
    return zero_fail_again(why);
}

// Waits until the queued work is done on all ranks. If a rank fails, all fail at once; a wait for the device
// would end only at NCCL's own limit.
static int end_rehearsal(nccl_state *n, int rc) {
    double worst = BUSY;
    int who = 0;
    failure_record why = { .fields = { .code = 0 } };
    for (; worst == BUSY; clock_nap(2e-3)) {
        int failed = rehearsal_failed(n, rc, &why);
        int share = nccl_worst_of(n->c, failed ? FAILED : are_lanes_done(n) ? DONE : BUSY, &worst, &who);
        if (share && failed) return fail_after(&why);
        ZERO_TRY(share);
    }
    if (worst == DONE) return 0;
    return net_agree(n->c->net, who == n->c->group.rank ? zero_fail_again(&why) : 0);
}

// NCCL connects ranks during the first collective of each kind, so the rehearsal runs each kind once.
int nccl_prepare(comm *c, memory *m, int (*rehearse)(void *), void *ctx) {
    nccl_state *n = c->nccl;
    size_t before = 0;
    ZERO_TRY(nccl_failed(c));
    ZERO_TRY(comm_barrier(c));  // no rank allocates before all have reached this point
    ZERO_TRY(net_agree(c->net, nccl_bytes_left(&before)));
    ZERO_TRY(net_agree(c->net, register_moved(n, m)));
    ZERO_TRY(end_rehearsal(n, rehearse(ctx)));
    ZERO_TRY(net_agree(c->net, nccl_count_taken(n, before)));
    c->planned[COMM_NCCL].bytes = n->taken;
    return memory_note(m, &c->planned[COMM_NCCL]);
}
#endif
