#include "file.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/clock.h"
#include "../device/virtual_time.h"
#include "file_queue.h"

struct file_engine {
    file_queue q;
    const file_driver *driver;
    void *own;      // the driver's state
    int started;    // its threads are started
    int uring_why;  // the errno if io_uring cannot be used; 0: it works, or was not tried
    int pin_why;    // the errno if registering buffers was refused
    char name[512];
};

// -------- the folders

static int count_folders(const char *list) {
    int n = 1;
    for (; *list; list++) n += *list == ',';
    return n;
}

static void close_folders(file_queue *q) {
    for (int i = 0; i < q->n_folders; i++) folder_close(&q->folders[i]);
}

// Opens all folders. Each file has room for the largest share of the blocks.
static int open_folders(file_queue *q) {
    const file_settings *s = &q->s;
    if (s->path) {
        q->n_folders = 1;
        return folder_take(&q->folders[0], s->fd, s->path, s->reserve ? q->bytes : 0);
    }
    const int n = s->folders && *s->folders ? count_folders(s->folders) : 0;
    if (!n) return zero_refuse("offload.nvme", " names no folder");
    if (n > FILE_FOLDERS)
        return zero_refuse("offload.nvme", " names %d folders; at most %d are allowed", n, FILE_FOLDERS);
    const int64_t block = (int64_t)s->block_bytes, blocks = (q->bytes + block - 1) / block;
    const char *name = s->folders;
    while (q->n_folders < n) {
        char folder[PATH_MAX];
        const size_t length = strcspn(name, ",");
        if (!length || length >= sizeof folder)
            return zero_refuse("offload.nvme", " names a folder of %zu characters; write DIR or DIR,DIR",
                               length);
        snprintf(folder, sizeof folder, "%.*s", (int)length, name);
        ZERO_TRY(folder_open(&q->folders[q->n_folders], folder, s->rank, (blocks + n - 1) / n * block));
        q->n_folders++;
        name += length + 1;
    }
    return 0;
}

// -------- opening and closing

int64_t file_memory_bytes(const file_settings *s, int64_t bytes) {
    const int64_t sums = s->verify ? (bytes + FILE_ALIGN - 1) / FILE_ALIGN * (int64_t)sizeof(file_sums) : 0;
    return (int64_t)sizeof(file_engine) + sums + s->depth * (int64_t)sizeof(file_request);
}

static int open_driver(file_engine *e) {
    if (file_uring && !e->q.s.no_uring) {
        e->driver = file_uring;
        e->uring_why = file_uring->open(&e->own, &e->q);
        if (!e->uring_why) return 0;
    }
    e->driver = &file_threads;
    int rc = file_threads.open(&e->own, &e->q);
    return rc ? zero_fail(ZERO_ERR_MEMORY, "no memory for %d threads for files: %s", e->q.s.threads,
                          strerror(rc))
              : 0;
}

static void write_name(file_engine *e) {
    char driver[120] = "io_uring", direct[200] = "direct", pinned[100] = "";
    const char *why = e->q.s.no_uring ? "as requested" : "built without io_uring";
    const int threads = e->q.s.threads;
    const file_folder *buffered = NULL;
    for (int i = 0; i < e->q.n_folders; i++)
        if (e->q.folders[i].refused) buffered = &e->q.folders[i];
    if (e->uring_why)
        snprintf(driver, sizeof driver, "%d threads (no io_uring: %s)", threads, strerror(e->uring_why));
    else if (e->driver == &file_threads)
        snprintf(driver, sizeof driver, "%d threads (%s)", threads, why);
    if (buffered)
        snprintf(direct, sizeof direct, "buffered (%.80s has no O_DIRECT: %s)", buffered->path,
                 strerror(buffered->refused));
    if (e->pin_why)
        snprintf(pinned, sizeof pinned, ", buffers not registered (%s)",
                 e->pin_why == ENOMEM ? "RLIMIT_MEMLOCK: ulimit -l" : strerror(e->pin_why));
    snprintf(e->name, sizeof e->name, "%s, %s, %d folder%s%s", driver, direct, e->q.n_folders,
             e->q.n_folders > 1 ? "s" : "", pinned);
}

// -------- in virtual time: a disk moves the bytes of one transfer after the other, reads and writes alike

static int open_virtual(file_engine **out, file_engine *e) {
    pthread_mutex_init(&e->q.lock, NULL);
    snprintf(e->name, sizeof e->name, "virtual");
    *out = e;
    return 0;
}

// A burst has at most the requests that may be in flight.
static void join_burst(file_engine *e, virtual_time *v, file_transfer *t) {
    const double most = (double)e->q.s.depth * e->q.s.block_bytes;
    if (!v->machine->disk_bursts || virtual_now(v) > v->disk || v->burst_bytes >= most) {
        v->bursts++;
        v->burst_bytes = 0;
    }
    v->burst_bytes += t->bytes;
    t->burst = v->bursts;
}

static int start_virtual(file_engine *e, virtual_time *v, file_transfer *t) {
    const zero_time what = t->write ? ZERO_TIME_WRITE : ZERO_TIME_READ;
    const double seconds = virtual_seconds(v, what, t->bytes), fixed = v->machine->of[what].seconds;
    join_burst(e, v, t);
    t->started_s = virtual_max(virtual_now(v), v->disk);
    v->disk = t->started_s + seconds - fixed;
    t->ended_s = v->burst_ended = v->disk + fixed + virtual_late(v);  // a thread of the engine notices it
    return 0;
}

