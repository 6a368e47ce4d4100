/*
 * The transport of one node: every rank has a window of shared memory, two halves used in turn. An exchange is one barrier:
 * before it a rank writes its own window, after it the others read there. A half is written again only after the barrier that
 * follows, when nobody reads it any more.
 */
#include "comm.h"
#include "error.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    _Atomic uint32_t arrived, generation, failed;
} control;

typedef struct {
    control *ctl;
    char *base;                 /* (ranks, window) */
    size_t window, mapped;
    int spins;                  /* before a wait sleeps */
} window;

static size_t half_bytes(const window *w) { return w->window / 2; }

static char *slot(comm *c, comm_exchange x, int half, int owner, int reader) {
    window *w = c->state;
    return w->base + owner * w->window + half * half_bytes(w) + (x == EXCHANGE_SCATTER ? reader * c->scatter_bytes : 0);
}
static char *window_out(comm *c, comm_exchange x, int half, int dest) { return slot(c, x, half, c->rank, dest); }
static const char *window_in(comm *c, comm_exchange x, int half, int src) { return slot(c, x, half, src, c->rank); }

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int wait_for(comm *c, uint32_t generation) {
    window *w = c->state;
    for (int i = 0; i < w->spins; i++) {
        if (atomic_load_explicit(&w->ctl->generation, memory_order_acquire) != generation) return 0;
        pause_cpu();
    }
    double limit = comm_now() + c->timeout_s;
    for (;;) {
        struct timespec nap = { 0, 100000000 };
        syscall(SYS_futex, &w->ctl->generation, FUTEX_WAIT, generation, &nap, NULL, 0);     /* any return: look again */
        int failed = atomic_load(&w->ctl->failed);      /* in this order: a rank that came here, went on and failed then is no failure here */
        if (atomic_load_explicit(&w->ctl->generation, memory_order_acquire) != generation) return 0;
        if (failed) return zero_fail(ZERO_ERR_COMM, "another rank failed");
        if (comm_now() > limit)
            return zero_fail(ZERO_ERR_COMM, "rank %d waited %.0f s for the other ranks: one of them is stuck, gone, or calls the hooks in "
                             "another order", c->rank, c->timeout_s);
    }
}

static int window_exchange(comm *c, comm_exchange x, int half, int root, size_t bytes) {
    (void)x; (void)half; (void)root; (void)bytes;
    window *w = c->state;
    uint32_t generation = atomic_load_explicit(&w->ctl->generation, memory_order_acquire);
    if (atomic_fetch_add_explicit(&w->ctl->arrived, 1, memory_order_acq_rel) + 1 < (uint32_t)c->ranks) return wait_for(c, generation);
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

int comm_window_first_to_fail(comm *c) {
    if (c->transport != &window_transport) return -1;
    return !atomic_exchange(&((window *)c->state)->ctl->failed, 1);
}

/* Rank 0 makes the memory, with its space reserved so that a full /dev/shm shows here and not as a bus error later; the name is gone
 * from the system as soon as every rank has it open. */
static int map_shared(comm *c, size_t bytes, void **base, char *why, size_t why_bytes) {
    char name[64] = "";
    int fd = -1, ok = 1;
    if (c->rank == 0) {
        snprintf(name, sizeof name, "/llmc_zero.%ld.%lx", (long)getpid(), (unsigned long)(comm_now() * 1e6));
        fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
        int rc = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes);
        if (rc) { ok = 0; snprintf(why, why_bytes, "%.1f MiB of shared memory: %s", bytes / 1048576.0, strerror(rc)); }
    }
    ZERO_TRY(comm_mpi_broadcast_text(c, name, sizeof name));
    if (c->rank && (fd = shm_open(name, O_RDWR, 0600)) < 0) ok = 0;
    if (ok && (*base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) ok = 0;
    int mine = ok, all = comm_mpi_agree(c, ok);
    if (c->rank == 0 && fd >= 0) shm_unlink(name);
    if (fd >= 0) close(fd);
    if (!all && mine) munmap(*base, bytes);
    ZERO_TRY(comm_mpi_broadcast_text(c, why, (int)why_bytes));
    return all;
}

int comm_window_open(comm *c, const zero_config *config, memory *m, char *why, size_t why_bytes) {
    if (!c->node_ranks_all) { snprintf(why, why_bytes, "ranks on several nodes"); return 0; }
    snprintf(why, why_bytes, "no shared memory");
    size_t align = 4096, size = (size_t)config->window_bytes / (2 * align) * 2 * align, bytes = align + c->ranks * size;
    void *base = NULL;
    int mapped = map_shared(c, bytes, &base, why, why_bytes);
    if (mapped <= 0) return mapped;
    window *w = malloc(sizeof *w);
    if (!w) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the window");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *w = (window){ base, (char *)base + align, size, bytes, c->ranks * (1 + config->overlap) > cores ? 100 : 4000 };
    int rc = c->device->f->pin(c->device, w->base, c->ranks * size);
    if (rc) {
        munmap(base, bytes);
        free(w);
        return rc;
    }
    c->state = w;
    c->transport = &window_transport;
    c->gather_bytes = size / 2;
    c->scatter_bytes = size / 2 / c->ranks / 64 * 64;
    snprintf(c->name, sizeof c->name, "mpi, shared window");
    return memory_note(m, ZERO_WORKING, "shared window", size) ? ZERO_ERR_MEMORY : 1;
}
