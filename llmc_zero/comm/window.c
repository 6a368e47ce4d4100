// The transport of one node: every rank has a window of shared memory, two halves used in turn. An exchange
// is one barrier: before it a rank writes its own window, after it the others read there. A half is written
// again only after the barrier that follows, when nobody reads it any more.
#include "comm.h"
#include "../net/failure.h"
#include "../error.h"
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
    _Atomic uint32_t
        waits[];  // (ranks): the generation whose end each rank has come to wait for: to tell who has not
} control;

typedef struct {
    control *ctl;
    char *base;  // (ranks, window)
    size_t window, mapped;
    int spins;  // before a wait sleeps
} window;

static size_t half_bytes(const window *w) { return w->window / 2; }

static char *slot(comm *c, exchange_kind x, int half, int owner, int reader) {
    window *w = c->state;
    return w->base + owner * w->window + half * half_bytes(w) +
           (x == EXCHANGE_SCATTER ? reader * c->scatter_bytes : 0);
}
static char *window_out(comm *c, exchange_kind x, int half, int dest) {
    return slot(c, x, half, c->rank, dest);
}
static const char *window_in(comm *c, exchange_kind x, int half, int src) {
    return slot(c, x, half, src, c->rank);
}

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int fail_late(const comm *c, exchange_kind x, uint32_t generation) {
    const window *w = c->state;
    char missing[c->ranks];
    for (int r = 0; r < c->ranks; r++) missing[r] = atomic_load(&w->ctl->waits[r]) != generation + 1;
    return failure_late(c->net, comm_net_use(c), x, missing);
}

static int wait_for(comm *c, exchange_kind x, uint32_t generation) {
    window *w = c->state;
    for (int i = 0; i < w->spins; i++) {
        if (atomic_load_explicit(&w->ctl->generation, memory_order_acquire) != generation) return 0;
        pause_cpu();
    }
    patience p = patience_start();
    for (;;) {
        struct timespec nap = { 0, 100000000 };
        double waited = patience_waited(&p);
        syscall(SYS_futex, &w->ctl->generation, FUTEX_WAIT, generation, &nap, NULL, 0);
        if (atomic_load_explicit(&w->ctl->generation, memory_order_acquire) != generation) return 0;
        ZERO_TRY(failure_lost_in(c->net, comm_net_use(c), x));
        if (waited > c->net->timeout_s) return fail_late(c, x, generation);
    }
}

static int window_exchange(comm *c, exchange_kind x, int half, int root, size_t bytes) {
    (void)half;
    (void)root;
    (void)bytes;
    window *w = c->state;
    uint32_t generation = atomic_load_explicit(&w->ctl->generation, memory_order_acquire);
    int last = atomic_fetch_add_explicit(&w->ctl->arrived, 1, memory_order_acq_rel) + 1 == (uint32_t)c->ranks;
    if (!last) {
        atomic_store_explicit(&w->ctl->waits[c->rank], generation + 1, memory_order_relaxed);
        return wait_for(c, x, generation);
    }
    atomic_store_explicit(&w->ctl->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&w->ctl->generation, generation + 1, memory_order_release);
    syscall(SYS_futex, &w->ctl->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return 0;
}

static void window_close(comm *c) {
    window *w = c->state;
    c->device->f->unpin(c->device, w->base);
    munmap(w->ctl, w->mapped);
    free(w);
    c->state = NULL;
}

static const comm_transport window_transport = { window_out, window_in, window_exchange, window_close };

comm_way comm_way_of(const comm *c) {
    return (comm_way){ c->ranks, c->transport == &window_transport, c->nccl != NULL };
}

// Rank 0's descriptor of the memory, as others open it: without a name of its own, none is left wherever a
// rank dies.
typedef struct {
    char path[48];
    uint64_t device, inode;
} shared_file;

static int same_file(int fd, const shared_file *f) {
    struct stat s;
    return !fstat(fd, &s) && (uint64_t)s.st_dev == f->device && (uint64_t)s.st_ino == f->inode;
}

// With its space reserved, so that a lack of memory shows here and not as a bus error later. Returns the
// descriptor.
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

// In another container, rank 0's path may be there and be that of something else.
static int open_shared(const shared_file *f) {
    int fd = *f->path ? open(f->path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0 || same_file(fd, f)) return fd;
    close(fd);
    return -1;
}

static int map_shared(comm *c, size_t bytes, void **base, char *why, size_t why_bytes) {
    shared_file f = { "", 0, 0 };
    int fd = c->rank ? -1 : make_shared(bytes, &f, why, why_bytes);
    ZERO_TRY(net_broadcast(c->net, 0, &f, sizeof f));
    if (c->rank) fd = open_shared(&f);
    int ok = fd >= 0 && (*base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED;
    int mine = ok, all = net_least(c->net, ok);
    if (fd >= 0) close(fd);
    if (!all && mine) munmap(*base, bytes);
    ZERO_TRY(net_broadcast(c->net, 0, why, why_bytes));
    return all;
}

int comm_window_open(comm *c, const zero_config *config, memory *m, char *why, size_t why_bytes) {
    if (!c->net->on_one_node) {
        snprintf(why, why_bytes, "ranks on several nodes");
        return 0;
    }
    snprintf(why, why_bytes, "no shared memory");
    comm_room room = comm_window_room(config, c->ranks);
    size_t page = 4096, size = room.bytes;
    size_t head = (sizeof(control) + c->ranks * sizeof(uint32_t) + page - 1) / page * page,
           bytes = head + c->ranks * size;
    void *base = NULL;
    int mapped = map_shared(c, bytes, &base, why, why_bytes);
    if (mapped <= 0) return mapped;
    window *w = malloc(sizeof *w);
    if (!w) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the window");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *w = (window){ base, (char *)base + head, size, bytes,
                   c->ranks * (1 + config->overlap) > cores ? 100 : 4000 };
    int rc = c->device->f->pin(c->device, w->base, c->ranks * size);
    if (rc) {
        munmap(base, bytes);
        free(w);
        return rc;
    }
    c->state = w;
    c->transport = &window_transport;
    c->gather_bytes = room.gather_bytes;
    c->scatter_bytes = room.scatter_bytes;
    snprintf(c->name, sizeof c->name, "%s, shared window", c->net->name);
    return memory_note(m, &c->planned[COMM_WINDOW]) ? ZERO_ERR_MEMORY : 1;
}