// Transfers of the last burst end with it. It may still grow.
static double virtual_end(const virtual_time *v, const file_transfer *t) {
    return t->burst == v->bursts ? v->burst_ended : t->ended_s;
}

static int wait_virtual(virtual_time *v, file_transfer *t) {
    t->ended_s = virtual_end(v, t);
    virtual_wait(v, t->ended_s);
    return 0;
}

// -------- opening and closing

int file_open(file_engine **out, const file_settings *s, int64_t bytes) {
    *out = NULL;
    if (s->block_bytes % FILE_ALIGN)
        return zero_refuse("offload.nvme_block_bytes", " is %zu; it must be a multiple of %d", s->block_bytes,
                           FILE_ALIGN);
    file_engine *e = calloc(1, sizeof *e);
    if (!e) return zero_fail(ZERO_ERR_MEMORY, "no memory for the files of model states");
    file_queue *q = &e->q;
    q->s = *s;
    q->bytes = bytes;
    if (s->time) return open_virtual(out, e);
    int rc = open_folders(q);
    if (!rc) rc = queue_open(q);
    if (!rc) {
        rc = open_driver(e);
        if (rc) queue_close(q);
    }
    if (rc) {
        close_folders(q);
        free(e);
        return rc;
    }
    write_name(e);
    *out = e;
    return 0;
}

// If the disk hangs, memory that it may still use stays allocated.
int file_close(file_engine *e) {
    if (!e) return 0;
    file_queue *q = &e->q;
    if (q->s.time) {
        free(e);
        return 0;
    }
    pthread_mutex_lock(&q->lock);
    queue_wait(q, NULL, INFINITY);
    int hangs = queue_wait_lost(q) > 0;
    q->closing = 1;
    e->driver->wake(e->own);
    pthread_mutex_unlock(&q->lock);
    if (hangs) return 1;
    e->driver->close(e->own);
    queue_close(q);
    close_folders(q);
    free(e);
    return 0;
}

const char *file_name(const file_engine *e) { return e->name; }

void file_buffers(file_engine *e, void *memory, size_t bytes) {
    if (e->q.s.time || !e->driver->pin) return;
    e->pin_why = e->driver->pin(e->own, memory, bytes);
    write_name(e);
}

// -------- transfers

static int check_transfer(const file_queue *q, const file_transfer *t) {
    if (t->queued)
        return zero_fail(ZERO_ERR_MISUSE, "the transfer at offset %lld was started again before it ended",
                         (long long)t->offset);
    if (t->offset < 0 || t->offset % FILE_ALIGN || (uintptr_t)t->data % FILE_ALIGN)
        return zero_fail(ZERO_ERR_MISUSE,
                         "a transfer at offset %lld, memory %p: both must be multiples of %d",
                         (long long)t->offset, (void *)t->data, FILE_ALIGN);
    if (t->offset > q->bytes || t->bytes > (size_t)(q->bytes - t->offset))
        return zero_fail(ZERO_ERR_MISUSE,
                         "a transfer of %zu bytes at offset %lld exceeds the %lld bytes of the file",
                         t->bytes, (long long)t->offset, (long long)q->bytes);
    return 0;
}

// The caller holds the lock. Threads start with the first transfer, after buffers are registered.
static int start(file_engine *e, file_transfer *t) {
    file_queue *q = &e->q;
    ZERO_TRY(check_transfer(q, t));
    if (q->failed) return zero_fail_again(&q->failure);
    if (!t->bytes) return 0;
    const int rc = e->started ? 0 : e->driver->start(e->own);
    if (rc) return zero_fail(ZERO_ERR_MEMORY, "cannot start the threads for files: %s", strerror(rc));
    e->started = 1;
    queue_append(q, t);
    // If all requests are in use, the driver takes this transfer when a request ends.
    if (q->idle) e->driver->wake(e->own);
    return 0;
}

int file_start(file_engine *e, file_transfer *t) {
    if (e->q.s.time) return start_virtual(e, e->q.s.time, t);
    pthread_mutex_lock(&e->q.lock);
    int rc = start(e, t);
    pthread_mutex_unlock(&e->q.lock);
    return rc;
}

int file_wait(file_engine *e, file_transfer *t) { return file_wait_for(e, t, INFINITY); }

int file_wait_for(file_engine *e, file_transfer *t, double seconds) {
    file_queue *q = &e->q;
    if (q->s.time) return wait_virtual(q->s.time, t);
    pthread_mutex_lock(&q->lock);
    double begin = t->queued ? clock_now() : 0;
    int rc = queue_wait(q, t, seconds);
    if (begin > 0) q->counters.waited_s += clock_now() - begin;
    pthread_mutex_unlock(&q->lock);
    return rc;
}

int file_done(file_engine *e, const file_transfer *t) {
    if (e->q.s.time) return virtual_end(e->q.s.time, t) <= virtual_now(e->q.s.time);
    pthread_mutex_lock(&e->q.lock);
    int done = !t->queued;
    pthread_mutex_unlock(&e->q.lock);
    return done;
}

file_counters file_count(file_engine *e) {
    pthread_mutex_lock(&e->q.lock);
    file_counters c = e->q.counters;
    pthread_mutex_unlock(&e->q.lock);
    return c;
}
