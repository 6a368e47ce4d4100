// With comm.nccl_memory: the memory that collectives read and write comes from NCCL's allocator and is
// registered with NCCL, which can then send it without a copy.
#ifdef ZERO_HAVE_NCCL
#include "nccl_state.h"

// -------- the allocator

static void *alloc_for_nccl(device *d, size_t bytes, const char **why) {
    void *p = NULL;
    ncclResult_t rc = nccl.MemAlloc(&p, bytes);
    if (!rc && !d->f->clear(d, COMPUTE, p, bytes) && !d->f->wait(d, COMPUTE)) return p;
    *why = rc ? nccl.GetErrorString(rc) : "CUDA cannot clear it";
    if (!rc) nccl.MemFree(p);
    cudaGetLastError();  // so that the next launch does not report this error again
    return NULL;
}

static void release_for_nccl(device *d, void *p, size_t bytes) {
    if (!d->is_stalled) nccl.MemFree(p);
}

void nccl_set_mover(comm *c, memory *m) {
    c->mover_functions = *c->device->f;
    c->mover_functions.alloc = alloc_for_nccl;
    c->mover_functions.release = release_for_nccl;
    c->mover = *c->device;
    c->mover.f = &c->mover_functions;
    c->mover.check = NULL;  // it only waits before the first collective
    m->mover = &c->mover;
}

// -------- registered buffers

// A refusal by NCCL is not an error: it then copies through its own buffers.
static int register_with(nccl_state *n, const communicator *k, const memory_block *b) {
    void *handle = NULL;
    ASK(n, CommRegister, k->comm, b->base, b->bytes, &handle);
    if (n->rc != ncclInProgress) n->rc = ncclSuccess;
    ZERO_TRY(nccl_settle(n, k, NULL));
    if (!handle) return 0;
    n->registered[n->n_registered].by = k;
    n->registered[n->n_registered++].handle = handle;
    return 0;
}

// Sums between hosts are sent from and to c->incoming only.
static int moves(const nccl_state *n, const communicator *k, const memory_block *b) {
    return k->comm && b->moved_by & k->moves && (k != &n->of[BETWEEN] || b->base == n->c->incoming);
}

// Registers each block with the communicators that use it. All ranks have the same blocks in the same order.
int nccl_register_moved(nccl_state *n, memory *m) {
    int blocks = 0;
    for (const memory_block *b = m->blocks; b; b = b->next) blocks++;
    n->registered = memory_array(m, COMMUNICATORS * blocks, sizeof *n->registered);
    if (!n->registered) return ZERO_ERR_MEMORY;
    for (const memory_block *b = m->blocks; b; b = b->next)
        for (const communicator *k = n->of; k < n->of + COMMUNICATORS; k++)
            if (b->owner == m->mover && moves(n, k, b)) ZERO_TRY(register_with(n, k, b));
    return 0;
}

int nccl_deregister_all(nccl_state *n) {
    while (n->n_registered) {
        const communicator *k = n->registered[--n->n_registered].by;
        ASK(n, CommDeregister, k->comm, n->registered[n->n_registered].handle);
        ZERO_TRY(nccl_settle(n, k, NULL));
    }
    return 0;
}
#endif
