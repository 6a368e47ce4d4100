// Not MPI_Win_allocate_shared: if its file does not fit into /dev/shm, Open MPI 4 fails on one rank and
// leaves the others waiting without a limit.
#include "staging.h"
#include "../base/error.h"
#include "../net/failure.h"
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

// At the beginning of the shared memory.
typedef struct {
    _Atomic uint32_t arrived, generation;
    // (ranks) The generation for which each rank last began to wait; it shows which ranks are missing.
    _Atomic uint32_t waits[];
} control;

struct window {
    net *ranks;
    net_group of;
    control *ctl;
    size_t head, mapped;  // bytes of the control with padding, and of all the shared memory
    int spins;            // number of polls before a wait sleeps
};

char *window_memory(const window *w) { return (char *)w->ctl + w->head; }

// -------- meeting

static int met(const window *w, uint32_t generation) {
    return atomic_load_explicit(&w->ctl->generation, memory_order_acquire) != generation;
}

static int wait_for_others(window *w, net_use use, exchange_kind x, uint32_t generation) {
    net *n = w->ranks;
    for (int i = 0; i < w->spins; i++) {
        if (met(w, generation)) return 0;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    patience p = patience_start();
    for (;;) {
        const struct timespec nap = { 0, 100000000 };
        char missing[n->ranks];
        const double waited = patience_waited(&p);
        syscall(SYS_futex, &w->ctl->generation, FUTEX_WAIT, generation, &nap, NULL, 0);
        const int done = met(w, generation), late = !done && waited > n->timeout_s;
        memset(missing, 0, sizeof missing);
        for (int i = 0; i < w->of.ranks; i++)
            missing[w->of.first + i] = atomic_load(&w->ctl->waits[i]) != generation + 1;
        failure_waits(n, use, x, waited, done || late ? NULL : missing);
        if (done) return 0;
        if (w->of.ranks < n->ranks) ZERO_TRY(failure_heard(n, use));
        if (late) return failure_late(n, use, x, missing);
    }
}

int window_meet(window *w, net_use use, exchange_kind x) {
    control *ctl = w->ctl;
    uint32_t generation = atomic_load_explicit(&ctl->generation, memory_order_acquire);
    uint32_t arrived = 1 + atomic_fetch_add_explicit(&ctl->arrived, 1, memory_order_acq_rel);
    if (arrived < (uint32_t)w->of.ranks) {
        atomic_store_explicit(&ctl->waits[w->of.rank], generation + 1, memory_order_relaxed);
        return wait_for_others(w, use, x, generation);
    }
    atomic_store_explicit(&ctl->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&ctl->generation, generation + 1, memory_order_release);
    syscall(SYS_futex, &ctl->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return 0;
}

// -------- opening and closing

// The memory of a node's first rank. It has no name in a file system, so nothing stays when a rank dies.
typedef struct {
    char path[48], why[WINDOW_WHY];
    dev_t device;
    ino_t inode;
} shared_file;

// Creates the memory, and reserves its space now, because running out of memory later would cause a bus
// error. Returns the descriptor, or -1 with the reason in f->why.
static int create_file(size_t bytes, shared_file *f) {
    int fd = memfd_create("llmc_zero", MFD_CLOEXEC);
    struct stat s;
    int rc = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    if (!rc && !fstat(fd, &s)) {
        snprintf(f->path, sizeof f->path, "/proc/%ld/fd/%d", (long)getpid(), fd);
        f->device = s.st_dev;
        f->inode = s.st_ino;
        return fd;
    }
    if (rc) snprintf(f->why, sizeof f->why, "%.1f MiB of shared memory: %s", bytes / 1048576.0, strerror(rc));
    if (fd >= 0) close(fd);
    return -1;
}

// In another container, the first rank's path may be a different file.
static int open_file(const shared_file *f) {
    struct stat s;
    int fd = *f->path ? open(f->path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0 || (!fstat(fd, &s) && s.st_dev == f->device && s.st_ino == f->inode)) return fd;
    close(fd);
    return -1;
}

// Returns 1 if the ranks of every node have mapped their memory, 0 if not, or a negative error.
static int map(net *n, const net_group *of, size_t bytes, void **base, char why[WINDOW_WHY]) {
    shared_file f = { .why = "no shared memory" }, files[n->ranks];
    int fd = of->rank ? -1 : create_file(bytes, &f);
    ZERO_TRY(net_gather(n, &f, files, sizeof f));
    if (of->rank) fd = open_file(&files[of->first]);
    *base = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int mine = *base != MAP_FAILED, all = net_least(n, mine);
    if (fd >= 0) close(fd);
    if (!all && mine) munmap(*base, bytes);
    for (int r = 0; r < n->ranks; r += of->ranks)
        if (!r || !*files[r].path) memcpy(why, files[r].why, WINDOW_WHY);
    return all;
}

int window_open(window **w, net *ranks, size_t bytes, int waiting, char why[WINDOW_WHY]) {
    const int here = ranks->ranks_on_node, place = ranks->node_rank;
    const net_group of = { place, here, ranks->rank - place, 1 };
    const size_t page = 4096, control_bytes = sizeof(control) + here * sizeof(uint32_t),
                 head = (control_bytes + page - 1) / page * page, all = head + here * bytes;
    void *base = NULL;
    const int mapped = map(ranks, &of, all, &base, why);
    if (mapped <= 0) return mapped;
    if (!(*w = malloc(sizeof **w))) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the window");
    **w = (window){ .ranks = ranks,
                    .of = of,
                    .ctl = base,
                    .head = head,
                    .mapped = all,
                    .spins = waiting > sysconf(_SC_NPROCESSORS_ONLN) ? 100 : 4000 };
    return 0;
}

void window_close(window *w) {
    munmap(w->ctl, w->mapped);
    free(w);
}
