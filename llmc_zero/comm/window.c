// The transport on one node: every rank has a window of shared memory, whose two halves alternate. An
// exchange is one barrier: each rank writes to its window before the barrier, and the others read from it
// afterwards. A rank writes to the same half again only after the next barrier, when all ranks have read it.
#include "../base/error.h"
#include "../net/failure.h"
#include "host.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    _Atomic uint32_t arrived, generation;
    // (ranks) The generation for which each rank last began to wait; it shows which ranks are missing.
    _Atomic uint32_t waits[];
} control;

typedef struct {
    control *ctl;
    char *base;  // (ranks, window)
    size_t window, mapped;
    int spins;  // number of polls before a wait sleeps
} window;

static char *slot(comm *c, exchange_kind x, int half, int owner, int reader) {
    window *w = c->host->state;
    return w->base + owner * w->window + half * w->window / 2 +
           (x == EXCHANGE_SCATTER ? reader * c->host->scatter_bytes : 0);
}
static char *window_out(comm *c, exchange_kind x, int half, int dest) {
    return slot(c, x, half, c->group.rank, dest);
}
static const char *window_in(comm *c, exchange_kind x, int half, int src) {
    return slot(c, x, half, src, c->group.rank);
}

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int wait_for(comm *c, const comm_call *call, exchange_kind x, uint32_t generation) {
    window *w = c->host->state;
    for (int i = 0; i < w->spins; i++) {
        if (atomic_load_explicit(&w->ctl->generation, memory_order_acquire) != generation) return 0;
        pause_cpu();
    }
    patience p = patience_start();
    for (;;) {
        struct timespec nap = { 0, 100000000 };
        char missing[c->group.ranks];
        double waited = patience_waited(&p);
        syscall(SYS_futex, &w->ctl->generation, FUTEX_WAIT, generation, &nap, NULL, 0);
        int done = atomic_load_explicit(&w->ctl->generation, memory_order_acquire) != generation;
        if (done || waited > c->net->timeout_s) failure_waits(c->net, host_net_use(call), x, 0, NULL);
        if (done) return 0;
        for (int r = 0; r < c->group.ranks; r++)
            missing[r] = atomic_load(&w->ctl->waits[r]) != generation + 1;
        if (waited > c->net->timeout_s) return failure_late(c->net, host_net_use(call), x, missing);
        failure_waits(c->net, host_net_use(call), x, waited, missing);
    }
}

static int window_exchange(comm *c, const comm_call *call, exchange_kind x, int half, int root,
                           size_t bytes) {
    window *w = c->host->state;
    uint32_t generation = atomic_load_explicit(&w->ctl->generation, memory_order_acquire);
    uint32_t arrived = 1 + atomic_fetch_add_explicit(&w->ctl->arrived, 1, memory_order_acq_rel);
    if (arrived < (uint32_t)c->group.ranks) {
        atomic_store_explicit(&w->ctl->waits[c->group.rank], generation + 1, memory_order_relaxed);
        return wait_for(c, call, x, generation);
    }
    atomic_store_explicit(&w->ctl->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&w->ctl->generation, generation + 1, memory_order_release);
    syscall(SYS_futex, &w->ctl->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return 0;
}

static void window_close(comm *c) {
    window *w = c->host->state;
    c->device->f->unpin(c->device, w->base);
    munmap(w->ctl, w->mapped);
    free(w);
}

static const comm_transport window_transport = {
    .out = window_out, .in = window_in, .exchange = window_exchange, .is_window = 1, .close = window_close
};

// Lets the other ranks open rank 0's memory, which has no name in the file system, so that nothing is left
// behind when a rank dies.
typedef struct {
    char path[48];
    uint64_t device, inode;
} shared_file;

// Creates the shared memory. Reserves its space now, because running out of memory later would cause a bus
// error. Returns the descriptor, or -1 with the reason in `why`.
static int make_shared(size_t bytes, shared_file *f, char *why, size_t why_bytes) {
    int fd = memfd_create("llmc_zero", MFD_CLOEXEC);
    struct stat s;
    int rc = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    if (!rc && fstat(fd, &s)) rc = errno;
    if (!rc) {
        snprintf(f->path, sizeof f->path, "/proc/%ld/fd/%d", (long)getpid(), fd);
        f->device = (uint64_t)s.st_dev;
        f->inode = (uint64_t)s.st_ino;
        return fd;
    }
    snprintf(why, why_bytes, "%.1f MiB of shared memory: %s", bytes / 1048576.0, strerror(rc));
    if (fd >= 0) close(fd);
    return -1;
}

// In another container, rank 0's path may be a different file.
static int open_shared(const shared_file *f) {
    struct stat s;
    int fd = *f->path ? open(f->path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0 || (!fstat(fd, &s) && (uint64_t)s.st_dev == f->device && (uint64_t)s.st_ino == f->inode))
        return fd;
    close(fd);
    return -1;
}

static int map_shared(comm *c, size_t bytes, void **base, char *why, size_t why_bytes) {
    shared_file f = { "", 0, 0 };
    int fd = c->group.rank ? -1 : make_shared(bytes, &f, why, why_bytes);
    ZERO_TRY(net_broadcast(c->net, 0, &f, sizeof f));
    if (c->group.rank) fd = open_shared(&f);
    int ok = fd >= 0 && (*base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED;
    int mine = ok, all = net_least(c->net, ok);
    if (fd >= 0) close(fd);
    if (!all && mine) munmap(*base, bytes);
    ZERO_TRY(net_broadcast(c->net, 0, why, why_bytes));
    return all;
}

int host_open_window(comm *c, const zero_config *config, memory *m, char *why, size_t why_bytes) {
    struct comm_host *h = c->host;
    int ranks = c->group.ranks;
    if (!c->net->on_one_node) {
        snprintf(why, why_bytes, "ranks on several nodes");
        return 0;
    }
    snprintf(why, why_bytes, "no shared memory");
    comm_room room = comm_window_room(config, ranks);
    size_t page = 4096, size = room.bytes;
    size_t head = (sizeof(control) + ranks * sizeof(uint32_t) + page - 1) / page * page,
           bytes = head + ranks * size;
    void *base = NULL;
    int mapped = map_shared(c, bytes, &base, why, why_bytes);
    if (mapped <= 0) return mapped;
    window *w = malloc(sizeof *w);
    if (!w) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the window");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *w = (window){ .ctl = base,
                   .base = (char *)base + head,
                   .window = size,
                   .mapped = bytes,
                   .spins = ranks * (1 + config->overlap) > cores ? 100 : 4000 };
    int rc = c->device->f->pin(c->device, w->base, ranks * size);
    if (rc) {
        munmap(base, bytes);
        free(w);
        return rc;
    }
    h->state = w;
    h->transport = &window_transport;
    h->gather_bytes = room.gather_bytes;
    h->scatter_bytes = room.scatter_bytes;
    snprintf(c->name, sizeof c->name, "%s, shared window", c->net->name);
    return memory_note(m, &c->planned[COMM_WINDOW]) ? ZERO_ERR_MEMORY : 1;
}
